"""LLVM IR → object code → addresses: every level of the instruction set, errors, threads, symbols, unloading."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import pytest

from tests.shaken import ended
from tilewright.core.errors import CompileError
from tilewright.target.cpu import jit
from tilewright.target.cpu.host import host_target

ADD = "define i64 @f{k}(i64 %a) {{\n  %r = add i64 %a, {k}\n  ret i64 %r\n}}\n"
MULADD = """define void @f(ptr %p) {ATTRIBUTES} {
  %a = load <16 x float>, ptr %p, align 4
  %m = fmul <16 x float> %a, %a
  %s = fadd <16 x float> %m, %a
  store <16 x float> %s, ptr %p, align 4
  ret void
}"""
LEVELS = ["baseline", "avx2", "avx512", "native"]


def call(library: jit.Library, name: str, value: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address(name))(value))


@pytest.mark.parametrize("opt", ["none", "light", "O1", "O2", "O3"])
def test_code_runs(opt: jit.OptLevel) -> None:
    target = host_target()
    library = jit.Library([jit.compile_ir(ADD.format(k=5), target, opt)], ["f5"])
    assert call(library, "f5", 37) == 42


@pytest.mark.parametrize("level", LEVELS)
def test_vectors_have_the_targets_width_and_nothing_is_contracted(level: str) -> None:
    target = host_target(level=level)  # type: ignore[arg-type]
    text = jit.assembly(MULADD.replace("{ATTRIBUTES}", target.attributes), target)
    assert ("zmm" in text, "ymm" in text) == {512: (True, False), 256: (False, True), 128: (False, False)}[target.vector_bits]
    assert "vfmadd" not in text, "a product and a sum stay two roundings"
    buffer = (ctypes.c_float * 16)(*range(16))
    library = jit.Library([jit.compile_ir(MULADD.replace("{ATTRIBUTES}", target.attributes), target)], ["f"])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("f"))(ctypes.addressof(buffer))
    assert list(buffer) == [i * i + i for i in range(16)]


def test_feature_switches_change_the_code() -> None:
    if not host_target(level="native").has("avx512f"):
        pytest.skip("needs AVX-512 to switch off")
    target = host_target(["avx512f"], level="native")
    assert target.vector_bits == 256 and "zmm" not in jit.assembly(MULADD.replace("{ATTRIBUTES}", target.attributes), target)


def test_optimised_ir_is_simplified() -> None:
    text = "define i64 @f(i64 %a) {\n  %x = mul i64 %a, 1\n  %y = add i64 %x, 0\n  ret i64 %y\n}"
    assert "mul" not in jit.optimised_ir(text, host_target()) and "mul" in jit.optimised_ir(text, host_target(), "none")


@pytest.mark.parametrize("text, message", [
    ("nonsense", "llvm: the IR does not parse: .*expected top-level entity"),
    ("define i64 @f() {\n  ret i64 %x\n}", "llvm: the IR does not parse: .*undefined value"),
    ("define i64 @f() {\n  %x = add i64 %x, 1\n  ret i64 %x\n}", "llvm: the IR does not verify: "),
])
def test_bad_ir_is_an_error_and_the_next_compile_works(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        jit.compile_ir(text, host_target())
    assert jit.compile_ir(ADD.format(k=1), host_target())


def test_objects_that_do_not_link_are_errors() -> None:
    target = host_target()
    missing = jit.compile_ir("declare void @nowhere()\ndefine void @f() {\n  call void @nowhere()\n  ret void\n}", target)
    for objects, exports in (([missing], ["f"]), ([], ["f"]), ([b"no object"], ["f"]), ([missing[:100]], ["f"])):
        with pytest.raises(CompileError, match="jit: the objects do not link"):
            jit.Library(objects, exports)


def test_objects_see_each_other_the_c_library_and_given_symbols() -> None:
    target = host_target()
    caller = """declare i64 @f7(i64)
declare ptr @memcpy(ptr, ptr, i64)
declare i64 @given(i64)
define i64 @g(i64 %a) {
  %from = alloca i64
  %to = alloca i64
  store i64 %a, ptr %from
  %r = call ptr @memcpy(ptr %to, ptr %from, i64 8)
  %v = load i64, ptr %to
  %w = call i64 @f7(i64 %v)
  %x = call i64 @given(i64 %w)
  ret i64 %x
}"""
    double = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda v: 2 * v)
    address = ctypes.cast(double, ctypes.c_void_p).value
    assert address is not None
    objects = [jit.compile_ir(caller, target, "none"), jit.compile_ir(ADD.format(k=7), target)]
    assert call(jit.Library(objects, ["g"], {"given": address}), "g", 3) == 20


def test_addresses_need_an_export_and_an_open_library() -> None:
    library = jit.Library([jit.compile_ir(ADD.format(k=2), host_target())], ["f2"])
    with pytest.raises(CompileError, match="jit: no exported symbol 'g'; exports: f2"):
        library.address("g")
    library.close()
    library.close()
    with pytest.raises(CompileError, match="jit: the library with 'f2' is closed"):
        library.address("f2")


def test_many_compiles_on_threads_give_the_same_bytes() -> None:
    target = host_target()
    texts = [MULADD.replace("{ATTRIBUTES}", target.attributes)] + [ADD.format(k=k) for k in range(20)]
    one = jit.compile_many(texts, target, threads=1)
    assert jit.compile_many(texts, target, threads=4) == one == [jit.compile_ir(t, target) for t in texts]
    assert jit.compile_many([], target) == []
    with pytest.raises(CompileError, match="does not parse"):
        jit.compile_many([*texts, "nonsense"], target, threads=3)


class _Malloc(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keep")]


def _allocated() -> int:
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        pytest.skip("needs glibc's mallinfo2")
    gc.collect()
    info.restype = _Malloc
    found = info()
    return int(found.used + found.hblkhd)


@pytest.mark.parametrize("opt", ["light", "O2"])
def test_a_compile_leaves_no_memory_behind(opt: jit.OptLevel) -> None:
    target = host_target()
    steps = "".join(f"  %s{i + 1} = call i64 @llvm.bitreverse.i64(i64 %s{i})\n  %p{i} = getelementptr i64, ptr %p, i64 %s{i + 1}\n"
                    f"  store i64 %s{i}, ptr %p{i}\n" for i in range(300))
    text = f"declare i64 @llvm.bitreverse.i64(i64)\ndefine void @f(ptr %p, i64 %s0) {{\n{steps}  ret void\n}}\n"
    for _ in range(3):
        jit.compile_ir(text, target, opt)
    before = _allocated()
    for _ in range(20):
        jit.compile_ir(text, target, opt)
    each = (_allocated() - before) / 20
    assert each < 4096, f"every compile keeps {each:.0f} bytes"


def test_a_child_forked_during_a_compile_can_compile() -> None:
    target = host_target()
    texts = [ADD.format(k=k) for k in range(60)]
    background = threading.Thread(target=lambda: jit.compile_many(texts, target, threads=2))
    background.start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            library = jit.Library([jit.compile_ir(ADD.format(k=9), target)], ["f9"])
            code = 0 if call(library, "f9", 1) == 10 else 2
        finally:
            os._exit(code)
    background.join()
    assert ended(child) == 0
