"""Write a model's graph after each pass, its kernels as tile IR, LLVM IR and assembly, and one page that shows it all.
With `--target cuda`: a report, and every kernel as tile IR and PTX with registers, shared memory, occupancy and its barriers and why.

MODEL is a saved session (`model.tw`), or `module:factory`: a function without arguments that returns (PyTorch module, example
inputs), perhaps with a dict of keywords of tw.compile as third, or returns a graph, or a session.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..runtime.session import Session
    from .page.data import Inspection


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a saved session (model.tw) or module:factory")
    parser.add_argument("--target", help="cpu, cuda, or a GPU architecture like sm_90a (default: what the factory says, else cpu)")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write (default: NAME-inspect)")


def run(args: argparse.Namespace) -> int:
    from .console import progress
    from .inspection import inspect_session

    with progress(f"inspecting {args.model}") as say:
        session, imported, off = open_model(args.model, say, args.target)
        if session.model.target.kind == "cuda":
            from .inspect_cuda import inspect_cuda

            folder = Path(args.output or f"{_file_name(session.name)}-inspect")
            count = inspect_cuda(session, folder)  # type: ignore[arg-type]
            print(f"{folder / 'report.txt'} and {count - 1} files beside it")
            return 0
        data = inspect_session(session, imported, off, progress=say)
        folder = Path(args.output or f"{_file_name(session.name)}-inspect")
        count = write(data, folder)
    print(f"{folder / 'index.html'} and {count - 1} files beside it")
    return 0


def open_model(text: str, say: Callable[[str], None], wanted: str | None = None) -> tuple[Session, Graph | None, tuple[str, ...]]:
    """The session that MODEL names, the graph it was compiled from where that is known, and the passes that were off."""
    from ..compile import Stages, compile_graph, disabled, import_model, load, target_spec
    from ..runtime.session import Session

    if text.endswith(".tw") or os.path.sep in text:
        if not Path(text).is_file():
            raise InputError(f"inspect: there is no file {text}")
        return load(text), None, ()
    made = _factory(text)()
    if isinstance(made, Session):
        return made, None, ()
    parts = made if isinstance(made, tuple) else (made, ())
    if len(parts) not in (2, 3) or not isinstance(parts[1], tuple) or (len(parts) == 3 and not isinstance(parts[2], dict)):
        raise InputError(
            f"inspect: {text}() must return (module, inputs), (module, inputs, keywords), a graph or a session, got {type(made).__name__}"
        )
    options: dict[str, Any] = dict(parts[2]) if len(parts) == 3 else {}
    off = disabled(options.get("passes"))
    stages = Stages("inspect", say)
    graph, signature = import_model(
        parts[0], parts[1], options.get("kwargs"), options.get("dynamic"), options.get("dynamic_shapes"), options.get("name"), stages
    )
    target = target_spec(wanted or options.get("target", "cpu"))
    session = compile_graph(
        graph, signature, target, dtype=options.get("dtype"), disable=off, threads=options.get("threads"), stages=stages
    )
    return session, graph, off


def _factory(text: str) -> Any:
    from importlib import import_module

    module_name, _, name = text.partition(":")
    if not name:
        raise InputError(f"inspect: MODEL must be a .tw file or module:factory, got {text!r}")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: a factory usually lies in the current folder
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as e:
        raise InputError(f"inspect: cannot import {module_name}: {e}") from None
    finally:
        sys.path.remove(os.getcwd())
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError(f"inspect: {module_name} has no function {name}")
    return found


def write(data: Inspection, folder: Path) -> int:
    """Fill `folder`; gives the number of files."""
    from .page.html import page

    files = {"index.html": page(data), "report.json": json.dumps(_figures(data), indent=1)}
    for i, stage in enumerate(data.stages):
        files[f"graph/{i:02d}-{_file_name(stage.name)}.txt"] = stage.text
    for kernel in data.kernels.values():
        for ending, text in (("tile", kernel.tile), ("ll", kernel.llvm), ("s", kernel.assembly)):
            files[f"kernels/{_file_name(kernel.name)}.{ending}"] = text
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as e:
            raise InputError(f"inspect: cannot write {path}: {e.strerror}") from None
    return len(files)


def _figures(data: Inspection) -> dict[str, Any]:
    return {
        "title": data.title,
        "machine": data.machine,
        "facts": dict(data.facts),
        "compile_s": dict(data.compile_stages),
        "launches": [asdict(s) for s in data.steps],
        "arena": {"bytes": data.arena_bytes, "bound": data.arena_bound, "blocks": [asdict(b) for b in data.blocks]},
        "passes": [{"name": s.name, "nodes": s.nodes, "seconds": s.seconds, "rules": dict(s.rules)} for s in data.stages],
    }


def _file_name(text: str) -> str:
    """`text` with everything but letters, digits, dash and underscore replaced.

    >>> _file_name("tw_ab/../c d")
    'tw_ab_c_d'
    """
    return re.sub(r"[^\w-]+", "_", text).strip("_") or "model"
