"""The text of what a kernel found wrong: op, rule, values, the user's line."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.dims import evaluate
from ..core.errors import ExecutionError
from ..kernels.launch import CLAIMED, Launch, Native, Pointer, Site, Word
from .native import layout as L

USERS = "a kernel of the user's"  # the note of launches of the kernel language
LABELS = frozenset(("softmax_cross_entropy", "cross_entropy_loss", "nll_loss_forward", "nll_loss", "nll_loss2d_forward", "nll_loss_nd"))


RAISED: dict[int, str] = {}  # what functions of the host raised, by the number in the error block


def fault(launch: Launch, block: Sequence[int], env: Mapping[str, int], model: str, when: str = "", step: int = 0) -> ExecutionError:
    """The error for one error block: code, site, position, value. `step` is the launch's number."""
    code, number, position, value = (int(v) for v in block)
    code &= ~CLAIMED
    if code == L.RAISED:
        return ExecutionError(f"{launch.sites[0].op if launch.sites else launch.name}: {RAISED.pop(value, 'raised an error')}"
                              + (f" ({launch.sites[0].place})" if launch.sites and launch.sites[0].place else ""))
    if code == L.OUT_OF_BOUNDS:
        return _outside(launch, step, number, position, value, env, model)
    site = launch.sites[number] if 0 <= number < len(launch.sites) else Site(launch.name)
    where = ", ".join(part for part in (site.place, f"in {model}" if model else "", when) if part)
    return ExecutionError(f"{site.op}: {_what(code, site, position, value, env)}" + (f" ({where})" if where else ""))


def _outside(launch: Launch, step: int, view: int, byte: int, program: int, env: Mapping[str, int], model: str) -> ExecutionError:
    """An access that a checked kernel did not make."""
    views = [a for a in launch.arguments if not isinstance(a, (Native, Word))]
    buffer = views[view].buffer if 0 <= view < len(views) and isinstance(views[view], Pointer) else None  # type: ignore[union-attr]
    what = "its local memory" if buffer is None else f"argument {view} ({buffer}), which has {evaluate(buffer.nbytes, env):,} bytes"
    who = f"kernel {launch.kernel.name} of launch {step} ({launch.name})"
    if launch.note == USERS:
        return ExecutionError(f"checks: {who} must stay inside its arrays, got byte {byte:,} of {what}, in program {program}; run it with "
                              ".debug(...) to see the line" + (f" (in {model})" if model else ""))
    return ExecutionError(f"checks: {who} must stay inside its buffers, got byte {byte:,} of {what}, in program {program}; "
                          "this is a defect of Tilewright, report it with the model" + (f" (in {model})" if model else ""))


def _what(code: int, site: Site, position: int, value: int, env: Mapping[str, int]) -> str:
    if code == L.BAD_LOGITS:
        return f"the largest logit is NaN or infinite, in row {position}"
    if code == L.SINGULAR:
        return f"the matrix is singular, got a pivot of 0 in column {value} of matrix {position}"
    if code == L.NOT_POSITIVE:
        return f"the matrix is not positive definite, got row {value} of matrix {position}"
    if code == L.DIVISION:
        return f"integers are not divided by 0, got {value} and 0 at position {position}; use where(d == 0, 1, d) for the divisor d"
    if code == L.CAPACITY:
        return f"the tile lists of camera {position} need {value:,} entries, more than their capacity; pass capacity={value} or more"
    size = None if site.size is None else evaluate(site.size, env)
    if code == L.POSITION:
        return f"the position must be in 0..{'n' if size is None else size - 1}, got {value}, in program {position}"
    if size is None:
        return f"index out of range, got {value} at position {position}"
    if site.op == "multinomial":  # ops/random/draws.py asks for an entry that is not there
        return f"weights must be finite, not negative and not all 0, got others in row {position}"
    if site.op in LABELS:
        return f"label {value} is out of range for {size} classes, at position {position}"
    return f"index out of range, got {value} at position {position}; must be in 0..{size - 1}" if size else \
        f"index out of range, got {value} at position {position}; the axis is empty"
