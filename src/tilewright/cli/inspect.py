"""Write a model's graph after each pass, its kernels as tile IR, LLVM IR and assembly, and one page that shows it all.
With `--target cuda`: a report, and every kernel as tile IR and PTX with registers, shared memory, occupancy and its barriers and why.

MODEL is a saved session (`model.tw`), an ONNX file (`model.onnx`), a language model (`model.gguf`, or a folder with config.json and
safetensors), or `module:factory`: a function without arguments that returns (PyTorch module, example inputs), perhaps with a dict of
keywords of tw.compile as third, or returns a graph, or a session. For a PTX file (`kernel.ptx`), whoever wrote it, every way is printed
on which threads can miss a barrier.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.files import write_folder

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..runtime.session import Session
    from .console import Step as Progress
    from .page.data import Inspection


def arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "a .tw, .onnx, .gguf or .ptx file, smollm2, a folder of a language model, or module:factory"
    parser.add_argument("model", metavar="MODEL", help=kinds)
    parser.add_argument("--target", help="cpu, cuda, or a GPU architecture like sm_90a (default: what the factory says, else cpu)")
    parser.add_argument("--at", metavar="DIM=N,…", default="", help="sizes of dynamic dims for costs and times, like B=1,S=16")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write (default: NAME-inspect)")


def run(args: argparse.Namespace) -> int:
    from ..llm.names import PACKAGES, packaged
    from .console import progress

    if args.model.lower() in PACKAGES:
        args.model = str(packaged(args.model.lower()))
    if args.model.endswith(".ptx"):
        return _barriers(Path(args.model))
    with progress(f"inspecting {args.model}") as say:
        if args.model.endswith(".gguf") or os.path.isdir(args.model):
            return _language_model(args, say)
        session, imported, off = open_model(args.model, say, args.target)
        return _written(session, imported, off, Path(args.output or f"{_file_name(session.name)}-inspect"), say, sizes(args.at))


def sizes(text: str) -> dict[str, int]:
    """`B=1,S=16` as names and numbers.

    >>> sizes("B=1,S=16")
    {'B': 1, 'S': 16}
    """
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if not number.strip().isdigit():
            raise InputError(f"inspect: --at takes sizes like B=1,S=16, got {text!r}")
        found[name.strip()] = int(number)
    return found


def _written(session: Any, imported: Graph | None, off: tuple[str, ...], folder: Path, say: Progress,
             at: dict[str, int] | None = None) -> int:
    from .inspection import inspect_session

    if session.model.target.kind == "cuda":
        from .inspect_cuda import inspect_cuda

        name, count, findings = "report.txt", *inspect_cuda(session, folder)
    else:
        data = inspect_session(session, imported, off, progress=say, at=at)
        name, count, findings = "index.html", write(data, folder), data.findings
    print(f"{folder / name} and {count - 1} files beside it")
    for finding in findings:
        print(f"slow: {finding}")
    return 0


def _language_model(args: argparse.Namespace, say: Progress) -> int:
    """A folder for its program; on a GPU for each of its three."""
    from ..llm.model import load_llm

    with load_llm(args.model, target=args.target or "cpu", progress=say) as llm:
        folder = Path(args.output or f"{_file_name(llm.name)}-inspect")
        for name, session in llm.programs().items():
            at = sizes(args.at) or {"P": 0, "S": min(16, llm.context_length)}  # a short prompt
            _written(session, None, (), folder / _file_name(name), say, at)
    return 0


def _barriers(path: Path) -> int:
    """What the analyser says of a PTX file; 1 where threads can miss a barrier."""
    from ..target.cuda.ptx.flow import parse
    from ..target.cuda.safety.barrier_safety import check

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"inspect: cannot read {path}: {e}") from None
    functions, found = parse(text), check(text)
    if not functions:
        raise InputError(f"inspect: {path} has no function with a body; is it PTX?")
    for finding in found:
        print(finding)
    counts = f"{len(functions)} function{'s' * (len(functions) > 1)}, {len(found)} finding{'s' * (len(found) != 1)}"
    print(f"{path}: {counts}: {'threads can miss a barrier' if found else 'no thread can miss a barrier'}")
    return 1 if found else 0


def open_model(text: str, say: Callable[[str], None], wanted: str | None = None) -> tuple[Session, Graph | None, tuple[str, ...]]:
    """The session that MODEL names, the graph it was compiled from where that is known, and the passes that were off."""
    from ..compile import Stages, compile_graph, disabled, import_model, load, target_spec
    from ..runtime.session import Session

    if text.endswith(".onnx"):
        return _onnx(text, wanted)
    if text.endswith(".tw") or os.path.sep in text:
        if not os.path.isfile(text):
            raise InputError(f"inspect: there is no file {text}")
        saved = load(text)
        has = saved.model.target
        if wanted is not None and (target_spec(wanted).kind != has.kind or (wanted.startswith("sm_") and wanted != has.cpu)):
            raise InputError(f"inspect: {text} was compiled for {has.describe()}, not for {wanted}; inspect what it was made from")
        return saved, None, ()
    made = _factory(text)()
    if isinstance(made, Session):
        return made, None, ()
    parts = made if isinstance(made, tuple) else (made, ())
    if made is None or len(parts) not in (2, 3) or not isinstance(parts[1], tuple) or (len(parts) == 3 and not isinstance(parts[2], dict)):
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


def _onnx(path: str, wanted: str | None) -> tuple[Session, Graph | None, tuple[str, ...]]:
    from ..compile import compile as compile_model
    from ..runtime.session import Session

    session = compile_model(path, target=wanted)
    if not isinstance(session, Session) and hasattr(session, "report"):
        raise InputError(f"inspect: {path} is not one graph; its parts are\n{session.report()}")
    return session, None, ()


def _factory(text: str) -> Any:
    from importlib import import_module

    module_name, _, name = text.partition(":")
    if not name:
        kinds = "a .tw, .onnx, .gguf or .ptx file, a folder of a language model, or module:factory"
        raise InputError(f"inspect: MODEL must be {kinds}, got {text!r}")
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
    try:
        signature(found).bind()
    except TypeError as e:
        raise InputError(f"inspect: {text} must be a function without arguments: {e}") from None
    except ValueError:  # a function of C says nothing of its arguments
        pass
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
    return write_folder(folder, files, subject="inspect")


def _figures(data: Inspection) -> dict[str, Any]:
    return {
        "title": data.title,
        "machine": data.machine,
        "facts": dict(data.facts),
        "compile_s": dict(data.compile_stages),
        "launches": [asdict(s) for s in data.steps],
        "lint": data.findings,
        "arena": {"bytes": data.arena_bytes, "bound": data.arena_bound, "blocks": [asdict(b) for b in data.blocks]},
        "passes": [{"name": s.name, "nodes": s.nodes, "seconds": s.seconds, "rules": dict(s.rules)} for s in data.stages],
    }


def _file_name(text: str) -> str:
    """`text` with everything but letters, digits, dash and underscore replaced.

    >>> _file_name("tw_ab/../c d")
    'tw_ab_c_d'
    """
    return re.sub(r"[^\w-]+", "_", text).strip("_") or "model"
