"""Memory that comes from and goes to other libraries and files, in forms that break careless readers."""
from __future__ import annotations

import array
import copy
import ctypes
import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ArgumentError, FileError, FormatError, InputError


class Capsule:
    """A producer that always gives the same capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_a_capsule_is_used_once() -> None:
    for capsule in (torch.utils.dlpack.to_dlpack(torch.arange(3.0)), tw.arange(3, dtype=tw.float32).__dlpack__(max_version=(1, 0))):  # type: ignore[attr-defined]
        assert tw.from_dlpack(Capsule(capsule)).tolist() == [0, 1, 2]
        with pytest.raises(InputError, match="the capsule was used before"):
            tw.from_dlpack(Capsule(capsule))
    with pytest.raises(ArgumentError, match=r"lies on device \(8, 0\); move it to the CPU first"):
        tw.from_dlpack(Capsule(None, (8, 0)))
    with pytest.raises(ArgumentError, match="needs an object with __dlpack__, got a PyCapsule"):
        tw.from_dlpack(torch.utils.dlpack.to_dlpack(torch.arange(3.0)))  # type: ignore[attr-defined]


def test_layouts_and_dtypes_through_dlpack() -> None:
    x = tw.arange(12, dtype=tw.float32).reshape(3, 4)
    for view in (x[::-1], x.T[:, ::-2], x[1:1], x[0, 0], tw.broadcast_to(x[0], (2, 4)), x[:, 1:3]):
        assert torch.from_dlpack(view).tolist() == np.from_dlpack(view).tolist() == tw.from_dlpack(view).tolist() == view.tolist()  # type: ignore[attr-defined]
    with pytest.raises(BufferError, match="negative strides cannot be exported without a copy"):
        x[::-1].__dlpack__(copy=False)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int8):
        t = torch.ones(3).to(dtype)
        back = torch.from_dlpack(tw.from_dlpack(t))  # type: ignore[attr-defined]
        assert back.dtype is dtype and back.float().tolist() == [1, 1, 1] if not dtype.is_complex else back.tolist() == t.tolist()


def test_memory_of_others_is_never_written() -> None:
    for flag in (True, False):
        a = np.ones(3, np.float32)
        a.setflags(write=flag)
        x = tw.asarray(a)
        x[0] = 5
        x += 1
        assert a.tolist() == [1, 1, 1] and x.tolist() == [6, 2, 2]


def test_strange_numpy_arrays() -> None:
    assert (tw.asarray(np.arange(3, dtype=">f4")) + 1).tolist() == [1, 2, 3]
    assert (tw.asarray(np.zeros(3, [("a", "f4"), ("b", "i1")])["a"]) + 1).tolist() == [1, 1, 1]  # strides of 5 bytes
    assert tw.exp(tw.asarray(np.frombuffer(b"\0" * 13, "u1")[1:].view("f4"))).tolist() == [1, 1, 1]  # not aligned
    for bad in (np.array([1, None], object), np.zeros(3, [("a", "f4"), ("b", "i4")]), np.array(["a"]), np.array(["2020-01-01"], "M8[D]"),
                np.zeros(2, "V4"), None, [2**70]):
        with pytest.raises(ArgumentError, match=r"asarray: elements of .* is not one of bool i8"):
            tw.asarray(bad)
    with pytest.raises(ArgumentError, match="a masked array would lose its mask"):
        tw.asarray(np.ma.masked_array([1.0, 2.0], [0, 1]))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a masked array would lose its mask"):
        tw.asarray([np.ma.masked_array([1.0, 2.0], [False, True]), [3.0, 4.0]])
    with pytest.raises(ArgumentError, match="a masked array would lose its mask"):
        tw.arange(3)[np.ma.masked_array([1, 2], [False, True])]


def test_buffers_keep_their_dtype_and_memory() -> None:
    numbers = array.array("d", [1, 2])
    x = tw.asarray(numbers)
    numbers[0] = 7
    assert x.dtype == tw.float64 and x.tolist() == [7, 2]
    assert tw.asarray(memoryview(np.arange(3, dtype=np.int16))).dtype == tw.int16  # type: ignore[arg-type]
    assert tw.asarray((ctypes.c_int32 * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    assert memoryview(x).format == "d" and bytes(tw.asarray([1, 2], dtype=tw.uint8)) == b"\x01\x02"


def test_torch_asarray_does_not_read_the_bytes_of_an_array() -> None:
    x = tw.arange(6).reshape(2, 3)
    with pytest.raises((RuntimeError, ValueError, BufferError)):
        torch.asarray(x)
    assert torch.as_tensor(x).tolist() == x.torch().tolist() == x.tolist()


def test_numpy_functions_that_write_their_argument() -> None:
    x = tw.zeros(3)
    y = x.view()
    np.add.at(x, [0, 0, 2], 1)
    assert x.tolist() == [2, 0, 1] and y.tolist() == [0, 0, 0]
    np.copyto(y, 7)  # type: ignore[arg-type]
    assert y.tolist() == [7, 7, 7] and x.tolist() == [2, 0, 1]
    made = np.frompyfunc(lambda v: [v], 1, 1)(x)
    assert type(made) is np.ndarray and made.dtype == object


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    """An array that maps the file it is written to is read while the file is there; names are any text; a failure leaves no file."""
    x = np.arange(100_000, dtype=np.float32)
    for ending, one in ((".npy", True), (".npz", False), (".safetensors", False)):
        path = tmp_path / f"x{ending}"
        tw.save(path, x if one else {"file": x, "self": x > 3, "a/b.npy": x[::2]})
        for _ in range(2):
            tw.save(path, tw.load_arrays(path))
        found = tw.load_arrays(path)
        for name, wanted in {"file": x, "self": x > 3, "a/b.npy": x[::2]}.items() if not one else [("", x)]:
            np.testing.assert_array_equal(np.asarray(found if one else found[name]), wanted)
        assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing is left beside it"
        path.unlink()
        with pytest.raises(FileError, match=r"save: could not write .*missing"):
            tw.save(tmp_path / "missing" / path.name, x if one else {"x": x})
        with pytest.raises(FileNotFoundError, match=r"load_arrays: could not read .*/x\."):
            tw.load_arrays(path)
        os.mkfifo(path)
        with pytest.raises(FileError, match="it is no regular file"):
            tw.load_arrays(path)
        path.unlink()
    with pytest.raises(ArgumentError, match="save: names must differ as text, got 1, '1'"):
        tw.save(tmp_path / "x.npz", {1: x, "1": x})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="cannot hold float32 by the name '__metadata__'"):
        tw.save(tmp_path / "x.safetensors", {"__metadata__": x})


def test_files_are_not_trusted(tmp_path: Path) -> None:
    def told(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match="load_arrays: ") as found:
            tw.load_arrays(tmp_path / name)
        assert str(tmp_path / name) in str(found.value)
        return str(found.value)

    def npy(kind: str, shape: tuple[int, ...]) -> bytes:
        header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header

    def zipped(name: str, data: bytes, how: int = zipfile.ZIP_DEFLATED) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", how) as z:
            z.writestr(name, data)
        return made.getvalue()

    huge = npy("<f4", (1099511627776,))
    assert "it is cut short, float32[1099511627776] needs 4,398,046,511,104 bytes" in told("a.npy", huge)
    assert "needs 4,398,046,511,104 bytes" in told("a.npz", zipped("x.npy", huge))
    assert "impossible shape" in told("a.npy", npy("<f4", (0, 4611686018427387904, 4)))
    assert "must hold numbers, got float128" in told("a.npy", npy("<f16", (1,)) + bytes(16))
    assert "'notes.txt' is no array" in told("a.npz", zipped("notes.txt", b"text"))
    assert "an .npy file; its name must say so" in told("a.npz", npy("<i8", ()) + bytes(8))
    whole = zipped("x.npy", npy("|u1", (4000,)) + bytes(range(200)) * 20)
    assert "an .npz file; its name must say so" in told("a.npy", whole)
    told("a.npz", whole[:60] + bytes(30) + whole[90:])  # a damaged stream
    long = npy("|u1", (1 << 24,)) + bytes(1 << 24)
    for how in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):  # 16 MiB in a few hundred bytes
        assert "'x.npy' must be stored or deflated, got compression" in told("a.npz", zipped("x.npy", long, how))
    size = struct.pack("<L", len(long))
    assert "declares 4,294,967,280 bytes, which its 16," in told("a.npz", zipped("x.npy", long).replace(size, b"\xf0\xff\xff\xff"))
    twice = io.BytesIO(whole)
    with zipfile.ZipFile(twice, "a") as z:  # a second name for the bytes of the first
        z.filelist.append(copy.copy(z.filelist[0]))
        z.filelist[1].filename, z._didModify = "y.npy", True  # type: ignore[attr-defined]
    assert "its members overlap" in told("a.npz", twice.getvalue())
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for header in ([1], {"x": 3}, {"x": entry | {"shape": [-2]}}, {"x": entry | {"shape": [1 << 62, 8]}}, {"x": entry | {"dtype": []}},  # type: ignore[var-annotated]
                   {"x": entry | {"data_offsets": [0.0, 8]}}, {"x": {}}, {"x": entry | {"data_offsets": None}}, "[" * 9000):
        text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
        told("a.safetensors", struct.pack("<Q", len(text)) + text + bytes(8))


def test_truth_values_of_files_are_0_or_1(tmp_path: Path) -> None:
    raw = np.array([0, 1, 2, 255], np.uint8)
    np.save(tmp_path / "b.npy", raw.view(np.bool_))
    np.savez(tmp_path / "b.npz", b=raw.view(np.bool_))
    text = json.dumps({"b": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw.tobytes())
    for name in ("b.npy", "b.npz", "b.safetensors"):
        found = tw.load_arrays(tmp_path / name)
        b = found["b"] if isinstance(found, dict) else found
        assert b.sum().item() == 3 and tw.logical_not(b).tolist() == [True, False, False, False]


def test_files_in_other_forms(tmp_path: Path) -> None:
    def stored(a: Any, **how: Any) -> Path:
        np.save(tmp_path / "a.npy", a, **how)
        return tmp_path / "a.npy"

    assert (tw.load_arrays(stored(np.arange(3, dtype=">f4"))) + 1).tolist() == [1, 2, 3]
    assert tw.load_arrays(stored(np.zeros((0, 3)))).shape == (0, 3) and tw.load_arrays(stored(np.array(3.0))).item() == 3
    np.savez(tmp_path / "a.npz", x=np.arange(3, dtype=">i4"))
    assert tw.load_arrays(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]
    for bad in (stored(np.array([1, None], object), allow_pickle=True), stored(np.zeros(2, [("a", "f4")]))):
        with pytest.raises(FormatError, match=r"load_arrays: .*a\.npy"):
            tw.load_arrays(bad)
    for name in ("a.npy", "a.npz"):
        whole = (tmp_path / name).read_bytes()
        for cut in (0, 20, len(whole) - 3):
            (tmp_path / name).write_bytes(whole[:cut])
            with pytest.raises(FormatError, match=f"load_arrays: .*{name}"):
                tw.load_arrays(tmp_path / name)
    for dtype in (tw.bfloat16, tw.float8_e5m2):
        with pytest.raises(ArgumentError, match=r"a \.npy file cannot hold .*; use \.safetensors"):
            tw.save(tmp_path / "b.npy", tw.ones(2, dtype=dtype))
    tw.save(tmp_path / "c.safetensors", {"a": tw.arange(6).reshape(2, 3).T[::-1], "s": tw.asarray(2.0), "e": tw.zeros((0, 2))})
    found = tw.load_arrays(tmp_path / "c.safetensors")
    assert found["a"].tolist() == [[2, 5], [1, 4], [0, 3]] and found["s"].item() == 2 and found["e"].shape == (0, 2)
    found["a"][0, 0] = 99  # a mapped file is not written
    assert tw.load_arrays(tmp_path / "c.safetensors")["a"][0, 0].item() == 2
