"""The type rule of every leaf operation: operand count, attributes, shapes and dtypes; each rule returns the result types it derives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ..core.dtypes import bool_, f32, i32, i64, u32, u64
from .ir import (
    BINARY,
    COMPARE,
    INDEX,
    INDEX_BINARY,
    ORDERINGS,
    REDUCE,
    SCAN,
    SCOPES,
    SHORT,
    UNARY,
    Instr,
    Operand,
    TileType,
    Type,
    Var,
    ViewType,
)


class Broken(Exception):
    """A broken rule; the caller knows the instruction."""


def broken(rule: str) -> NoReturn:
    raise Broken(rule)


def need(ok: bool, rule: str) -> None:
    if not ok:
        raise Broken(rule)


def tile_type(x: Operand) -> TileType:
    t = x.type if isinstance(x, Var) else None
    if t.__class__ is not TileType:
        broken(f"needs a tile operand, got {x}")
    return t


def indices(xs: Sequence[Operand]) -> None:
    for x in xs:
        if x.__class__ is not int and (not isinstance(x, Var) or (x.type is not INDEX and x.type != INDEX)):
            broken(f"needs an index operand, got {x!r}")


def operand_count(i: Instr, n: int) -> None:
    if len(i.operands) != n:
        broken(f"takes {n} operand{'s' if n != 1 else ''}, got {len(i.operands)}")


def only_attrs(i: Instr, *allowed: str) -> None:
    for name in i.attrs:
        if name not in allowed:
            broken(f"has no attribute {name!r}" + (f"; it may have {', '.join(allowed)}" if allowed else ""))


BOOL = TileType((), bool_)
_FLOAT_UNARY = frozenset(UNARY) - {"neg", "abs", "sign", "not", "floor", "ceil", "round", "trunc"}
_BITS = frozenset(("and", "or", "xor", "shl", "shr"))
_WORDS = frozenset((i32, i64, u32, u64))
ATOMIC = ("add", "max", "min", "and", "or", "xor", "exchange")
MEMORY = frozenset(("load", "store", "atomic", "gather", "scatter", "tile_dot"))


def _view(i: Instr) -> ViewType:
    x = i.operands[0] if i.operands else 0
    if not isinstance(x, Var) or not isinstance(x.type, ViewType):
        broken(f"needs a view as first operand, got {x}")
    return x.type


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    out = shapes[0]
    for s in shapes[1:]:
        if s == out:
            continue
        n = max(len(out), len(s))
        a, b = (1,) * (n - len(out)) + out, (1,) * (n - len(s)) + s
        if any(x != y and x != 1 and y != 1 for x, y in zip(a, b, strict=True)):
            broken(f"shapes {out} and {s} do not broadcast")
        out = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
    return out


def _out(i: Instr) -> TileType:
    """The declared tile type of the only result (its shape is the author's choice; the rule checks the rest)."""
    if len(i.results) != 1 or not isinstance(i.results[0].type, TileType):
        broken("gives one tile")
    return i.results[0].type


# --- rules: each returns the result types it derives --------------------------------------------------------------------
def _index_binary(i: Instr) -> list[Type]:
    if len(i.operands) != 2:
        operand_count(i, 2)
    indices(i.operands)
    if i.attrs:
        only_attrs(i)
    return [INDEX]


def _index_cmp(i: Instr) -> list[Type]:
    operand_count(i, 2)
    indices(i.operands)
    only_attrs(i, "fn")
    need(i.attrs.get("fn") in COMPARE, f"fn must be one of {' '.join(COMPARE)}, got {i.attrs.get('fn')!r}")
    return [BOOL]


def _to_index(i: Instr) -> list[Type]:
    operand_count(i, 1)
    t = tile_type(i.operands[0])
    need(t.dtype.is_int and t.numel == 1, f"needs a one-element integer tile, got {t}")
    return [INDEX]


def _from_index(i: Instr) -> list[Type]:
    operand_count(i, 1)
    indices(i.operands)
    return [TileType((), _out(i).dtype)]


def _full(i: Instr) -> list[Type]:
    operand_count(i, 0)
    only_attrs(i, "value")
    need("value" in i.attrs, "needs a value")
    out, value = _out(i), i.attrs["value"]
    need(not out.dtype.is_int or int(value) == value, f"value of an integer tile must be an integer, got {value!r}")
    return [out]


def _iota(i: Instr) -> list[Type]:
    operand_count(i, 0)
    only_attrs(i, "axis")
    out = _out(i)
    need(0 <= i.attrs.get("axis", -1) < len(out.shape), f"axis must be in 0..{len(out.shape) - 1}, got {i.attrs.get('axis')}")
    return [out]


def _unary(i: Instr) -> list[Type]:
    operand_count(i, 1)
    t = tile_type(i.operands[0])
    if i.attrs:
        only_attrs(i, *(("short",) if i.op in SHORT and t.dtype is f32 else ()))
    if i.op in _FLOAT_UNARY:
        need(t.dtype.is_float, f"needs a float tile, got {t}")
    elif i.op == "not":
        need(not t.dtype.is_float, f"needs a bool or integer tile, got {t}")
    else:
        need(not t.dtype.is_bool, f"needs a number, got {t}")
    return [TileType(t.shape, bool_)] if i.op in ("isnan", "isinf") else [t]


def _binary(i: Instr) -> list[Type]:
    if len(i.operands) != 2:
        operand_count(i, 2)
    if i.attrs:
        only_attrs(i, *(("contract",) if i.op in ("add", "sub", "mul") else ("short",) if i.op in SHORT else ()))
    a, b = tile_type(i.operands[0]), tile_type(i.operands[1])
    need("short" not in i.attrs or a.dtype is f32, f"is short for f32 only, got {a}")
    if a.dtype is not b.dtype:
        broken(f"needs one dtype, got {a} and {b}")
    if i.op in _BITS and a.dtype.is_float:
        broken(f"needs a bool or integer tile, got {a}")
    if i.op == "mulhi" and a.dtype not in _WORDS:
        broken(f"needs a tile of 32 or 64 bit integers, got {a}")
    if a is b or a.shape == b.shape:
        return [a]
    return [TileType(_broadcast((a.shape, b.shape)), a.dtype)]


def _cmp(i: Instr) -> list[Type]:
    operand_count(i, 2)
    only_attrs(i, "fn")
    need(i.attrs.get("fn") in COMPARE, f"fn must be one of {' '.join(COMPARE)}, got {i.attrs.get('fn')!r}")
    a, b = tile_type(i.operands[0]), tile_type(i.operands[1])
    need(a.dtype is b.dtype, f"needs one dtype, got {a} and {b}")
    return [TileType(_broadcast((a.shape, b.shape)), bool_)]


def _select(i: Instr) -> list[Type]:
    operand_count(i, 3)
    c, a, b = (tile_type(x) for x in i.operands)
    need(c.dtype is bool_, f"needs a bool condition, got {c}")
    need(a.dtype is b.dtype, f"needs one dtype, got {a} and {b}")
    return [TileType(_broadcast((c.shape, a.shape, b.shape)), a.dtype)]


def _dot4(i: Instr) -> list[Type]:
    types = [tile_type(x) for x in i.operands]
    need(len(types) == 3 and all(t.dtype is i32 for t in types), f"needs three i32 tiles of packed bytes, got {types}")
    return [TileType(_broadcast(tuple(t.shape for t in types)), i32)]


def _dot2(i: Instr) -> list[Type]:
    types = [tile_type(x) for x in i.operands]
    need([t.dtype for t in types] == [i32, i32, f32], f"needs two i32 tiles of packed bf16 and an f32 tile, got {types}")
    return [TileType(_broadcast(tuple(t.shape for t in types)), f32)]


def _tile_dot(i: Instr) -> list[Type]:
    operand_count(i, 4)
    only_attrs(i, "rows", "cols")
    views = [x.type for x in i.operands[:3] if isinstance(x, Var) and isinstance(x.type, ViewType)]
    need(len(views) == 3 and all(v.rank == 2 and v.strides[1] == 1 for v in views), "needs three views of rank 2 with contiguous rows")
    need(views[0].dtype in (i32, f32) and views[1].dtype is views[2].dtype is i32, "multiplies words of i32 into i32 or f32")
    indices(i.operands[3:])
    rows, cols = i.attrs.get("rows", 0), i.attrs.get("cols", 0)
    need(1 <= rows <= 32 and cols in (16, 32), f"needs 1 to 32 rows and 16 or 32 columns, got {rows} and {cols}")
    return []


def _fma(i: Instr) -> list[Type]:
    if len(i.operands) != 3:
        operand_count(i, 3)
    a, b, c = [tile_type(x) for x in i.operands]
    if not (a.dtype is b.dtype is c.dtype and a.dtype.is_float):
        broken(f"needs one float dtype, got {a}, {b} and {c}")
    if a.shape == b.shape == c.shape:
        return [c]
    return [TileType(_broadcast((a.shape, b.shape, c.shape)), c.dtype)]


def _cast(i: Instr) -> list[Type]:
    operand_count(i, 1)
    return [TileType(tile_type(i.operands[0]).shape, _out(i).dtype)]


def _bitcast(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    need(t.dtype.itemsize == out.dtype.itemsize and not out.dtype.is_bool, f"needs dtypes of one size, got {t.dtype} and {out.dtype}")
    return [TileType(t.shape, out.dtype)]


def _cast_types(i: Instr) -> tuple[TileType, TileType]:
    operand_count(i, 1)
    return tile_type(i.operands[0]), _out(i)


def _reduce(i: Instr) -> list[Type]:
    operand_count(i, 1)
    only_attrs(i, "fn", "axis")
    t, fn, axis = tile_type(i.operands[0]), i.attrs.get("fn"), i.attrs.get("axis", -1)
    need(fn in REDUCE, f"fn must be one of {' '.join(REDUCE)}, got {fn!r}")
    need(0 <= axis < len(t.shape), f"axis must be in 0..{len(t.shape) - 1}, got {axis}")
    need((fn in ("any", "all")) == t.dtype.is_bool, f"{fn} does not fit {t}")
    return [TileType(t.shape[:axis] + (1,) + t.shape[axis + 1 :], t.dtype)]


def _scan(i: Instr) -> list[Type]:
    operand_count(i, 1)
    only_attrs(i, "fn")
    t = tile_type(i.operands[0])
    need(i.attrs.get("fn") in SCAN, f"fn must be one of {' '.join(SCAN)}, got {i.attrs.get('fn')!r}")
    need(bool(t.shape) and not t.dtype.is_bool, f"needs numbers along an axis, got {t}")
    return [t]


def _broadcast_op(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    need(_broadcast((t.shape, out.shape)) == out.shape, f"{t} does not broadcast to {out}")
    return [TileType(out.shape, t.dtype)]


def _reshape(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    need(t.numel == out.numel, f"keeps the number of elements, got {t} and {out}")
    return [TileType(out.shape, t.dtype)]


def _transpose(i: Instr) -> list[Type]:
    operand_count(i, 1)
    t = tile_type(i.operands[0])
    need(len(t.shape) == 2, f"needs rank 2, got {t}")
    return [TileType((t.shape[1], t.shape[0]), t.dtype)]


def _extract(i: Instr) -> list[Type]:
    t, out = _cast_types(i)
    only_attrs(i, "starts")
    starts = i.attrs.get("starts", ())
    need(len(starts) == len(t.shape) == len(out.shape), f"needs one start and one size per axis of {t}, got starts {starts} and {out}")
    need(all(0 <= s and s + n <= d for s, n, d in zip(starts, out.shape, t.shape, strict=True)), f"{out} at {starts} is not inside {t}")
    return [TileType(out.shape, t.dtype)]


def _shuffle(i: Instr) -> list[Type]:
    operand_count(i, 2)
    only_attrs(i, "order")
    a, b = [tile_type(x) for x in i.operands]
    order = i.attrs.get("order", ())
    need(a.dtype is b.dtype and len(a.shape) == len(b.shape) == 1, f"needs two rank-1 tiles of one dtype, got {a} and {b}")
    need(bool(order) and all(0 <= k < a.shape[0] + b.shape[0] for k in order), f"order must name elements of {a} and {b}, got {order}")
    return [TileType((len(order),), a.dtype)]


def _pick(i: Instr) -> list[Type]:
    operand_count(i, 2)
    only_attrs(i)
    table, index = [tile_type(x) for x in i.operands]
    need(len(table.shape) == len(index.shape) == 1, f"needs two rank-1 tiles, got {table} and {index}")
    need(index.dtype.is_int and index.dtype.itemsize == table.dtype.itemsize,
         f"indices must be integers of an element's size, got {index}")
    return [TileType(index.shape, table.dtype)]


def _mma(i: Instr) -> list[Type]:
    operand_count(i, 3)
    only_attrs(i, "precision")
    need(i.attrs.get("precision") in (None, "tf32"), f"precision must be tf32 or none, got {i.attrs.get('precision')!r}")
    a, b, c = [tile_type(x) for x in i.operands]
    need(
        len(a.shape) == len(b.shape) == len(c.shape) == 2
        and a.shape[0] == c.shape[0]
        and b.shape[1] == c.shape[1]
        and a.shape[1] == b.shape[0],
        f"shapes do not fit, got {a} @ {b} + {c}",
    )
    need(a.dtype.kind == c.dtype.kind or (a.dtype.is_int and c.dtype.is_int), f"dtypes do not fit, got {a} @ {b} + {c}")
    need(a.dtype.is_float == b.dtype.is_float and a.dtype.itemsize <= c.dtype.itemsize, f"dtypes do not fit, got {a} @ {b} + {c}")
    return [c]


def _alloc(i: Instr) -> list[Type]:
    operand_count(i, 0)
    only_attrs(i, "shape")
    need(len(i.results) == 1 and isinstance(i.results[0].type, ViewType), "gives one view")
    out, shape, step = i.results[0].type, i.attrs.get("shape", ()), 1
    assert isinstance(out, ViewType)
    need(out.space in ("local", "shared"), f"space must be local or shared, got {out.space}")
    strides: list[int | None] = []
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return [ViewType(out.dtype, tuple(reversed(strides)), out.space)]


def _subview(i: Instr) -> list[Type]:
    v = _view(i)
    only_attrs(i, "keep")
    keep = i.attrs.get("keep", ())
    need(len(i.operands) == 1 + v.rank, f"needs {v.rank} positions for {v}, got {len(i.operands) - 1}")
    indices(i.operands[1:])
    need(all(0 <= a < v.rank for a in keep) and len(set(keep)) == len(keep), f"keep must name distinct axes of {v}, got {keep}")
    return [ViewType(v.dtype, tuple(v.strides[a] for a in keep), v.space)]


def _order(i: Instr) -> None:
    attrs = i.attrs
    if "order" not in attrs and "scope" not in attrs:
        return
    order, scope = attrs.get("order", "weak"), attrs.get("scope")
    need(order in ORDERINGS, f"order must be one of {' '.join(ORDERINGS)}, got {order!r}")
    need(scope is None or scope in SCOPES, f"scope must be one of {' '.join(SCOPES)}, got {scope!r}")
    need((order == "weak") == (scope is None), f"a scope belongs to orderings other than weak, got order {order!r} with scope {scope!r}")
    need(
        not (order == "acquire" and i.op == "store") and not (order == "release" and i.op in ("load", "gather")),
        f"a {i.op} cannot be {order}",
    )


def _access(i: Instr, shape: tuple[int, ...], extra: int) -> ViewType:
    """The rules that load, store and atomics share: positions, axes, limits; `extra` operands follow."""
    v, attrs = _view(i), i.attrs
    axes, limits, rank = attrs.get("axes", ()), attrs.get("limits", ()), v.rank
    n = 1 + rank + len(limits)
    if len(i.operands) != n + extra:
        broken(f"needs {rank} positions and {len(limits)} limits for {v}, got {len(i.operands) - extra - 1} operands")
    indices(i.operands[1:n])
    if len(axes) != len(shape):
        broken(f"needs one view axis per tile axis, got axes {axes} for shape {shape}")
    if axes and (min(axes) < 0 or max(axes) >= rank or len(set(axes)) != len(axes)):
        broken(f"axes must be distinct axes of {v}, got {axes}")
    if limits and (any(not 0 <= a < len(shape) for a in limits) or list(limits) != sorted(set(limits))):
        broken(f"limits must name tile axes in order, got {limits} for shape {shape}")
    if "other" in attrs and not limits:
        broken("other needs limits")
    _order(i)
    return v


def _load(i: Instr) -> list[Type]:
    out = _out(i)
    only_attrs(i, "axes", "limits", "other", "order", "scope")
    v = _access(i, out.shape, 0)
    return [out if out.dtype is v.dtype else TileType(out.shape, v.dtype)]


def _store(i: Instr) -> list[Type]:
    only_attrs(i, "axes", "limits", "order", "scope", "past")
    need(bool(i.operands), "needs a view and a tile")
    t = tile_type(i.operands[-1])
    v = _access(i, t.shape, 1)
    if t.dtype is not v.dtype:
        broken(f"stores {t} into {v}")
    return []


def _atomic(i: Instr) -> list[Type]:
    only_attrs(i, "fn", "axes", "limits", "order", "scope")
    need(i.attrs.get("fn") in ATOMIC, f"fn must be one of {' '.join(ATOMIC)}, got {i.attrs.get('fn')!r}")
    need(bool(i.operands), "needs a view and a tile")
    t = tile_type(i.operands[-1])
    v = _access(i, t.shape, 1)
    need(t.dtype is v.dtype, f"combines {t} into {v}")
    return [t]


def _gather(i: Instr) -> list[Type]:
    v = _view(i)
    only_attrs(i, "axis", "order", "scope", "run", "masked", "limits")
    run, limited = i.attrs.get("run"), "limits" in i.attrs
    operand_count(i, 2 + v.rank + limited)
    indices([*i.operands[1 : 1 + v.rank], *i.operands[2 + v.rank :]])
    t, axis = tile_type(i.operands[1 + v.rank]), i.attrs.get("axis", -1)
    need(t.dtype.is_int, f"needs integer indices, got {t}")
    need(0 <= axis < v.rank, f"axis must be in 0..{v.rank - 1}, got {axis}")
    need(run is None or (len(t.shape) == 2 and t.shape[1] == 1), f"a gather of runs needs a column of indices, got {t}")
    need(not limited or (run is not None and i.attrs["limits"] == (1,)), "only runs have a limit")
    _order(i)
    return [TileType(t.shape if run is None else (t.shape[0], run), v.dtype)]


def _scatter(i: Instr) -> list[Type]:
    v = _view(i)
    only_attrs(i, "axis", "limits")
    limited = "limits" in i.attrs
    operand_count(i, 3 + v.rank + limited)
    indices([*i.operands[1 : 1 + v.rank], *i.operands[2 + v.rank : -1]])
    t, x, axis = tile_type(i.operands[1 + v.rank]), tile_type(i.operands[-1]), i.attrs.get("axis", -1)
    need(t.dtype.is_int, f"needs integer indices, got {t}")
    rows = len(x.shape) == 2 and t.shape == (x.shape[0], 1)
    need(rows or t.shape == x.shape, f"needs a column of indices, one a row of {x}, or one for each of its elements, got {t}")
    need(0 <= axis < v.rank, f"axis must be in 0..{v.rank - 1}, got {axis}")
    need(not limited or (rows and i.attrs["limits"] == (1,)), "only runs have a limit")
    need(x.dtype is v.dtype, f"stores {x} into {v}")
    return []


def _prefetch(i: Instr) -> list[Type]:
    v = _view(i)
    only_attrs(i, "locality")
    operand_count(i, 1 + v.rank)
    indices(i.operands[1:])
    return []


CALL_TYPES = ("ptr", "i64", "i32", "f32", "f64")


def _call(i: Instr) -> list[Type]:
    """A function of the host at a run-time address: views go as pointers to their first element, the rest by value."""
    only_attrs(i, "kinds")
    kinds = i.attrs.get("kinds", ())
    need(bool(i.operands), "needs the address of a function")
    need(len(i.operands) == 1 + len(kinds), f"needs an address and one operand for each of {kinds}, got {len(i.operands)} operands")
    indices(i.operands[:1])
    for x, kind in zip(i.operands[1:], kinds, strict=True):
        need(kind in CALL_TYPES, f"kinds are of {' '.join(CALL_TYPES)}, got {kind!r}")
        if kind == "ptr":
            need(isinstance(x, Var) and isinstance(x.type, ViewType), f"a pointer is a view, got {x!r}")
        elif kind in ("i64", "i32"):
            indices([x])
        else:
            need(tile_type(x).shape == () and tile_type(x).dtype.name == kind, f"needs a number of {kind}, got {x!r}")
    return []


def _join(i: Instr) -> list[Type]:
    operand_count(i, 0)
    need(len(i.tokens_out) == 1, "gives one token")
    return []


RULES: dict[str, Callable[[Instr], list[Type]]] = {
    **{f"index.{fn}": _index_binary for fn in INDEX_BINARY},
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    "index.cmp": _index_cmp,
    "to_index": _to_index,
    "from_index": _from_index,
    "full": _full,
    "iota": _iota,
    "cmp": _cmp,
    "select": _select,
    "fma": _fma,
    "dot4": _dot4,
    "dot2": _dot2,
    "tile_dot": _tile_dot,
    "cast": _cast,
    "bitcast": _bitcast,
    "reduce": _reduce,
    "scan": _scan,
    "broadcast": _broadcast_op,
    "reshape": _reshape,
    "transpose": _transpose,
    "extract": _extract,
    "shuffle": _shuffle,
    "pick": _pick,
    "mma": _mma,
    "alloc": _alloc,
    "subview": _subview,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "gather": _gather,
    "scatter": _scatter,
    "prefetch": _prefetch,
    "call": _call,
    "join": _join,
}
