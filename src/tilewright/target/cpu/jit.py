"""LLVM IR text → object code → callable addresses, through llvmlite.

`compile_ir` parses, verifies, optimises and emits one module; `compile_many` does so on several threads. llvmlite puts one lock
around every LLVM call. The three long calls (parse, optimise, emit) are made past that lock: each compile has its own LLVM context
and target machine, and LLVM promises that such compiles do not share state. `Library` links objects and answers addresses; LLVM's
linker is used only for objects that `elf.py` does not know.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
from _thread import RLock
from _thread import _local as ThreadLocal
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_char_p
from typing import Any, Literal

from ...core.config import load
from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...core.workers import Workers
from .elf import Image, link_elf

OptLevel = Literal["none", "light", "O1", "O2", "O3"]
DEFAULT_OPT: OptLevel = "O2"
ROOM, ROOM_PER_CHARACTER = 32 << 20, 500  # bytes that a compile of a module may need, with much to spare

_names = itertools.count()


# A fork waits while another thread loads LLVM: the child would find the module half imported, and its import lock taken for ever.
_loading = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _llvm() -> Any:
    with _loading:
        return _loaded_llvm()


@functools.cache
def _loaded_llvm() -> Any:
    """llvmlite.binding, initialised; imported on first use because loading LLVM takes tens of milliseconds."""
    try:
        import llvmlite.binding as llvm
        from llvmlite.binding import ffi
    except OSError as problem:  # llvmlite's, where the system does not map its library
        raise CompileError(f"llvm: its library cannot be loaded ({problem}); allow this process more memory, or install llvmlite "
                           "again") from None

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # A child forked while another thread is inside LLVM would find llvmlite's lock taken for ever. (Taking it before the fork instead
    # can deadlock: llvmlite frees objects, under this lock, wherever the garbage collector happens to run.)
    os.register_at_fork(after_in_child=ffi.lib._lock._lock._at_fork_reinit)
    return llvm


def forget_llvm() -> None:
    """Let the system drop LLVM's own code from this process's memory (45 MB after a compile); what is used again is mapped again."""
    libc = ctypes.CDLL(None)
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            place: list[str] = []
            for line in file:
                words = line.split()
                if not words[0].endswith(":"):
                    place = words if "libllvmlite" in line and words[1].startswith("r-") else []
                elif place and words[0] == "Anonymous:" and words[1] == "0":  # pages of its own (relocated tables) exist nowhere else
                    first, end = (int(n, 16) for n in place[0].split("-"))
                    libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
    except OSError:
        pass  # no such list on this system


@functools.cache
def llvm_version() -> str:
    """Which LLVM this is, told without loading it: llvmlite's release and the size of its library."""
    import llvmlite

    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    sizes = " ".join(str(os.stat(os.path.join(folder, name)).st_size) for name in sorted(os.listdir(folder)) if "llvmlite." in name)
    return f"llvmlite {llvmlite.__version__} {sizes}"


def pass_options(opt: OptLevel = DEFAULT_OPT) -> str:
    """What of this module's choices shapes the code; part of every cache key."""
    return f"{opt} no-vectorize no-slp no-interleave pic small codegen=3"


def _unlocked(name: str) -> Callable[..., Any]:
    """An LLVM function without llvmlite's lock around it (or with it, should llvmlite lock differently one day)."""
    from llvmlite.binding import ffi

    wrapper = getattr(ffi.lib, name)
    return getattr(wrapper, "_cfn", wrapper)  # type: ignore[no-any-return]


def _machine(target: TargetSpec) -> Any:
    llvm = _llvm()
    found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(cpu=target.cpu, features=target.feature_string, opt=3, reloc="pic", codemodel="small", jit=True)


_local = ThreadLocal()


def _thread_machine(target: TargetSpec) -> Any:
    machines: dict[TargetSpec, Any] = _local.__dict__.setdefault("machines", {})
    if target not in machines:
        machines[target] = _machine(target)
    return machines[target]


class _Module:
    """A parsed module in a context of its own, both freed on exit."""

    def __init__(self, text: str) -> None:
        llvm = _llvm()
        from llvmlite.binding import ffi

        self.context = llvm.create_context()
        error = c_char_p(None)
        pointer = _unlocked("LLVMPY_ParseAssembly")(self.context, text.encode(), ctypes.byref(error))
        if not pointer:
            message = (error.value or b"").decode(errors="replace")
            if error.value is not None:
                ffi.lib.LLVMPY_DisposeString(error)
            self.context.close()
            raise CompileError(f"llvm: the IR does not parse: {_first(message)}")
        self.ref = llvm.ModuleRef(pointer, self.context)
        try:
            self.ref.verify()
        except RuntimeError as problem:
            self.close()
            raise CompileError(f"llvm: the IR does not verify: {_first(str(problem))}") from None

    def close(self) -> None:
        self.ref.close()
        self.context.close()


def _first(message: str) -> str:
    return " / ".join(line.strip() for line in message.strip().splitlines()[:3])


def _optimise(module: Any, machine: Any, opt: OptLevel) -> None:
    if opt == "none":
        return
    llvm = _llvm()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2 if opt == "light" else int(opt[1]))
    # Kernels arrive vectorised and unrolled as the template wants them.
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = False
    # llvmlite never frees the callbacks that come with a builder (`LLVMPY_DisposePassBuilder` deletes the builder alone): 1,488 bytes a
    # module are lost. One builder for all modules would not do: each run registers instrumentations that lie on its own stack.
    builder = llvm.create_pass_builder(machine, tuning)
    if opt == "light":
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_new_gvn_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
    else:
        passes = builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    _dispose(passes)
    builder.close()
    tuning.close()


def _dispose(passes: Any) -> None:
    """Free a pass manager with all its passes, which hold memory by the size of the module. llvmlite's own `close` frees nothing: the
    method that would is hidden by an empty one of another base class."""
    from llvmlite.binding import ffi

    ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
    passes.detach()


def _emit(text: str, target: TargetSpec, opt: OptLevel, *, objects: bool) -> bytes:
    _llvm()
    from llvmlite.binding import ffi

    _room(text)
    machine = _thread_machine(target)
    module = _Module(text)
    try:
        _optimise(module.ref, machine, opt)
        error = c_char_p(None)
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module.ref, int(objects), ctypes.byref(error))
        if not buffer:
            message = (error.value or b"").decode(errors="replace")
            if error.value is not None:
                ffi.lib.LLVMPY_DisposeString(error)
            raise CompileError(f"llvm: no code for {target.cpu}: {_first(message)}")
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
    finally:
        module.close()


def _room(text: str) -> None:
    """LLVM ends the process where it gets no memory, so somebody else asks first."""
    need = ROOM + ROOM_PER_CHARACTER * len(text)
    try:
        mmap.mmap(-1, need, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, ValueError, OverflowError) as problem:
        raise MemoryError(f"llvm: a kernel of {len(text):,} characters may take {need:,} bytes to compile, {problem}") from None


def compile_ir(llvm_text: str, target: TargetSpec, opt: OptLevel = DEFAULT_OPT) -> bytes:
    """Object code of one module."""
    return _emit(llvm_text, target, opt, objects=True)


def assembly(llvm_text: str, target: TargetSpec, opt: OptLevel = DEFAULT_OPT) -> str:
    """The same code as text, for people."""
    return _emit(llvm_text, target, opt, objects=False).decode()


def optimised_ir(llvm_text: str, target: TargetSpec, opt: OptLevel = DEFAULT_OPT) -> str:
    """The module after LLVM's passes, for people."""
    module = _Module(llvm_text)
    try:
        _optimise(module.ref, _thread_machine(target), opt)
        return str(module.ref)
    finally:
        module.close()


def compile_many(texts: Iterable[str], target: TargetSpec, opt: OptLevel = DEFAULT_OPT, *, threads: int | None = None) -> list[bytes]:
    """Object code of many modules on `threads` threads (default: TILEWRIGHT_COMPILE_THREADS, else the target's cores, at most 8).

    `texts` may be a generator: what it has given is compiled while it makes the next.
    """
    workers = threads or load().compile_threads or min(target.cores, 8)
    if workers <= 1:
        return [compile_ir(text, target, opt) for text in texts]
    _llvm()
    with Workers(workers) as pool:
        return pool.map(lambda text: compile_ir(text, target, opt), texts)


@functools.cache
def process_symbols() -> Mapping[str, int]:
    """Absolute addresses of the C library functions that generated code may call."""
    libc = ctypes.CDLL(None)
    names = ("syscall", "memcpy", "memmove", "memset", "sched_yield", "sched_getcpu", "getpid", "sigaction")
    return {name: address for name in names if (address := ctypes.cast(getattr(libc, name), ctypes.c_void_p).value) is not None}


class Library:
    """Objects linked into this process. Addresses are valid until `close()` (or until the library is collected).

    `exports` names the symbols that `address()` can answer; an undefined or missing symbol is a CompileError.
    """

    def __init__(self, objects: Iterable[bytes], exports: Iterable[str], symbols: Mapping[str, int] | None = None) -> None:
        self._exports = frozenset(exports)
        objects, imports = list(objects), {**process_symbols(), **(symbols or {})}
        self._image: Image | None = link_elf(objects, imports)
        self._tracker: Any = None
        if self._image is not None:
            if missing := sorted(self._exports - self._image.symbols.keys()):
                raise CompileError(f"jit: the objects do not link: no symbol {missing[0]}")
            return
        llvm = _llvm()
        # JITLink places an object's sections in one block. The other linker maps each on its own; in a process with gigabytes of weights
        # they may land more than 2 GiB apart, and LLVM aborts the process.
        self._jit: Any = llvm.create_lljit_compiler(None, use_jit_link=True, suppress_errors=True)
        builder = llvm.JITLibraryBuilder()
        for data in objects:
            builder.add_object_img(data)
        for name in self._exports:
            builder.export_symbol(name)
        for name, where in imports.items():
            builder.import_symbol(name, where)
        try:
            self._tracker = builder.link(self._jit, f"tilewright-{next(_names)}")
        except RuntimeError as problem:
            self._jit.close()
            raise CompileError(f"jit: the objects do not link: {_first(str(problem))}") from None

    def address(self, symbol: str) -> int:
        if symbol not in self._exports:
            raise CompileError(f"jit: no exported symbol {symbol!r}; exports: {', '.join(sorted(self._exports))}")
        if self._image is not None:
            return self._image.symbols[symbol]
        if self._tracker is None:
            raise CompileError(f"jit: the library with {symbol!r} is closed")
        return int(self._tracker[symbol])

    def close(self) -> None:
        """Unload the code. Nothing may be running in it."""
        image, self._image = self._image, None
        if image is not None:
            image.close()
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()
            self._jit.close()
