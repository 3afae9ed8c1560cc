"""Signatures of kernels: `"T[M, K], T[K, N] -> T[M, N]"` says which arrays go in and which come out.

A name before the brackets is a dtype (`f32`) or a variable for one (`T`); names inside are sizes, equal wherever they are repeated; a
dtype without brackets is a number. Results may have sizes in terms of others (`T[N - 2]`).
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.dims import Dim, Expr, parse_dim, substitute, sym
from ..core.dtypes import ALL, DType
from ..core.errors import InputError, ParseError
from ..ir.types import TensorType

_PART = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\[([^\]]*)\])?\s*(,|->|$)")
_DTYPES = {d.name: d for d in ALL}


@dataclass(frozen=True)
class Argument:
    """One array of a signature; `dims` None: a number."""

    dtype: str
    dims: tuple[str, ...] | None

    def __str__(self) -> str:
        return self.dtype if self.dims is None else f"{self.dtype}[{', '.join(self.dims)}]"


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    text: str

    @staticmethod
    def parse(text: str, name: str) -> Signature:
        rest, side = text, 0
        found: tuple[list[Argument], list[Argument]] = ([], [])
        while rest.strip() or not (found[0] or found[1]):
            m = _PART.match(rest)
            if m is None or (m[3] == "->" and side):
                raise ParseError(f"kernel {name}: a signature reads like 'T[M, K], T[K, N] -> T[M, N]', got {text!r}")
            dims = None if m[2] is None else tuple(d.strip() for d in m[2].split(",") if d.strip())
            found[side].append(Argument(m[1], dims))
            side += m[3] == "->"
            rest = rest[m.end() :]
        if not found[1]:
            raise ParseError(f"kernel {name}: a signature names the results behind '->', got {text!r}")
        if any(a.dims is None for a in found[1]):
            raise ParseError(f"kernel {name}: a result is an array, 'T[]' one of rank 0, got {text!r}")
        return Signature(tuple(found[0]), tuple(found[1]), text)

    def bind(self, types: Sequence[TensorType], names: Sequence[str], kernel: str, constants: Mapping[str, int] | None = None) -> Bound:
        """Check the types of the arguments, and find sizes, dtypes and the types of the results. Those may have `constants` as sizes."""
        dims: dict[str, Dim] = {}
        dtypes: dict[str, DType] = dict(_DTYPES)
        origin: dict[str, str] = {}
        for want, given, name in zip(self.inputs, types, names[: len(self.inputs)], strict=True):
            self._bind_one(want, given, name, kernel, dims, dtypes, origin)
        outputs = []
        for want, name in zip(self.outputs, names[len(self.inputs) :], strict=True):
            assert want.dims is not None
            if want.dtype not in dtypes:
                raise ParseError(f"kernel {kernel}: the dtype {want.dtype} of {name} is that of no argument in {self.text!r}")
            known = {**(constants or {}), **dims}
            outputs.append(TensorType(dtypes[want.dtype], tuple(self._size(d, known, name, kernel) for d in want.dims)))
        return Bound(dims, dtypes, tuple(outputs))

    def _bind_one(self, want: Argument, given: TensorType, name: str, kernel: str, dims: dict[str, Dim], dtypes: dict[str, DType],
                  origin: dict[str, str]) -> None:
        def wrong(why: str) -> InputError:
            return InputError(f"kernel {kernel}: {name} must be {want}, got {given}; {why}")

        shape = want.dims or ()
        if len(given.shape) != len(shape):
            raise wrong(f"it has {len(given.shape)} axes instead of {len(shape)}" if want.dims is not None else "pass a number")
        known = dtypes.get(want.dtype)
        if known is None:
            dtypes[want.dtype], origin[want.dtype] = given.dtype, name
        elif known is not given.dtype:
            source = f" ({want.dtype} is the dtype of {origin[want.dtype]})" if want.dtype in origin else ""
            raise wrong(f"the dtype must be {known}{source}; cast it first")
        for text, size in zip(shape, given.shape, strict=True):
            if text.isidentifier() and text not in dims:
                dims[text], origin[text] = size, name
                continue
            expected = self._size(text, dims, name, kernel)
            if expected != size:
                source = f" ({text} comes from {origin[text]})" if text in origin else ""
                raise wrong(f"{text} is {expected}{source}, not {size}")

    @staticmethod
    def _size(text: str, dims: dict[str, Dim], name: str, kernel: str) -> Dim:
        if text.isidentifier() and text in dims:
            return dims[text]
        if text.isdigit():
            return int(text)
        symbols: dict[str, Expr] = {k: sym(k, 0) for k in dims}
        try:
            parsed = parse_dim(text, symbols)
        except Exception:
            raise ParseError(f"kernel {kernel}: the size {text!r} of {name} must be made of sizes of the arguments before it "
                             f"({', '.join(dims) or 'none'})") from None
        size = substitute(parsed, dims)
        if isinstance(size, int) and size < 0:
            raise InputError(f"kernel {kernel}: the size {text} of {name} must not be negative, got {size}")
        return size


@dataclass(frozen=True)
class Bound:
    """A signature on concrete types."""

    dims: dict[str, Dim]
    dtypes: dict[str, DType]
    outputs: tuple[TensorType, ...]
