"""Our linker against LLVM's: the same objects give the same results; what ours does not know goes to LLVM's."""
from __future__ import annotations

import ctypes
import mmap
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import CompileError
from tilewright.target.cpu import elf, jit
from tilewright.target.cpu.host import host_target

# Constants in memory, a jump table, zeroed data that is written, a call into another object and one into the C library.
FIRST = """
@counter = internal global [64 x i64] zeroinitializer, align 64
@table = internal constant [5 x i64] [i64 7, i64 11, i64 13, i64 17, i64 19]
declare i64 @second(i64)
declare ptr @memset(ptr, i32, i64)
define i64 @first(i64 %k, ptr %p) {
  %slot = getelementptr i64, ptr @counter, i64 %k
  %old = load i64, ptr %slot
  %new = add i64 %old, 1
  store i64 %new, ptr %slot
  %at = getelementptr i64, ptr @table, i64 %k
  %x = load i64, ptr %at
  %y = call i64 @second(i64 %k)
  %n = add i64 %k, 8
  %m = call ptr @memset(ptr %p, i32 42, i64 %n)
  %s = add i64 %x, %y
  %t = mul i64 %s, %new
  ret i64 %t
}
"""
SECOND = """
declare i64 @other(i64)
define i64 @second(i64 %k) {
  switch i64 %k, label %else [ i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %d  i64 4, label %e ]
a: %va = call i64 @other(i64 100)
  ret i64 %va
b: %vb = call i64 @other(i64 1)
  %wb = mul i64 %vb, 3
  ret i64 %wb
c: %vc = call i64 @other(i64 5)
  %wc = sub i64 %vc, 9
  ret i64 %wc
d: ret i64 1000
e: %ve = call i64 @other(i64 8)
  %we = xor i64 %ve, 255
  ret i64 %we
else: ret i64 -1
}
"""
OTHER = """
define i64 @other(i64 %k) {
  %r = mul i64 %k, 1000003
  ret i64 %r
}
"""


def objects() -> list[bytes]:
    return [jit.compile_ir(text, host_target()) for text in (FIRST, SECOND, OTHER)]


def results(library: jit.Library) -> list[int]:
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(library.address("first"))
    into = np.zeros(2, np.uint64)
    found = [int(call(k, into.ctypes.data)) for k in (0, 1, 2, 3, 4, 4, 2, 4)]
    assert into.view(np.uint8).tolist() == [42] * 12 + [0] * 4
    return found


def llvm_library(monkeypatch: pytest.MonkeyPatch, data: list[bytes], exports: list[str]) -> jit.Library:
    with monkeypatch.context() as m:
        m.setattr(jit, "link_elf", lambda *_: None)
        return jit.Library(data, exports)


def test_same_results_as_llvms_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    data = objects()
    ours = jit.Library(data, ["first", "second"])
    assert ours._image is not None
    assert results(ours) == results(llvm_library(monkeypatch, data, ["first"]))
    ours.close()
    with pytest.raises(CompileError, match="is closed"):
        ours.address("first")


def test_code_is_not_writable_and_data_not_executable() -> None:
    library = jit.Library(objects(), ["first"])
    at = library.address("first")
    rights = {}
    with open("/proc/self/maps") as file:
        for line in file:
            lo, hi = (int(n, 16) for n in line.split()[0].split("-"))
            rights[lo, hi] = line.split()[1]
    own = next(r for (lo, hi), r in rights.items() if lo <= at < hi)
    assert own[:3] == "r-x"
    results(library)


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return len(file.readlines())


def test_libraries_share_mappings_and_give_their_pages_back() -> None:
    data = objects()
    first = jit.Library(data, ["first"])
    before = mappings()
    many = [jit.Library(data, ["first"]) for _ in range(200)]
    assert mappings() <= before + 20, "a mapping or more for each library"
    assert len({library.address("first") for library in many}) == 200
    assert results(many[7]) == results(many[150]) == results(first)
    places = {library.address("first") for library in many}
    many.clear()
    again = [jit.Library(data, ["first"]) for _ in range(200)]
    assert len(places & {library.address("first") for library in again}) > 150, "pages of collected libraries are used again"
    assert results(again[0]) == results(again[199]), "zeroed data starts at 0 in used pages too"


def test_code_larger_than_a_slab_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.target.cpu import elf as code_memory

    monkeypatch.setattr(code_memory, "ZONE", 4096)
    monkeypatch.setattr(code_memory, "_slabs", [])
    table = " ".join(["i64 5,"] * 4000)[:-1]
    text = f"""@table = internal constant [4000 x i64] [{table}]
define i64 @big(i64 %k) {{
  %at = getelementptr [4000 x i64], ptr @table, i64 0, i64 %k
  %x = load volatile i64, ptr %at
  ret i64 %x
}}"""
    library = jit.Library([jit.compile_ir(text, host_target())], ["big"])
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("big"))(3999) == 5
    small = jit.Library(objects(), ["first"])
    assert results(small) and len(code_memory._slabs) == 2


def test_no_memory_for_code_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.target.cpu import elf as code_memory

    data = objects()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(code_memory, "_slabs", [])
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(CompileError, match=r"jit: the system gives no memory for [\d,]+ bytes of machine code .*; close sessions"):
        jit.Library(data, ["first"])
    monkeypatch.undo()
    assert results(jit.Library(data, ["first"]))


def test_rights_that_the_system_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.target.cpu import elf as code_memory

    monkeypatch.setattr(code_memory, "_mprotect", lambda *_: -1)
    with pytest.raises(CompileError, match=r"jit: the system does not give pages the rights of machine code .*vm.max_map_count"):
        jit.Library(objects(), ["first"])


def test_an_undefined_symbol_is_an_error() -> None:
    with pytest.raises(CompileError, match="do not link"):
        jit.Library(objects()[:2], ["first"])


def test_a_symbol_defined_twice_is_an_error() -> None:
    data = objects()
    with pytest.raises(CompileError, match="other"):
        jit.Library([*data, data[2]], ["first"])


def test_a_missing_export_is_an_error() -> None:
    with pytest.raises(CompileError, match="nothing"):
        jit.Library(objects(), ["first", "nothing"])


THREAD_LOCAL = """
@x = thread_local global i64 0
declare ptr @llvm.threadlocal.address.p0(ptr)
define i64 @f() {
  %p = call ptr @llvm.threadlocal.address.p0(ptr @x)
  %v = load i64, ptr %p
  ret i64 %v
}
"""
FAR = """
@far = external global i64
define i64 @f() {
  %v = load i64, ptr @far
  ret i64 %v
}
"""


@pytest.mark.parametrize("text", [THREAD_LOCAL, FAR])
def test_what_it_does_not_know_is_left_to_llvm(text: str) -> None:
    assert elf.link_elf([jit.compile_ir(text, host_target())], {}) is None


def test_damaged_objects_never_link_by_accident() -> None:
    """A header that is no ELF for this machine, or cut off: nothing is mapped, LLVM's linker says what is wrong."""
    data = objects()[2]
    for bad in (b"", data[:40], b"\x7fELG" + data[4:], data[:18] + struct.pack("<H", 183) + data[20:]):
        assert elf.link_elf([bad], {}) is None


def test_a_cached_program_runs_without_llvm(tmp_path: Any) -> None:
    code = ("import sys\nfrom tilewright.runtime.pool import process_pool\nprocess_pool().ensure(2)\n"
            "print('llvmlite.binding' in sys.modules)")
    env = {"TILEWRIGHT_CACHE_DIR": str(tmp_path / "c"), "PYTHONPATH": ":".join(sys.path)}
    runs = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["True", "False"]
