"""Tilewright: a tensor compiler and runtime. A PyTorch module goes in, one native, multi-threaded CPU program comes out.

    import tilewright as tw
    session = tw.compile(module, (x,))
    y = session(x)

Importing this package loads nothing heavy: names are found when they are first used. `__init__.pyi` lists them for type checkers.
"""
from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from .core.collection import paused
from .core.dims import Expr, sym

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

_NAMES = {  # by module; functions of arrays come from `array.functions`, which finds those of ops in the registry
    "array.anywhere": "vectorize", "array.arrays": "ArrayLike", "array.grids": "c_ index_exp mgrid ogrid r_ s_",
    "array.from_torch": "from_torch", "array.jit": "jit", "array.lazy": "lazy set_mode",
    "array.cuda.placed": "stream synchronize",
    "array.operators": "Array", "array.torch_function": "torch_function", "compile": "compile load",
    "core.errors": "ArgumentError AxisError CheckpointError CompileError ConfigError ExecutionError FileError FormatError InputError "
                   "ParseError ShapeError TilewrightError TraceError UnsupportedError VerifyError",
    "dynamo.explain": "explain", "lang.host": "host_op native_op", "lang.kernel": "kernel", "llm.model": "LLM load_llm",
    "runtime.archive.session": "digest", "onnx": "load_onnx", "onnx.functions": "export_onnx from_onnx", "quantization": "quantize",
    "frontend.gguf.writer": "quantize_gguf", "runtime.session": "Session",
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {"fft": "array.fft", "linalg": "array.linalg", "random": "array.random", "lang": "lang", "onnx": "onnx", "optim": "optim",
            "splat": "splat", "training": "training"}


def Dim(name: str, lo: int = 1, hi: int | None = None) -> Expr:
    """A named dim that may vary from call to call, within an inclusive range.

    >>> import tilewright as tw
    >>> tw.Dim("S", 1, 1024), 2 * tw.Dim("N") + 1
    (S, 2*N+1)
    """
    return sym(name, lo) if hi is None else sym(name, lo, hi)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name.startswith("_") and name != "__array_namespace_info__":
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    with paused():
        if name in _LAZY:
            found = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        else:
            from .array.api import info

            if name in info.VALUES:
                found = info.VALUES[name]
            else:
                from .array.functions import public

                found = public(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from .array.api.info import VALUES
    from .array.functions import names

    return sorted({"Dim", "__version__", *_LAZY, *_MODULES, *VALUES, *names()})


class _Package(ModuleType):
    """Importing the module `tilewright.compile` would bind it to the name of the function; this keeps the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("array", "tile") and isinstance(value, ModuleType):  # tw.tile is the function; the package is found by its import path
            return
        super().__setattr__(name, value.compile if name == "compile" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
