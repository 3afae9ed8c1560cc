"""Run an ONNX file or a saved session on arrays from files.

Each --input is a .npy file for the next input of the model, or NAME=FILE; one .npz file may hold all of them by name. Results are written
to an .npz file by the names of the outputs, or described on the terminal.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..core.errors import InputError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX file (model.onnx) or a saved session (model.tw)")
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE", help="a .npy array, or an .npz file of all inputs")
    parser.add_argument("-o", "--output", metavar="F.npz", help="where to write the results (default: describe them)")
    parser.add_argument("--target", help="cpu, cuda, or a GPU architecture like sm_90a (default: cpu)")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from ..array.api.files import write_zip
    from ..core.files import write_file

    call, names, outputs = opened(args.model, args.target)
    given = given_inputs(args.input, names)
    missing = [n for n in names if n not in given]
    if missing:
        raise InputError(f"run: the inputs {', '.join(missing)} are missing; give each as --input NAME=FILE.npy")
    out = call(*(given[n] for n in names))
    results = list(out) if isinstance(out, tuple) else [out]
    named = dict(zip(outputs or [f"output_{i}" for i in range(len(results))], results, strict=False))
    for name, value in named.items():
        print(f"{name}: {describe(value)}")
    if args.output:
        plain = {k: v for k, v in named.items() if isinstance(v, np.ndarray) and v.dtype.kind != "O"}
        write_file(args.output, lambda file: write_zip(file, plain), subject="run")
        print(f"{args.output}: {', '.join(plain)}")
    return 0


def opened(path: str, target: str | None) -> tuple[Any, list[str], list[str]]:
    """Something to call, the names of its inputs, and those of its outputs where the file has them."""
    if path.endswith(".onnx"):
        from ..onnx import InferenceSession

        session = InferenceSession(path, providers=["CUDAExecutionProvider"] if target not in (None, "cpu") else None)
        return session.session, [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    from ..compile import load

    if not os.path.isfile(path):
        raise InputError(f"run: there is no file {path}")
    saved = load(path)
    return saved, list(saved.interface.input_names), []


def given_inputs(texts: list[str], names: list[str]) -> dict[str, Any]:
    """Arrays by the names of the inputs they are for."""
    from ..array.api.files import read_numpy

    found: dict[str, Any] = {}
    rest = [n for n in names if not any(t.startswith(f"{n}=") for t in texts)]
    for text in texts:
        name, _, path = text.rpartition("=")
        data = read_numpy(Path(path), "run")
        if not isinstance(data, dict):
            if not name and not rest:
                raise InputError(f"run: there are more inputs than the model's {', '.join(names)}")
            found[name or rest.pop(0)] = data
        else:
            found.update(data)
    unknown = [n for n in found if n not in names]
    if unknown:
        raise InputError(f"run: the model has no input {unknown[0]!r}; it takes {', '.join(names)}")
    return found


def describe(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.ndarray):
        shown = np.array2string(value.reshape(-1)[:6], precision=5, separator=", ")
        return f"{value.dtype}{list(value.shape)} {shown if value.size <= 6 else shown[:-1] + ', …]'}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, dict)) else str(value)
