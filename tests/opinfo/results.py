"""The scores of all ops (`results.jsonl` beside this file, a line an op) and the page made from them (docs/internals/opinfo.md)."""

from __future__ import annotations

import fcntl
import json
import textwrap
from pathlib import Path
from typing import Any

from tests.opinfo.excluded import EXCLUDED, WITHOUT_GRADIENT

FILE = Path(__file__).with_name("results.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "opinfo.md"
FORWARD = ("f32", "i64")
KINDS = (*FORWARD, "grad", "error")

Record = dict[str, Any]  # kind -> {"samples", "failed", "reasons"}; or "stopped" -> what ended the run


def load(path: Path = FILE) -> dict[str, Record]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {r.pop("op"): r for r in lines}


def update(new: dict[str, Record], path: Path = FILE) -> None:
    """Replace the records of these ops; several runs may do so at once."""
    path.touch()
    with open(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = load(path) | new
        text = "".join(json.dumps({"op": k, **records[k]}, ensure_ascii=False) + "\n" for k in sorted(records))
        path.write_text(text)  # in place: the lock is the file's


def passes(record: Record, kinds: tuple[str, ...]) -> bool:
    """Some sample of one of these kinds ran, and none failed."""
    found = [record[k] for k in kinds if k in record]
    return "stopped" not in record and any(f["samples"] for f in found) and not any(f["failed"] for f in found)


def page(records: dict[str, Record]) -> str:
    """docs/internals/opinfo.md."""
    mapped = {k: r for k, r in records.items() if k not in EXCLUDED}
    forward = [k for k, r in mapped.items() if passes(r, FORWARD)]
    grad = [k for k, r in mapped.items() if passes(r, ("grad",))]
    with_grad = [k for k, r in mapped.items() if r.get("grad", {}).get("samples")]
    error = [k for k in forward if mapped[k].get("error", {}).get("samples")]
    silent = [k for k in error if mapped[k]["error"]["failed"]]
    samples, wrong = (sum(mapped[k]["error"][what] for k in error) for what in ("samples", "failed"))
    lines = [
        "# PyTorch's OpInfo database",
        "",
        *_wrapped(
            "Every entry of `torch.testing._internal.common_methods_invocations.op_db`, imported by the PyTorch frontend, compiled for the "
            "CPU and compared with PyTorch: results in f32 and i64, gradients in f32 with random cotangents, and error samples, which must "
            "raise an error of Tilewright's own; what torch.export says on the way there counts when it is PyTorch's complaint about the "
            "call, not when it is something that export cannot do, or an accident. An op passes when all its samples do. Written by "
            "`python tests/opinfo/score.py` (see there), never by hand."
        ),
        "",
        "| | ops |",
        "|---|---|",
        f"| entries of the database | {len(records)} |",
        f"| pass all forward samples (f32, i64) | **{len(forward)}** |",
        f"| pass all gradient samples (f32) | **{len(grad)}** of {len(with_grad)} that have some |",
        f"| passing ops with error samples, all of which raise an error of the right kind | {len(error) - len(silent)} of {len(error)} |",
        f"| error samples of those ops that raise an error of the right kind | {samples - wrong} of {samples} |",
        f"| excluded, for the reasons below | {len(records) - len(mapped)} |",
        "",
        "## Excluded",
        "",
        "| op | why |",
        "|---|---|",
        *(f"| `{k}` | {EXCLUDED[k]} |" for k in sorted(records) if k in EXCLUDED),
        *(f"| `{k}` (gradients) | {WITHOUT_GRADIENT[k]} |" for k in sorted(records) if k in WITHOUT_GRADIENT),
        "",
        "## Not passing",
        "",
        *_wrapped("The first failing sample of each. A run ends at three different failures: at least as many fail as are counted."),
        "",
        "| op | what | failed | first reason |",
        "|---|---|---|---|",
    ]
    for k in sorted(mapped):
        lines += _failures(k, mapped[k])
    lines += ["", "## Passing", "", "Gradients too unless marked ¹ (gradients fail) or ² (has none).", ""]
    marks = {k: "" if k in grad else "¹" if k in with_grad else "²" for k in forward}
    lines += [*_wrapped(", ".join(f"`{k}`{marks[k]}" for k in sorted(forward))), ""]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def _failures(name: str, record: Record) -> list[str]:
    if "stopped" in record:
        return [f"| `{name}` | all | | {_cell(record['stopped'])} |"]
    if not any(record.get(k, {}).get("samples") for k in FORWARD):
        return [f"| `{name}` | forward | | has no samples in f32 or i64 |"]
    found = []
    for kind in KINDS:
        score = record.get(kind)
        if score and score["failed"]:
            found.append(f"| `{name}` | {kind} | {score['failed']} of {score['samples']} | {_cell(score['reasons'][0])} |")
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
