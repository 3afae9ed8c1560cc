"""Checkpoints with other values in their header (a right length, checksums of the tensors as they are), or bytes changed anywhere."""

from __future__ import annotations

import functools
import json
import struct
import tempfile
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.core.errors import TilewrightError
from tilewright.core.pytree import flatten

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, TREE, Change, changed_bytes, changed_tree, drawn
from .files.sessions import prepare

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Case:
    bytes: bool  # whether bytes of the file change, or values of its header
    like: bool  # read into the structure of the model at hand
    changes: tuple[Change, ...]


@functools.cache
def tree() -> Any:
    rng = np.random.default_rng(1)
    return {"w": rng.standard_normal((7, 5)).astype(np.float32), "half": rng.standard_normal(9).astype(np.float16),
            "pair": Pair(np.arange(6, dtype=np.int64).reshape(2, 3), [np.zeros((0, 4)), np.float32(2.5), None, 3, "text", True]),
            "bf16": rng.standard_normal(3).astype(ml_dtypes.bfloat16),
            "deep": {"a/b": (np.ones(1100, np.uint8),), "a": {"b": 1.5}}}  # fmt: skip


@functools.cache
def whole() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        tw.training.save_checkpoint(path, tree(), step=5, metadata={"data": ["v", 2]})
        return path.read_bytes()


def draw(rng: np.random.Generator) -> Case:
    raw = bool(rng.random() < 0.5)
    return Case(raw, bool(rng.random() < 0.5), drawn(rng, BYTES if raw else TREE))


def mutated(case: Case) -> bytes:
    if case.bytes:
        return changed_bytes(whole(), case.changes)
    (n,) = struct.unpack("<Q", whole()[:8])
    header = json.loads(whole()[8 : 8 + n])
    header["__metadata__"]["tilewright"] = json.loads(header["__metadata__"]["tilewright"])  # a tree of its own
    changed = changed_tree(header, case.changes)
    strings = changed.get("__metadata__") if isinstance(changed, dict) else None
    if isinstance(strings, dict) and not isinstance(strings.get("tilewright", ""), str):
        strings["tilewright"] = json.dumps(strings["tilewright"])
    text = json.dumps(changed).encode()
    return struct.pack("<Q", len(text)) + text + whole()[8 + n :]


def run(case: Case) -> None:
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.safetensors"
        path.write_bytes(mutated(case))
        try:
            found = tw.training.load_checkpoint(path, tree() if case.like else None)
        except TilewrightError as e:
            if str(path) not in str(e):
                raise AssertionError("the error does not name the file") from e
            return
    leaves, wanted = flatten(found.tree)[0], flatten(tree())[0]
    if case.bytes:  # what is left are bytes of names, notes and numbers of the header: every array is as it was
        for a, b in zip(sorted(map(_bits, leaves)), sorted(map(_bits, wanted)), strict=True):
            assert a == b


def _bits(leaf: Any) -> str:
    return np.asarray(leaf).tobytes().hex() if isinstance(leaf, (np.ndarray, np.generic)) else ""


CAMPAIGN = Campaign(draw=draw, check=run, quick=200, memory=1024 * MB, keep=("how",))
