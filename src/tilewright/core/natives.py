"""Native functions that kernels call, by name: `lapack.dgesdd` is the function `dgesdd` of the library `lapack`.

A program holds names. Addresses are looked up when it is loaded into a process, and are stored nowhere: neither in saved sessions nor in
the code cache. A library is a function from a name to an address (None where it has no such function); `provide` adds one.

The one that is always there is SciPy's LAPACK, through the table of function pointers that SciPy keeps for compiled code
(`scipy.linalg.cython_lapack`). Only that extension is loaded, without `scipy.linalg`, which takes 0.2 s to import. Its OpenBLAS is set to
one thread: programs run several matrices at a time, and results must not depend on how many threads there are.
"""
from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

from .errors import CompileError
from .extras import how_to_install

Lookup = Callable[[str], int | None]


@functools.cache
def _lapack() -> dict[str, Any]:
    """SciPy's table of LAPACK functions: a capsule for each name."""
    import importlib.machinery
    import importlib.util

    found = importlib.util.find_spec("scipy")
    folder = None if found is None or found.origin is None else os.path.join(os.path.dirname(found.origin), "linalg")
    spec = None if folder is None else importlib.machinery.PathFinder.find_spec("cython_lapack", [folder])
    if spec is None or spec.loader is None:
        raise CompileError("lapack: singular values and eigenvalues of general matrices are computed by SciPy's LAPACK; "
                           f"{how_to_install('scipy')}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _one_thread(str(spec.origin))
    table: dict[str, Any] = module.__pyx_capi__
    return table


def _one_thread(extension: str) -> None:
    """An extension's own symbols include those of the libraries it is linked with. Other builds of LAPACK have no such function."""
    library = ctypes.CDLL(extension)
    for name in ("scipy_openblas_set_num_threads", "openblas_set_num_threads"):
        if hasattr(library, name):
            getattr(library, name)(1)


def function_pointer(capsule: Any) -> int | None:
    """The address in one of the capsules that compiled modules keep for their functions; None of None."""
    if capsule is None:
        return None
    api = ctypes.pythonapi
    label = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))(capsule)
    pointer: int = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))(capsule, label)
    return pointer


LIBRARIES: dict[str, Lookup] = {"lapack": lambda name: function_pointer(_lapack().get(name))}


def provide(library: str, lookup: Lookup) -> None:
    """Add a library of native functions: `lookup` gives the address of each by its name."""
    if library in LIBRARIES or not library.isidentifier():
        raise CompileError(f"natives: a library needs a new name that is an identifier, got {library!r}; there are {', '.join(LIBRARIES)}")
    LIBRARIES[library] = lookup


def address(name: str) -> int:
    """Where the function `library.name` is in this process."""
    library, _, function = name.partition(".")
    if library not in LIBRARIES:
        raise CompileError(f"natives: no library {library!r} for {name!r:.60}; there are {', '.join(LIBRARIES)}")
    found = LIBRARIES[library](function)
    if found is None:
        raise CompileError(f"natives: the library {library} has no function {function!r:.60}")
    return found
