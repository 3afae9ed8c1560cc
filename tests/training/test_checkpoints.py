"""Checkpoints: every bit comes back, other programs read them, and nothing that goes wrong loses the old one."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.meta.source import ROOT
from tests.shaken import HANG
from tilewright.core.errors import CheckpointError, ConfigError, FormatError

rng = fresh_rng()
Pair = namedtuple("Pair", "left right")
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
          ml_dtypes.float8_e5m2]


def bits(dtype: Any, *shape: int) -> Any:
    """Random bytes as an array: NaNs, infinities and denormals among them."""
    made = np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
    return (made & 1).astype(bool).reshape(shape) if np.dtype(dtype) == bool else made.view(dtype).reshape(shape)


def tree() -> Any:
    return {
        "every": [bits(d, 3, 5) for d in DTYPES],
        "shapes": (bits("f4"), bits("f8", 0, 3), bits("f4", 1), np.asfortranarray(bits("i4", 4, 6)), bits("f4", 6, 8)[::2, 1::3]),
        "layers.0.weight": Pair(bits("f4", 2, 3), {"deep": [bits("i8", 1), None, 3, 2.5, True, "text"]}),
        1: np.float32(0.5), "empty": ({}, [], ()), "torch": torch.randn(3, 2), "bf16": torch.randn(4).bfloat16(),
    }


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def leaves(t: Any) -> list[Any]:
    from tilewright.core.pytree import flatten
    from tilewright.runtime.arguments import is_tensor, tensor_to_numpy

    return [tensor_to_numpy(x) if is_tensor(x) else x for x in flatten(t)[0]]


def assert_same(got: Any, want: Any) -> None:
    for g, w in zip(leaves(got), leaves(want), strict=True):
        if isinstance(w, (np.ndarray, np.generic)):
            assert same_bits(g, w)
        else:
            assert g == w and type(g) is type(w)


@pytest.mark.parametrize("like", [True, False])
def test_every_bit_comes_back(tmp_path: Path, like: bool) -> None:
    want, path = tree(), tmp_path / "a.safetensors"
    tw.training.save_checkpoint(path, want, step=7, metadata={"data": "v2", "rate": [1, 0.1]})
    got = tw.training.load_checkpoint(path, want if like else None)
    assert (got.step, got.metadata) == (7, {"data": "v2", "rate": [1, 0.1]})
    assert_same(got.tree, want)
    assert list(got.tree) == list(want)
    assert type(got.tree["layers.0.weight"]) is (Pair if like else tuple)  # a file does not say what is imported
    assert all(x.flags.writeable and x.flags.c_contiguous for x in leaves(got.tree) if isinstance(x, np.ndarray))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors"]


def test_the_package_reads_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    want: Any = {"params": {"w": bits("f4", 3, 4), "h": bits("f2", 2), "b": bits(ml_dtypes.bfloat16, 5)}, "step": np.int64(3)}
    tw.training.save_checkpoint(tmp_path / "a.safetensors", want)
    got = load_file(tmp_path / "a.safetensors")
    assert sorted(got) == ["params/b", "params/h", "params/w", "step"]
    for name in ("w", "h", "b"):
        theirs = got[f"params/{name}"].view(torch.uint8).numpy()
        assert theirs.tobytes() == want["params"][name].tobytes()
    assert got["step"].item() == 3


def test_a_leaf_alone_and_other_byte_orders(tmp_path: Path) -> None:
    x = bits("f4", 5)
    for leaf in (x, x.astype(">f4") if np.isfinite(x).all() else np.arange(5.0, dtype=">f4")):
        tw.training.save_checkpoint(tmp_path / "a", leaf)
        np.testing.assert_array_equal(tw.training.load_checkpoint(tmp_path / "a").tree, leaf)


def model(width: int = 5) -> Any:
    return {"up": {"w": rng.normal(size=(3, width)).astype(np.float32), "b": np.zeros(width, np.float32)}, "scale": 2.0}


def test_another_model_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tw.training.save_checkpoint(path, model())
    other = {"up": {"w": np.zeros((3, 6), np.float32), "c": np.zeros(5)}, "down": np.zeros(1), "scale": 2}
    with pytest.raises(CheckpointError) as e:
        tw.training.load_checkpoint(path, other)
    text = str(e.value)
    assert "2 missing in the file: up/c, down" in text
    assert "1 unexpected in the file: up/b" in text
    assert "2 of another type: up/w (f32[3, 5] in the file, f32[3, 6] here), scale (float in the file, int here)" in text
    assert str(path) in text
    many = {f"p{i}": np.zeros(1) for i in range(20)}
    with pytest.raises(CheckpointError, match=r"20 missing in the file: p0, .*p7 and 12 more; 3 unexpected"):
        tw.training.load_checkpoint(path, many)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tw.training.save_checkpoint(path, model())
    whole = path.read_bytes()
    for data in [b"", whole[:7], whole[:40], whole[:-1], whole + b"x", b"\xff" * 64, whole[:8] + b"[" + whole[9:]]:
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"checkpoint: .*a\.safetensors"):
            tw.training.load_checkpoint(path)
    header = int.from_bytes(whole[:8], "little")
    for _ in range(200):
        broken, at = bytearray(whole), int(rng.integers(8 + header))
        broken[at] = int(rng.integers(256))
        path.write_bytes(broken)
        try:
            tw.training.load_checkpoint(path, model())
        except (FormatError, CheckpointError) as e:
            assert str(e).startswith(("checkpoint: ", "pytree: "))  # noqa: PT017  a changed name or note may also still be a whole file
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3)}, path)
    with pytest.raises(FormatError, match="a safetensors file that save_checkpoint did not write"):
        tw.training.load_checkpoint(path)


def test_a_lost_page_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    want = {"small": bits("f4", 3), "large": bits("u1", (1 << 20) + 5000), "other": bits("i8", 700)}
    tw.training.save_checkpoint(path, want)
    whole = path.read_bytes()
    at = whole.index(want["large"][-5000:-4900].tobytes())
    path.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
    with pytest.raises(FormatError, match=r"checkpoint: tensor 'large' is damaged at or after its byte 1048576: it does not match"):
        tw.training.load_checkpoint(path)
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    note = json.loads(header["__metadata__"]["tilewright"])
    without = {k: v for k, v in note.items() if k != "sums"}
    for changed, message in ((without, ""), (note | {"sums": note["sums"] | {"other": "00"}}, "the checksum of 'other' has 2 digits"),
                             (note | {"sums": {"other": note["sums"]["other"]}}, "there must be a checksum of every tensor"),
                             (note | {"sums": 3}, "its notes are damaged"), (without | {"Sums": note["sums"]}, "its notes are damaged"),
                             (note | {"version": 9}, "written as version 9, this is version 1")):
        text = json.dumps({**header, "__metadata__": {"tilewright": json.dumps(changed)}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
        if message:
            with pytest.raises(FormatError, match=message):
                tw.training.load_checkpoint(path)
        else:  # a file of an earlier release
            assert_same(tw.training.load_checkpoint(path, want).tree, want)


def test_a_link_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write to the folder does not choose which file is overwritten."""
    victim, shared = tmp_path / "victim.txt", tmp_path / "shared"
    victim.write_text("precious")
    shared.mkdir()
    for name in (".c.safetensors.tmp", "c.safetensors"):
        (shared / name).symlink_to(victim)
    tw.training.save_checkpoint(shared / "c.safetensors", {"w": np.ones(3, np.float32)})
    assert victim.read_text() == "precious"
    assert not (shared / "c.safetensors").is_symlink()
    assert_same(tw.training.load_checkpoint(shared / "c.safetensors").tree, {"w": np.ones(3, np.float32)})


def test_structures_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tw.training.save_checkpoint(path, model())
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    note = json.loads(header["__metadata__"]["tilewright"])
    deep: Any = "leaf"
    for _ in range(400):
        deep = ["tuple", [], [deep]]
    for bad in ("tuple", ["dict", ["a"], []], ["dict", ["a", "a"], ["leaf", "leaf"]], ["tuple", [1], ["leaf"]], ["evil", [], ["leaf"]],
                ["dict", [["a"]], ["leaf"]], [["tuple"], [], []], deep):
        text = json.dumps({**header, "__metadata__": {"tilewright": json.dumps({**note, "structure": bad})}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
        with pytest.raises(FormatError, match=r"checkpoint: (its structure cannot be read|the structure and the tensors)"):
            tw.training.load_checkpoint(path)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tw.training.save_checkpoint(path, {"x": 1})
    for bad, message in [({"x": np.zeros(2, "c16")}, "'x' has dtype complex128"), ({"x": object()}, "leaf 'x' must be an array"),
                         ({"x": np.array(["a"])}, "has dtype <U1"),
                         ({"__metadata__": np.zeros(2)}, "'__metadata__' is the name of a safetensors file's own entry")]:
        with pytest.raises(CheckpointError, match=message):
            tw.training.save_checkpoint(path, bad)
    with pytest.raises(CheckpointError, match="metadata and the keys of dicts must be JSON values"):
        tw.training.save_checkpoint(path, {}, metadata={"x": object()})
    with pytest.raises(CheckpointError, match=r"JSON values: the key \(1, 2\) of a dict is no string, number, boolean or None"):
        tw.training.save_checkpoint(path, {(1, 2): 3.0})
    with pytest.raises(CheckpointError, match=r"could not write .*No such file or directory; there is no folder .*none"):
        tw.training.save_checkpoint(tmp_path / "none" / "a", {})
    with pytest.raises(CheckpointError, match=r"could not read .*No such file"):
        tw.training.load_checkpoint(tmp_path / "none")
    assert tw.training.load_checkpoint(path).tree == {"x": 1}


def script(body: str, *args: object, **kwargs: Any) -> subprocess.Popen[str]:
    code = "import sys, numpy as np\nfrom tilewright.training import save_checkpoint\n" + textwrap.dedent(body)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **kwargs)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk without room: writing fails in the middle in the same way."""
    path, old = tmp_path / "a.safetensors", model()
    tw.training.save_checkpoint(path, old, step=3)
    before = path.read_bytes()
    run = script("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        try:
            save_checkpoint(sys.argv[1], {"w": np.zeros(100_000)})
        except Exception as e:
            print(type(e).__name__, e)
        """, path)
    out, err = run.communicate(timeout=HANG)
    assert out.startswith("CheckpointError checkpoint: could not write") and "what was there before is untouched" in out, (out, err)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert_same(tw.training.load_checkpoint(path, old).tree, old)


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Killed when all is written and not yet renamed, the worst moment; the next save deletes what it left. While it lives others may save
    under the same name: the last rename wins."""
    path, old = tmp_path / "a.safetensors", model()
    tw.training.save_checkpoint(path, old, step=3)
    run = script("""
        import os, time
        def wait(descriptor):
            print("here", flush=True)
            time.sleep(600)
        os.fsync = wait
        save_checkpoint(sys.argv[1], {"w": np.zeros(1000)})
        """, path)
    assert run.stdout is not None
    assert run.stdout.readline() == "here\n"
    tw.training.save_checkpoint(path, old, step=3)
    left = [p.name for p in tmp_path.iterdir() if p != path]
    assert len(left) == 1 and re.fullmatch(r"\.a\.safetensors\.[0-9a-f]{16}\.tmp", left[0])
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=HANG)
    got = tw.training.load_checkpoint(path, old)
    assert got.step == 3
    assert_same(got.tree, old)
    new = model()
    tw.training.save_checkpoint(path, new, step=4)
    assert_same(tw.training.load_checkpoint(path, new).tree, new)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_folder_keeps_the_last_ones(tmp_path: Path) -> None:
    folder = tw.training.CheckpointFolder(tmp_path / "run", keep=2)
    assert folder.steps == []
    with pytest.raises(CheckpointError, match=r"there must be a checkpoint in .*got steps"):
        folder.load()
    for step in (0, 5, 10, 100_000_000):
        folder.save({"x": np.float32(step)}, step=step)
    (folder.path / "notes.txt").write_text("kept")
    (folder.path / ".step-00000007.safetensors.0123456789abcdef.tmp").write_text("left by a killed process")
    folder.save({"x": np.float32(1)}, step=100_000_001, metadata={"m": 1})
    assert folder.steps == [100_000_000, 100_000_001]
    assert sorted(p.name for p in folder.path.iterdir())[0] == "notes.txt"
    assert folder.load().metadata == {"m": 1}
    assert folder.load(step=100_000_000).tree["x"] == np.float32(100_000_000)
    with pytest.raises(CheckpointError, match="there must be a checkpoint of step 5"):
        folder.load(step=5)
    with pytest.raises(ConfigError, match="keep must be at least 1"):
        tw.training.CheckpointFolder(tmp_path, keep=0)
    every = tw.training.CheckpointFolder(tmp_path / "all", keep=None)
    for step in range(5):
        every.save({}, step=step)
    assert every.steps == list(range(5))
    one = tw.training.CheckpointFolder(tmp_path / "one", keep=1)
    for step in range(3):
        one.save({}, step=step)
    assert one.steps == [2]
    one.file(1).write_text("not ours, whatever it is called")
    one.save({}, step=3)
    assert one.steps == [1, 3]
