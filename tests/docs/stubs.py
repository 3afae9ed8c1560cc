"""The stub files that type checkers and editors read: what `tw.` and `tilewright.ops` offer when they run, with signatures.

`make tables` (`pytest tests/docs --update-goldens`) writes them; a test says when one is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Any

import numpy as np

import tilewright as tw
from tests.meta.source import PACKAGE
from tilewright import ops
from tilewright.array import fft, functions, linalg, polynomials, random
from tilewright.array.api import info
from tilewright.transform.lib import ALIASES, FUNCTIONS
from tilewright.transform.lib.random import FUNCTIONS as RANDOM

PUBLIC: Any = tw
OPS: Any = ops
KNOWN = {"Any", "Array", "ArrayLike", "Callable", "Mapping", "None", "Sequence", "bool", "builtins", "dict", "float", "int", "list", "np",
         "str", "tuple", "dtype", "ndarray"}
READ_AS = {"bool": "builtins.bool", "Value": "Array", "Tracer": "Array", "Fn": "Callable[..., Any]", "Argnums": "int | Sequence[int]"}
SEVERAL = {"cond", "fori_loop", "while_loop", "scan", "gradient", "load_arrays", "unique", "fake_quantize", "fake_quantize_lsq",
           "gated_delta_rule", "selective_scan", "where", "custom_op", "geqrf", "array_equiv", "iscomplexobj",
           "isrealobj", "isscalar", "issubdtype", "iterable", "ndindex", "ndenumerate", "shares_memory", "may_share_memory",
           "min_scalar_type", "common_type", "einsum_path"}  # what they return depends on what they are given
WRITTEN = {  # overloads that no single signature says
    "where": """@overload
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> Array: ...
@overload
def where(condition: ArrayLike, /) -> tuple[Array, ...]: ...""",
    "qr": """@overload
def qr(x: ArrayLike, /, mode: Literal['reduced', 'complete'] = 'reduced') -> QRResult: ...
@overload
def qr(x: ArrayLike, /, mode: Literal['r']) -> Array: ...
@overload
def qr(x: ArrayLike, /, mode: str) -> Any: ...""",
}
OPERANDS = {"x", "x1", "x2", "y", "a", "b", "q", "k", "v", "weight", "bias", "mask", "indices", "condition", "ids", "scale", "zero"}
HEADER = '''"""Written by `make tables` from what the package offers; do not edit."""
'''


def annotation(found: Any, fallback: str = "Any") -> str:
    """An annotation in names that the stub knows."""
    text = found if isinstance(found, str) else getattr(found, "__name__", "") if isinstance(found, type) else ""
    text = re.sub(r"\b(\w+)\b", lambda m: READ_AS.get(m[1], m[1]), text)
    return text if text and text != "Any" and set(re.findall(r"[A-Za-z_]\w*", text)) <= KNOWN else fallback


def parameter(p: inspect.Parameter) -> str:
    kind = annotation(p.annotation, "ArrayLike" if p.name in OPERANDS and p.default in (p.empty, ...) else "Any")
    kind = "ArrayLike" if kind == "Array" else kind
    star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
    plain = p.default is None or (isinstance(p.default, (bool, int, str)) or (isinstance(p.default, float) and isfinite(p.default)))
    default = "" if p.default is p.empty else f" = {p.default!r}" if plain else " = ..."
    if p.default is None and kind != "Any" and "None" not in kind:
        kind += " | None"
    return f"{star}{p.name}: {kind}{default}"


def function(name: str, source: Callable[..., Any], several: bool = False) -> str:
    """A line of a stub; `several`: what it returns is no single Array."""
    shown = inspect.signature(source)
    words: list[str] = []
    before: Any = None
    for p in shown.parameters.values():
        if before is not None and before.kind is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            words.append("/")
        if p.kind is p.KEYWORD_ONLY and (before is None or before.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)):
            words.append("*")
        words.append(parameter(p))
        before = p
    if before is not None and before.kind is before.POSITIONAL_ONLY:
        words.append("/")
    if fields := named(name):
        return wrapped(f"def {name}(", words, f") -> {fields[0]}: ...")
    unknown = several or name in SEVERAL or shown.return_annotation not in ("Any", "Value")
    result = annotation(shown.return_annotation, "Any" if unknown else "Array")
    return wrapped(f"def {name}(", words, f") -> {result}: ...")


@cache
def named(name: str) -> tuple[str, ...]:
    """The class and the fields of what a function returns, where these have names."""
    if name not in ("eig", "eigh", "qr", "slogdet", "svd", "unique_all", "unique_counts", "unique_inverse"):
        return ()
    found = getattr(PUBLIC, name, None) or getattr(linalg, name)
    result = found(PUBLIC.ones((1, 1)))
    return type(result).__name__, *result._fields


def overloads(name: str, *sources: Callable[..., Any] | None) -> str:
    """The signature of a function for Arrays, and that of its form for traces where it has further options, or more by position."""
    if name in WRITTEN:
        return WRITTEN[name]
    first, *others = [f for f in sources if f is not None]
    more = [f for f in others if not options(f) <= set(inspect.signature(first).parameters) or by_position(f) > by_position(first)]
    several = function(name, first).endswith("-> Any: ...")
    return "\n".join(f"@overload\n{function(name, f, several)}" for f in (first, *more)) if more else function(name, first)


def options(f: Callable[..., Any]) -> set[str]:
    return {p.name for p in inspect.signature(f).parameters.values() if p.default is not p.empty or p.kind is p.KEYWORD_ONLY}


def by_position(f: Callable[..., Any]) -> int:
    kinds = [p.kind for p in inspect.signature(f).parameters.values()]
    return 99 if inspect.Parameter.VAR_POSITIONAL in kinds else sum(k is not inspect.Parameter.KEYWORD_ONLY for k in kinds)


def wrapped(start: str, words: Iterable[str], end: str, indent: str = "        ") -> str:
    lines, line = [], start
    for i, word in enumerate(words := list(words)):
        piece = word + (", " if i < len(words) - 1 else "")
        if len(line) + len(piece) > 110:
            lines.append(line.rstrip())
            line = indent
        line += piece
    return "\n".join([*lines, line + end])


def imports(by_module: Mapping[str, list[str]]) -> list[str]:
    made = []
    for module, names in sorted(by_module.items()):
        words = [f"{n} as {n}" for n in sorted(set(names))]
        line = f"from {module} import {', '.join(words)}"
        made.append(line if len(line) <= 120 else wrapped(f"from {module} import (\n    ", words, "\n)", "    "))
    return made


def source_of(name: str) -> Callable[..., Any]:
    """The function whose signature a name of `tw.` has: that for Arrays before that for traces."""
    own = ALIASES.get(name, name)
    return functions.API.get(name) or FUNCTIONS.get(own) or functions.OFFERED[name]


def package_stub() -> str:
    by_module: dict[str, list[str]] = defaultdict(list)
    for name, module in PUBLIC._LAZY.items():
        by_module[".array.arrays" if name == "Array" else f".{module}"].append(name)
    for name, module in PUBLIC._MODULES.items():
        folder, _, _ = module.rpartition(".")
        by_module[f".{folder}" if folder else "."].append(name)
    values = [f"{name}: {'np.dtype[Any]' if isinstance(value, np.dtype) else 'None' if value is None else 'float'}" for name, value in
              sorted(info.VALUES.items())]
    taken = {*PUBLIC._LAZY, *PUBLIC._MODULES, *info.VALUES}
    classes = [f"class {n}:\n    def __init__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None: ...\n"
               "    def __call__(self, *args: Any) -> Any: ...\n    def __getattr__(self, name: str) -> Any: ..."
               for n in ("custom_jvp", "custom_vjp")]
    names = sorted(functions.names() - taken - {"custom_jvp", "custom_vjp"})
    made = [overloads(n, source_of(n), FUNCTIONS.get(ALIASES.get(n, n))) for n in names]
    return stub("", [*imports(by_module), "from .core.dims import Expr as Expr", "", "__version__: str", "__array_api_version__: str",
                     wrapped("__all__ = [", [repr(n) for n in PUBLIC.__all__], "]", "           ").replace("'", '"'), *values,
                     "def Dim(name: str, lo: int = 1, hi: int | None = None) -> Expr: ...",
                     "def __array_namespace_info__() -> Any: ...", *classes, *made])


def stub(package: str, body: list[str]) -> str:
    text = "\n".join(body) + "\n"
    results = dict.fromkeys(found for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE) if (found := named(name)))
    text += "".join(f"class {kind}(NamedTuple):\n" + "".join(f"    {f}: Array\n" for f in fields) for kind, *fields in results)
    used = ["import builtins"] if "builtins." in text else []
    used += ["from collections.abc import Callable, Mapping, Sequence"]
    words = ("Any", "Literal", "NamedTuple", "overload")
    used += [f"from typing import {', '.join(w for w in words if re.search(rf'[^.]{w}', text))}", "", "import numpy as np"]
    return HEADER + "\n".join(used) + "\n" + package + text


def module_stub(module: Any, *sources: Mapping[str, Callable[..., Any]]) -> str:
    made = [overloads(n, *(s.get(n) for s in sources)) for n in module.__all__]
    return stub("\nfrom .arrays import Array, ArrayLike\n\n", made)


def ops_stub() -> str:
    by_module: dict[str, list[str]] = defaultdict(list)
    renamed, rows = [], []
    for name in sorted(set(OPS.__all__) - {"REGISTRY", "functions", *ops.functions.__all__}):
        found = getattr(ops, name)
        if not hasattr(sys.modules[found.__module__], found.__name__):  # a row of a table
            rows.append(f"class {name}({found.__base__.__name__}): ...")
            by_module["." + found.__base__.__module__.removeprefix("tilewright.ops.")].append(found.__base__.__name__)
            continue
        by_module["." + found.__module__.removeprefix("tilewright.ops.")].append(found.__name__)
        renamed += [] if found.__name__ == name else [f"{name} = {found.__name__}"]
    by_module[".base"].append("REGISTRY")
    last = imports({".functions": list(ops.functions.__all__)})  # `ops.matmul` is the function, not the folder
    return HEADER + "\n".join(["from . import functions as functions", *imports(by_module), *last, *renamed, *rows]) + "\n"


def stubs() -> dict[Any, str]:
    """Path -> text."""
    root = PACKAGE
    from tilewright.array.api import fft as fft_api
    from tilewright.array.api import linalg as linalg_api
    from tilewright.transform.lib.fft import FUNCTIONS as FFT
    from tilewright.transform.lib.linalg import FUNCTIONS as LINALG
    from tilewright.transform.lib.spectrograms import FUNCTIONS as SPECTROGRAMS

    return {root / "__init__.pyi": package_stub(), root / "ops" / "__init__.pyi": ops_stub(),
            root / "array" / "linalg.pyi": module_stub(linalg, linalg_api.FUNCTIONS, LINALG, polynomials.LINALG),
            root / "array" / "fft.pyi": module_stub(fft, fft_api.FUNCTIONS, FFT, SPECTROGRAMS),
            root / "array" / "random.pyi": module_stub(random, RANDOM, {"default_rng": random.default_rng})}
