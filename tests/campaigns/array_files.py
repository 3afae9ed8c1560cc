"""Files of Arrays (.npy, .npz, .safetensors) with changed headers or bytes: an error that names the file, or arrays that can be used."""

from __future__ import annotations

import functools
import io
import json
import struct
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.array.api.files import write_zip

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, TREE, Change, changed_bytes, changed_tree, drawn

KINDS = (".npy", ".npz", ".safetensors")


@dataclass(frozen=True)
class Case:
    kind: str
    inner: bool  # a member of the zip file or the header is changed and the rest made to fit; or bytes of the whole file
    changes: tuple[Change, ...]


@functools.cache
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((5, 3)).astype(np.float32), "ids": np.arange(6).reshape(2, 3).T, "b": np.array([True, False, True]),
            "e": np.zeros((0, 4), np.float16), "s": np.array(2.5), "c": np.ones(2, np.complex64), "big": np.arange(3, dtype=">i4")}


@functools.cache
def header_text(name: str) -> tuple[bytes, bytes]:
    """The text in the header of an array, and its elements."""
    made = io.BytesIO()
    np.save(made, arrays()[name])
    raw = made.getvalue()
    (n,) = struct.unpack("<H", raw[8:10])
    return raw[10 : 10 + n], raw[10 + n :]


@functools.cache
def whole(kind: str) -> bytes:
    if kind == ".npz":
        made = io.BytesIO()
        write_zip(made, arrays())
        return made.getvalue()
    if kind == ".npy":
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header_text("w")[0])) + b"".join(header_text("w"))
    with tempfile.TemporaryDirectory() as folder:
        tw.save(f"{folder}/a.safetensors", {k: a for k, a in arrays().items() if k != "big"})
        return Path(f"{folder}/a.safetensors").read_bytes()


def draw(rng: np.random.Generator) -> Case:
    kind, inner = str(rng.choice(KINDS)), bool(rng.random() < 0.6)
    return Case(kind, inner, drawn(rng, TREE if inner and kind == ".safetensors" else BYTES))


def mutated(case: Case) -> bytes:
    if not case.inner:
        return changed_bytes(whole(case.kind), case.changes)
    if case.kind == ".safetensors":
        (n,) = struct.unpack("<Q", whole(case.kind)[:8])
        text = json.dumps(changed_tree(json.loads(whole(case.kind)[8 : 8 + n]), case.changes)).encode()
        return struct.pack("<Q", len(text)) + text + whole(case.kind)[8 + n :]
    name = sorted(arrays())[case.changes[0].at % len(arrays())] if case.changes else "w"
    text, data = header_text(name)
    text = changed_bytes(text, case.changes)[:60000]
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
    if case.kind == ".npy":
        return member
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(f"{name}.npy", member)
    return made.getvalue()


def run(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"m{case.kind}"
        path.write_bytes(mutated(case))
        try:
            found = tw.load_arrays(path)
        except tw.FormatError as e:
            assert str(path) in str(e), f"the error does not name the file: {e}"
            assert len(str(e)) < 2000, f"an error of {len(str(e))} characters"
            return
        for a in found.values() if isinstance(found, dict) else [found]:
            assert a.nbytes <= 1 << 16
            b = np.asarray(a)
            if b.dtype.kind == "b":
                assert b.size == 0 or b.view(np.uint8).max() <= 1
            if b.dtype == np.float32:  # one kernel is compiled, not one for each dtype
                np.testing.assert_array_equal(np.asarray(a + a), b + b)


CAMPAIGN = Campaign(draw=draw, check=run, quick=200, memory=1024 * MB, keep=("kind",))
