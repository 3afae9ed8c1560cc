"""The verifier: what makes a kernel well-formed. Every type is derived again from the operands.

Checked: every use is dominated by its definition; only operations of the closed set, each with its own operand count, attributes,
shapes and dtypes; limits and axes in range; yields match carried values; an `if` asks a rank-0 bool; memory orderings and token
types (`tokens.check` adds the rules about the token graph). Errors name the instruction as the printer shows it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ..core.dtypes import bool_
from ..core.errors import VerifyError
from . import tokens
from .ir import (
    BINARY,
    COMPARE,
    INDEX,
    INDEX_BINARY,
    ORDERINGS,
    REDUCE,
    SCOPES,
    SPACES,
    TOKEN,
    UNARY,
    Block,
    Instr,
    Kernel,
    Operand,
    TileType,
    Type,
    Var,
    ViewType,
)
from .text import instr_text

_BOOL = TileType((), bool_)
_FLOAT_UNARY = frozenset(UNARY) - {"neg", "abs", "sign", "not", "floor", "ceil", "round", "trunc"}
_BITS = frozenset(("and", "or", "xor", "shl", "shr"))
ATOMIC = ("add", "max", "min", "and", "or", "xor", "exchange")
MEMORY = frozenset(("load", "store", "atomic", "gather"))


def verify(kernel: Kernel) -> None:
    """Raise VerifyError unless the kernel is well-formed."""
    _Verifier(kernel).run()


class _Bad(Exception):
    """A broken rule; the caller knows the instruction."""


def _bad(rule: str) -> NoReturn:
    raise _Bad(rule)


def _need(ok: bool, rule: str) -> None:
    if not ok:
        raise _Bad(rule)


def _tile(x: Operand) -> TileType:
    t = x.type if isinstance(x, Var) else None
    if t.__class__ is not TileType:
        _bad(f"needs a tile operand, got {x}")
    return t  # type: ignore[return-value]


def _view(i: Instr) -> ViewType:
    x = i.operands[0] if i.operands else 0
    if not isinstance(x, Var) or not isinstance(x.type, ViewType):
        _bad(f"needs a view as first operand, got {x}")
    return x.type


def _indices(xs: Sequence[Operand]) -> None:
    for x in xs:
        if x.__class__ is not int and (not isinstance(x, Var) or x.type is not INDEX and x.type != INDEX):
            _bad(f"needs an index operand, got {x!r}")


def _count(i: Instr, n: int) -> None:
    if len(i.operands) != n:
        _bad(f"takes {n} operand{'s' if n != 1 else ''}, got {len(i.operands)}")


def _attrs(i: Instr, *allowed: str) -> None:
    for name in i.attrs:
        if name not in allowed:
            _bad(f"has no attribute {name!r}" + (f"; it may have {', '.join(allowed)}" if allowed else ""))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    out = shapes[0]
    for s in shapes[1:]:
        if s == out:
            continue
        n = max(len(out), len(s))
        a, b = (1,) * (n - len(out)) + out, (1,) * (n - len(s)) + s
        if any(x != y and x != 1 and y != 1 for x, y in zip(a, b, strict=True)):
            _bad(f"shapes {out} and {s} do not broadcast")
        out = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
    return out


def _out(i: Instr) -> TileType:
    """The declared tile type of the only result (its shape is the author's choice; the rule checks the rest)."""
    if len(i.results) != 1 or not isinstance(i.results[0].type, TileType):
        _bad("gives one tile")
    return i.results[0].type


# --- rules: each returns the result types it derives --------------------------------------------------------------------
def _index_binary(i: Instr) -> list[Type]:
    if len(i.operands) != 2:
        _count(i, 2)
    _indices(i.operands)
    if i.attrs:
        _attrs(i)
    return [INDEX]


def _index_cmp(i: Instr) -> list[Type]:
    _count(i, 2)
    _indices(i.operands)
    _attrs(i, "fn")
    _need(i.attrs.get("fn") in COMPARE, f"fn must be one of {' '.join(COMPARE)}, got {i.attrs.get('fn')!r}")
    return [_BOOL]


def _to_index(i: Instr) -> list[Type]:
    _count(i, 1)
    t = _tile(i.operands[0])
    _need(t.dtype.is_int and t.numel == 1, f"needs a one-element integer tile, got {t}")
    return [INDEX]


def _from_index(i: Instr) -> list[Type]:
    _count(i, 1)
    _indices(i.operands)
    return [TileType((), _out(i).dtype)]


def _full(i: Instr) -> list[Type]:
    _count(i, 0)
    _attrs(i, "value")
    _need("value" in i.attrs, "needs a value")
    out, value = _out(i), i.attrs["value"]
    _need(not out.dtype.is_int or int(value) == value, f"value of an integer tile must be an integer, got {value!r}")
    return [out]


def _iota(i: Instr) -> list[Type]:
    _count(i, 0)
    _attrs(i, "axis")
    out = _out(i)
    _need(0 <= i.attrs.get("axis", -1) < len(out.shape), f"axis must be in 0..{len(out.shape) - 1}, got {i.attrs.get('axis')}")
    return [out]


def _unary(i: Instr) -> list[Type]:
    _count(i, 1)
    t = _tile(i.operands[0])
    if i.op in _FLOAT_UNARY:
        _need(t.dtype.is_float, f"needs a float tile, got {t}")
    elif i.op == "not":
        _need(not t.dtype.is_float, f"needs a bool or integer tile, got {t}")
    else:
        _need(not t.dtype.is_bool, f"needs a number, got {t}")
    return [TileType(t.shape, bool_)] if i.op in ("isnan", "isinf") else [t]


def _binary(i: Instr) -> list[Type]:
    if len(i.operands) != 2:
        _count(i, 2)
    if i.attrs:
        _attrs(i, *(("contract",) if i.op in ("add", "sub", "mul") else ()))
    a, b = _tile(i.operands[0]), _tile(i.operands[1])
    if a.dtype is not b.dtype:
        _bad(f"needs one dtype, got {a} and {b}")
    if i.op in _BITS and a.dtype.is_float:
        _bad(f"needs a bool or integer tile, got {a}")
    if a is b or a.shape == b.shape:
        return [a]
    return [TileType(_broadcast((a.shape, b.shape)), a.dtype)]


def _cmp(i: Instr) -> list[Type]:
    _count(i, 2)
    _attrs(i, "fn")
    _need(i.attrs.get("fn") in COMPARE, f"fn must be one of {' '.join(COMPARE)}, got {i.attrs.get('fn')!r}")
    a, b = _tile(i.operands[0]), _tile(i.operands[1])
    _need(a.dtype is b.dtype, f"needs one dtype, got {a} and {b}")
    return [TileType(_broadcast((a.shape, b.shape)), bool_)]


def _select(i: Instr) -> list[Type]:
    _count(i, 3)
    c, a, b = (_tile(x) for x in i.operands)
    _need(c.dtype is bool_, f"needs a bool condition, got {c}")
    _need(a.dtype is b.dtype, f"needs one dtype, got {a} and {b}")
    return [TileType(_broadcast((c.shape, a.shape, b.shape)), a.dtype)]


def _fma(i: Instr) -> list[Type]:
    if len(i.operands) != 3:
        _count(i, 3)
    a, b, c = [_tile(x) for x in i.operands]
    if not (a.dtype is b.dtype is c.dtype and a.dtype.is_float):
        _bad(f"needs one float dtype, got {a}, {b} and {c}")
    if a.shape == b.shape == c.shape:
        return [c]
    return [TileType(_broadcast((a.shape, b.shape, c.shape)), c.dtype)]


def _cast(i: Instr) -> list[Type]:
    _count(i, 1)
    return [TileType(_tile(i.operands[0]).shape, _out(i).dtype)]


def _bitcast(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    _need(t.dtype.itemsize == out.dtype.itemsize and not out.dtype.is_bool, f"needs dtypes of one size, got {t.dtype} and {out.dtype}")
    return [TileType(t.shape, out.dtype)]


def _cast_types(i: Instr) -> tuple[TileType, TileType]:
    _count(i, 1)
    return _tile(i.operands[0]), _out(i)


def _reduce(i: Instr) -> list[Type]:
    _count(i, 1)
    _attrs(i, "fn", "axis")
    t, fn, axis = _tile(i.operands[0]), i.attrs.get("fn"), i.attrs.get("axis", -1)
    _need(fn in REDUCE, f"fn must be one of {' '.join(REDUCE)}, got {fn!r}")
    _need(0 <= axis < len(t.shape), f"axis must be in 0..{len(t.shape) - 1}, got {axis}")
    _need((fn in ("any", "all")) == t.dtype.is_bool, f"{fn} does not fit {t}")
    return [TileType(t.shape[:axis] + (1,) + t.shape[axis + 1:], t.dtype)]


def _broadcast_op(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    _need(_broadcast((t.shape, out.shape)) == out.shape, f"{t} does not broadcast to {out}")
    return [TileType(out.shape, t.dtype)]


def _reshape(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    _need(t.numel == out.numel, f"keeps the number of elements, got {t} and {out}")
    return [TileType(out.shape, t.dtype)]


def _transpose(i: Instr) -> list[Type]:
    _count(i, 1)
    t = _tile(i.operands[0])
    _need(len(t.shape) == 2, f"needs rank 2, got {t}")
    return [TileType((t.shape[1], t.shape[0]), t.dtype)]


def _extract(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    _attrs(i, "starts")
    starts = i.attrs.get("starts", ())
    _need(len(starts) == len(t.shape) == len(out.shape), f"needs one start and one size per axis of {t}, got starts {starts} and {out}")
    _need(all(0 <= s and s + n <= d for s, n, d in zip(starts, out.shape, t.shape, strict=True)), f"{out} at {starts} is not inside {t}")
    return [TileType(out.shape, t.dtype)]


def _mma(i: Instr) -> list[Type]:
    _count(i, 3)
    a, b, c = [_tile(x) for x in i.operands]
    _need(len(a.shape) == len(b.shape) == len(c.shape) == 2 and a.shape[0] == c.shape[0] and b.shape[1] == c.shape[1] and a.shape[1] == b.shape[0],
          f"shapes do not fit, got {a} @ {b} + {c}")
    _need(a.dtype.kind == c.dtype.kind or (a.dtype.is_int and c.dtype.is_int), f"dtypes do not fit, got {a} @ {b} + {c}")
    _need(a.dtype.is_float == b.dtype.is_float and a.dtype.itemsize <= c.dtype.itemsize, f"dtypes do not fit, got {a} @ {b} + {c}")
    return [c]


def _alloc(i: Instr) -> list[Type]:
    _count(i, 0)
    _attrs(i, "shape")
    _need(len(i.results) == 1 and isinstance(i.results[0].type, ViewType), "gives one view")
    out, shape, step = i.results[0].type, i.attrs.get("shape", ()), 1
    assert isinstance(out, ViewType)
    _need(out.space in ("local", "shared"), f"space must be local or shared, got {out.space}")
    strides: list[int | None] = []
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return [ViewType(out.dtype, tuple(reversed(strides)), out.space)]


def _subview(i: Instr) -> list[Type]:
    v = _view(i)
    _attrs(i, "keep")
    keep = i.attrs.get("keep", ())
    _need(len(i.operands) == 1 + v.rank, f"needs {v.rank} positions for {v}, got {len(i.operands) - 1}")
    _indices(i.operands[1:])
    _need(all(0 <= a < v.rank for a in keep) and len(set(keep)) == len(keep), f"keep must name distinct axes of {v}, got {keep}")
    return [ViewType(v.dtype, tuple(v.strides[a] for a in keep), v.space)]


def _order(i: Instr) -> None:
    attrs = i.attrs
    if "order" not in attrs and "scope" not in attrs:
        return
    order, scope = attrs.get("order", "weak"), attrs.get("scope")
    _need(order in ORDERINGS, f"order must be one of {' '.join(ORDERINGS)}, got {order!r}")
    _need(scope is None or scope in SCOPES, f"scope must be one of {' '.join(SCOPES)}, got {scope!r}")
    _need((order == "weak") == (scope is None), f"a scope belongs to orderings other than weak, got order {order!r} with scope {scope!r}")
    _need(not (order == "acquire" and i.op == "store") and not (order == "release" and i.op in ("load", "gather")), f"a {i.op} cannot be {order}")


def _access(i: Instr, shape: tuple[int, ...], extra: int) -> ViewType:
    """The rules that load, store and atomics share: positions, axes, limits; `extra` operands follow."""
    v, attrs = _view(i), i.attrs
    axes, limits, rank = attrs.get("axes", ()), attrs.get("limits", ()), v.rank
    n = 1 + rank + len(limits)
    if len(i.operands) != n + extra:
        _bad(f"needs {rank} positions and {len(limits)} limits for {v}, got {len(i.operands) - extra - 1} operands")
    _indices(i.operands[1:n])
    if len(axes) != len(shape):
        _bad(f"needs one view axis per tile axis, got axes {axes} for shape {shape}")
    if axes and (min(axes) < 0 or max(axes) >= rank or len(set(axes)) != len(axes)):
        _bad(f"axes must be distinct axes of {v}, got {axes}")
    if limits and (any(not 0 <= a < len(shape) for a in limits) or list(limits) != sorted(set(limits))):
        _bad(f"limits must name tile axes in order, got {limits} for shape {shape}")
    if "other" in attrs and not limits:
        _bad("other needs limits")
    _order(i)
    return v


def _load(i: Instr) -> list[Type]:
    out = _out(i)
    _attrs(i, "axes", "limits", "other", "order", "scope")
    v = _access(i, out.shape, 0)
    return [out if out.dtype is v.dtype else TileType(out.shape, v.dtype)]


def _store(i: Instr) -> list[Type]:
    _attrs(i, "axes", "limits", "order", "scope")
    _need(bool(i.operands), "needs a view and a tile")
    t = _tile(i.operands[-1])
    v = _access(i, t.shape, 1)
    if t.dtype is not v.dtype:
        _bad(f"stores {t} into {v}")
    return []


def _atomic(i: Instr) -> list[Type]:
    _attrs(i, "fn", "axes", "limits", "order", "scope")
    _need(i.attrs.get("fn") in ATOMIC, f"fn must be one of {' '.join(ATOMIC)}, got {i.attrs.get('fn')!r}")
    _need(bool(i.operands), "needs a view and a tile")
    t = _tile(i.operands[-1])
    v = _access(i, t.shape, 1)
    _need(t.dtype is v.dtype, f"combines {t} into {v}")
    return [t]


def _gather(i: Instr) -> list[Type]:
    v = _view(i)
    _attrs(i, "axis", "order", "scope")
    _count(i, 2 + v.rank)
    _indices(i.operands[1:-1])
    t, axis = _tile(i.operands[-1]), i.attrs.get("axis", -1)
    _need(t.dtype.is_int, f"needs integer indices, got {t}")
    _need(0 <= axis < v.rank, f"axis must be in 0..{v.rank - 1}, got {axis}")
    _order(i)
    return [TileType(t.shape, v.dtype)]


def _prefetch(i: Instr) -> list[Type]:
    v = _view(i)
    _attrs(i, "locality")
    _count(i, 1 + v.rank)
    _indices(i.operands[1:])
    return []


def _join(i: Instr) -> list[Type]:
    _count(i, 0)
    _need(len(i.tokens_out) == 1, "gives one token")
    return []


RULES: dict[str, Callable[[Instr], list[Type]]] = {
    **{f"index.{fn}": _index_binary for fn in INDEX_BINARY}, **dict.fromkeys(UNARY, _unary), **dict.fromkeys(BINARY, _binary),
    "index.cmp": _index_cmp, "to_index": _to_index, "from_index": _from_index, "full": _full, "iota": _iota, "cmp": _cmp, "select": _select,
    "fma": _fma, "cast": _cast, "bitcast": _bitcast, "reduce": _reduce, "broadcast": _broadcast_op, "reshape": _reshape, "transpose": _transpose,
    "extract": _extract, "mma": _mma, "alloc": _alloc, "subview": _subview, "load": _load, "store": _store, "atomic": _atomic, "gather": _gather,
    "prefetch": _prefetch, "join": _join,
}


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.defined: set[Var] = set()  # in scope
        self.ever: set[Var] = set()
        self.current: Instr | None = None

    def run(self) -> None:
        k = self.kernel
        try:
            for p in k.params:
                if not isinstance(p.type, ViewType) and p.type != INDEX:
                    _bad(f"a parameter is a view or an index, got {p!r}")
                if isinstance(p.type, ViewType) and p.type.space not in SPACES:
                    _bad(f"space must be one of {' '.join(SPACES)}, got {p!r}")
                self.define(p)
            self.define(k.pid)
            self.block(k.body)
            self.current = None
            _need(not k.body.yields and not k.body.token_yields and not k.body.params, "the body of a kernel takes and yields nothing")
        except _Bad as bad:
            place = "" if self.current is None else f"{self.current.op}: "
            shown = "" if self.current is None else f" (in `{instr_text(k, self.current)}`)"
            raise VerifyError(f"kernel {k.name}: {place}{bad}{shown}") from None
        tokens.check(k)

    def define(self, var: Var) -> None:
        if var in self.ever:
            _bad(f"%{var.name} is defined twice")
        self.defined.add(var)
        self.ever.add(var)

    def block(self, block: Block) -> None:
        defined, ever = self.defined, self.ever
        for instr in block.body:
            self.current = instr
            for o in instr.operands:
                if o.__class__ is Var and o not in defined:
                    _bad(f"uses %{o.name} before its definition")  # type: ignore[union-attr]
            if instr.tokens or instr.tokens_out:
                self.tokens(instr)
            rule = RULES.get(instr.op)
            if rule is None:
                self.control(instr)
            else:
                results = instr.results
                expected = rule(instr)
                if len(expected) != len(results) or instr.blocks:
                    _bad(f"gives {len(expected)} results and owns no block, got {len(results)} results and {len(instr.blocks)} blocks")
                if results and expected[0] is not results[0].type and expected[0] != results[0].type:
                    _bad(f"gives {expected[0]}, got {results[0].type}")
            for r in instr.results:
                if r in ever:
                    _bad(f"%{r.name} is defined twice")
                defined.add(r)
                ever.add(r)
            defined.update(instr.tokens_out)

    def tokens(self, instr: Instr) -> None:
        for t in instr.tokens:
            _need(t.type == TOKEN, f"%{t.name} is no token")
            # a token that is used before its definition may be a cycle: tokens.check prints it better than dominance can
        for t in instr.tokens_out:
            _need(t.type == TOKEN and t not in self.defined, f"%{t.name} is no new token")
        if instr.op in MEMORY:
            _need(len(instr.tokens_out) <= 1, "gives at most one token")
        elif instr.op == "alloc":
            _need(not instr.tokens and len(instr.tokens_out) <= 1, "gives at most one token and takes none")
        elif instr.op not in ("join", "for", "if"):
            _bad("is no memory operation and takes no token")

    def control(self, instr: Instr) -> None:
        if instr.op == "for":
            self.loop(instr)
        elif instr.op == "if":
            _count(instr, 1)
            _attrs(instr)
            _need(_tile(instr.operands[0]) == _BOOL, f"needs a rank-0 bool condition, got {instr.operands[0]!r}")
            _need(len(instr.blocks) == 1 and not instr.results, "owns one block and gives nothing")
            block = instr.blocks[0]
            _need(not block.params and not block.yields, "its block takes and yields nothing")
            self.inner(instr, block)
        else:
            _bad(f"{instr.op!r} is not an operation of tile IR")

    def loop(self, instr: Instr) -> None:
        _attrs(instr, "step", "unroll", "split")
        _need(len(instr.operands) >= 2, "needs a start and a stop")
        _indices(instr.operands[:2])
        step = instr.attrs.get("step", 1)
        _need(isinstance(step, int) and step > 0, f"step must be a positive integer, got {step!r}")
        _need(len(instr.blocks) == 1, "owns one block")
        block, carried = instr.blocks[0], instr.operands[2:]
        _need(len(block.params) == 1 + len(carried) == 1 + len(instr.results), f"carries {len(carried)} values, got {len(block.params) - 1} block"
              f" parameters and {len(instr.results)} results")
        _need(block.params[0].type == INDEX, "its counter is an index")
        for init, param, result in zip(carried, block.params[1:], instr.results, strict=True):
            _need(param.type == result.type and self.fits(init, param.type), f"carried types differ: starts as {init!r}, is {param!r} inside, {result!r} after")
        for p in block.params:
            self.define(p)
        self.inner(instr, block)
        _need(len(block.yields) == len(carried), f"carries {len(carried)} values, yields {len(block.yields)}")
        for y, param in zip(block.yields, block.params[1:], strict=True):
            _need(y.__class__ is int or y in self.defined, f"yields {y!r} before its definition")
            _need(self.fits(y, param.type), f"yields {y!r} for the carried {param!r}")
        self.leave(block)

    @staticmethod
    def fits(x: Operand, t: Type) -> bool:
        return t == INDEX if not isinstance(x, Var) else x.type == t

    def inner(self, instr: Instr, block: Block) -> None:
        n = len(instr.tokens)
        _need(n == len(instr.tokens_out) == len(block.token_params) == len(block.token_yields),
              f"takes {n} tokens, got {len(block.token_params)} token parameters, {len(block.token_yields)} token yields and {len(instr.tokens_out)} tokens out")
        for t in block.token_params:
            _need(t.type == TOKEN, f"%{t.name} is no token")
            self.define(t)
        self.block(block)
        self.current = instr
        for t in block.token_yields:
            _need(t.type == TOKEN, f"%{t.name} is no token")
        if instr.op == "if":
            self.leave(block)

    def leave(self, block: Block) -> None:
        """Values of a block end with it."""
        remove = self.defined.difference_update
        remove(block.params)
        for i in block.body:
            remove(i.results)


