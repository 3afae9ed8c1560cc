"""What tokens become on a GPU: barriers among the threads of a program, acquire and release accesses, atomics.

Barriers on shared scratch, and between accesses of global memory that tokens order, are derived from the token graph (`tile/barriers.py`)
and stand nowhere else. A release access comes after a
barrier of its program's threads (their earlier accesses happen before it, and a release passes that on); an acquire access is
followed by one. A program of one thread needs neither; a part of a warp synchronizes by `bar.warp.sync`, a block by `bar.sync`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....core.dtypes import DType
from ....core.errors import CompileError
from ....kernels.cuda.kernel import WARP
from ....tile.barriers import derive_barriers
from ....tile.ir import Instr, Kernel, TileType, Var, ViewType
from ..ptx.text import literal
from .access import Access, Address, _narrow_int
from .layout import Regs, elem_type

if TYPE_CHECKING:
    from .emit import Emitter

SCOPES = {"thread": "cta", "block": "cta", "cluster": "cluster", "device": "gpu", "system": "sys"}
_KINDS = {"add": "", "max": "", "min": "", "and": "b", "or": "b", "xor": "b", "exchange": "b"}


def planned(kernel: Kernel) -> frozenset[Instr]:
    """The accesses before which the threads of a program wait for each other."""
    ordered = any(i.tokens or (i.op == "alloc" and isinstance(i.results[0].type, ViewType) and i.results[0].type.space == "shared")
                  for i in kernel.walk())  # fmt: skip
    return frozenset(b.before for b in derive_barriers(kernel, "gpu").barriers) if ordered else frozenset()


def synchronize(e: Emitter) -> None:
    """All threads of the program: what they did before happens before what they do after."""
    if e.layout.threads > WARP:
        e.barrier()
    elif e.layout.threads > 1:
        e.k.emit(f"bar.warp.sync {e.member_mask()};")


def qualified(e: Emitter, view: Address, instr: Instr) -> Address:
    """The view with the access's ordering in its instructions."""
    order = instr.attrs.get("order")
    if order in (None, "weak"):
        return view
    return replace(view, order=f".{order}.{_scope(e, instr.attrs['scope'])}", hint="")


def _scope(e: Emitter, name: str) -> str:
    if name == "cluster" and e.arch < 90:
        raise CompileError(f"cuda: scope cluster needs sm_90a or newer, got sm_{e.arch}; use device (kernel {e.kernel.name})")
    return SCOPES[name]


def before(e: Emitter, instr: Instr) -> None:
    if instr in e.barriers_of or instr.attrs.get("order") in ("release", "acq_rel"):
        synchronize(e)


def after(e: Emitter, instr: Instr) -> None:
    if instr.attrs.get("order") in ("acquire", "acq_rel"):
        synchronize(e)


def atomic(e: Emitter, instr: Instr, view: Address, at: list[str], limits: dict[int, str], tile: Regs) -> Regs:
    """Combine a tile into memory element by element; gives what was there before (zero outside the limits)."""
    shape, fn, dtype = tile.type.shape, instr.attrs["fn"], tile.type.dtype
    access = Access(e, view, at, shape, instr.attrs["axes"], limits)
    only = e.first_thread() if e.layout.shared_by_all(shape) else None
    if only is not None and _read(e.kernel, instr.results[0]):
        raise CompileError(f"cuda: atomic {fn}: all threads of a program would need the one old value (kernel {e.kernel.name})")
    order, scope = instr.attrs.get("order") or "relaxed", _scope(e, instr.attrs.get("scope") or "device")
    name = f"atom.{'relaxed' if order == 'weak' else order}.{scope}.{view.space}.{_operation(fn, dtype, e.kernel.name)}"
    values = {}
    for piece in e.layout.pieces(shape):
        for key in piece:
            pointer, offset = access.place(key)
            inside = access.inside(key)
            if only is not None:
                inside = only if inside is None else e.f.op("and", "i1", inside, only)
            ty = elem_type(dtype)
            old = e.k.reg(ty)
            if inside is not None:
                e.k.emit(f"mov.b{8 * dtype.itemsize} {old}, {literal(ty, 0)};")
            guard = "" if inside is None else f"@{inside} "
            e.k.emit(f"{guard}{name} {old}, [{pointer}+{offset}], {_narrow_int(e.f, dtype, tile.pick(key))};")
            values[key] = old
    assert isinstance(instr.results[0].type, TileType)
    return Regs(instr.results[0].type, values)


def _operation(fn: str, dtype: DType, kernel: str) -> str:
    bits = 8 * dtype.itemsize
    name = {"exchange": "exch"}.get(fn, fn)
    if bits in (32, 64) and dtype.kind in "iu":
        return f"{name}.{'b' if _KINDS[fn] else 'u' if fn == 'add' and bits == 64 else {'i': 's', 'u': 'u'}[dtype.kind]}{bits}"
    if dtype.name in ("f32", "f64") and fn in ("add", "exchange"):
        return f"{name}.{'b' if fn == 'exchange' else 'f'}{bits}"
    raise CompileError(
        f"cuda: atomic {fn} of {dtype} is no instruction; add and exchange take f32 and f64, the others integers (kernel {kernel})"
    )


def _read(kernel: Kernel, value: Var) -> bool:
    def inside(x: Any) -> bool:
        return any(value in i.operands or any(value in b.yields or inside(b) for b in i.blocks) for i in x.body)

    return inside(kernel.body)
