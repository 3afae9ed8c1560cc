"""Every door through which arrays come in, and every kind of array: the elements that the array stands for arrive, or it is refused.

An array may hide elements (masked), give them another sign than its memory (views of torch), lie elsewhere or nowhere (fake tensors,
wrappers, zeros that were never written), or in another order of bytes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
from tilewright.core.errors import InputError
from tilewright.training import save_checkpoint

ROW = np.array([1.0, -2.0, 3.0], np.float32)
TENSOR = torch.from_numpy(ROW.copy())
PAIR = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)


class Named(torch.Tensor):
    pass


class Rows(np.ndarray[Any, Any]):
    pass


class Wrapped:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.array


def masked() -> Any:
    return np.ma.masked_array(ROW, [False, True, False])


def masked_tensor() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(TENSOR, torch.tensor([True, False, True]))


def inference() -> Any:
    with torch.inference_mode():
        return TENSOR.clone()


def read_only() -> Any:
    array = ROW.copy()
    array.flags.writeable = False
    return array


RIGHT: dict[str, Callable[[], Any]] = {  # these stand for ROW
    "tensor": lambda: TENSOR,
    "negative view": lambda: torch._neg_view(-TENSOR),
    "of a gradient": lambda: TENSOR.clone().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(TENSOR),
    "subclass of tensor": lambda: TENSOR.as_subclass(Named),
    "strided tensor": lambda: torch.tensor([1.0, 0, -2.0, 0, 3.0])[::2],
    "inference": inference,
    "array": lambda: ROW,
    "read-only": read_only,
    "bytes swapped": lambda: ROW.astype(">f4"),
    "subclass of array": lambda: ROW.view(Rows),
    "record": lambda: np.rec.array(ROW),
    "backwards": lambda: ROW[::-1].copy()[::-1],
    "misaligned": lambda: np.frombuffer(b"\0" + ROW.tobytes(), np.uint8)[1:].view(np.float32),
}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {  # and what the messages say
    "masked array": (masked, "a masked array"),
    "masked array of nothing": (lambda: np.ma.masked_array(ROW), "a masked array"),
    "sparse": (TENSOR.to_sparse, "layout torch.sparse_coo"),
    "mkldnn": (TENSOR.to_mkldnn, "layout torch._mkldnn"),
    "meta": (lambda: TENSOR.to("meta"), "on meta"),
    "quantized": (lambda: torch.quantize_per_tensor(TENSOR, 0.1, 0, torch.qint8), "a quantized tensor"),
    "nested": (lambda: torch.nested.nested_tensor([TENSOR[:2], TENSOR[:1]]), "a nested tensor"),
    "masked tensor": (masked_tensor, "a MaskedTensor without memory of its own|without memory"),
    "fake": (lambda: FakeTensorMode().from_tensor(TENSOR), "without memory of its own|has no memory"),
    "functional": (lambda: torch._to_functional_tensor(TENSOR), "without memory of its own|has no memory"),
    "zeros without memory": (lambda: torch._efficientzerotensor(3), "a Tensor without memory of its own"),
    "objects": (lambda: ROW.astype(object), "object"),
    "structure": (lambda: np.zeros(3, [("a", "f4")]), r"\[\('a', '<f4'\)\]"),
    "text": (lambda: np.array(["1", "2", "3"]), "U1"),
    "long double": (lambda: ROW.astype(np.longdouble), "float128|longdouble"),
    "dates": (lambda: np.zeros(3, "M8[s]"), "datetime|ndarray"),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


@pytest.fixture(scope="module")
def session() -> tw.Session:
    found = tw.compile(torch.nn.Hardtanh(-9, 9), (TENSOR,))
    found(TENSOR)  # from now on the generated way
    return found


twice = tw.jit(lambda x: x + x)


@tw.kernel("f32[N] -> f32[N]", grid=1)
def copied(x, y):  # type: ignore[no-untyped-def]
    y.partition(4)[0] = x.partition(4)[0]


@functools.cache
def identity() -> Any:
    """An ONNX session."""
    value = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return tw.onnx.InferenceSession(model.SerializeToString())


def written(x: Any) -> Any:
    found = tw.zeros(3)
    found[:] = x
    return found


DOORS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda x: twice(x) / 2,
    "function": lambda x: tw.mul(x, 1.0),
    "constant": lambda x: tw.jit(lambda y: tw.add(x, y))(np.zeros(3, np.float32)),
    "grad": lambda x: tw.grad(lambda y: (y * y).sum())(x) / 2,
    "scan": lambda x: tw.scan(lambda c, y: (c, y), np.float32(0), x)[1],
    "Array": tw.asarray,
    "operand of an Array": lambda x: tw.zeros(3) + x,
    "written to an Array": written,
    "update of an Array": lambda x: tw.zeros(3).at[:].add(x),
    "kernel": copied,
    "onnx": lambda x: identity().run(None, {"x": x})[0],
}


def plain(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


@pytest.mark.parametrize("kind", RIGHT)
def test_elements_arrive(session: tw.Session, kind: str) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(plain(session(RIGHT[kind]())), ROW)
        for name, door in DOORS.items():
            np.testing.assert_array_equal(plain(door(RIGHT[kind]())), ROW, err_msg=name)


@pytest.mark.parametrize("kind", WRONG)
def test_others_are_refused(session: tw.Session, kind: str) -> None:
    make, says = WRONG[kind]
    for _ in range(2):
        with pytest.raises(InputError, match=rf"^session: input 'input' .*({says})"):
            session(make())
        np.testing.assert_array_equal(session(TENSOR), ROW)
    for door in DOORS.values():
        with pytest.raises(InputError, match=says):
            door(make())


@pytest.mark.parametrize("kind", WRONG)
def test_refused_as_out(session: tw.Session, kind: str) -> None:
    make, says = WRONG[kind]
    with pytest.raises(InputError, match=rf"^session: out= for output 0 must be a contiguous, writable f32.* on the CPU, got .*({says})"):
        session(TENSOR, out=make())


def test_out() -> None:
    """Only what stands for memory that the result can be written to is taken."""
    session = tw.compile(torch.nn.Hardtanh(-9, 9), (TENSOR,))
    for out in (torch.zeros(3), torch.zeros(3).as_subclass(Named), np.zeros(3, np.float32), np.zeros(3, np.float32).view(Rows)):
        assert session(TENSOR, out=out) is out
        np.testing.assert_array_equal(plain(out), ROW)
    for bad, says in ((torch._neg_view(torch.zeros(3)), "a negative view, float32"), (read_only(), "float32"),
                      (torch.zeros(3, requires_grad=True), "a tensor that requires grad, float32"), (torch.zeros(6)[::2], "float32"),
                      (np.zeros(3, ">f4"), ">f4")):
        with pytest.raises(InputError, match=rf"writable f32\[3\] on the CPU, got {says}\[3\]"):
            session(TENSOR, out=bad)


def test_conjugates() -> None:
    """A conjugate view has the memory of what it is the conjugate of."""
    class Twice(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z + z

    session = tw.compile(Twice(), (PAIR,))
    for z in (PAIR, PAIR.conj(), torch._neg_view(PAIR), torch._neg_view(PAIR).conj()):
        for _ in range(2):
            assert torch.equal(session(z), z + z)
        np.testing.assert_array_equal(twice(z), (z + z).resolve_conj().resolve_neg().numpy())
    with pytest.raises(InputError, match="got a conjugate view, complex64"):
        session(PAIR, out=torch.zeros(2, dtype=torch.complex64).conj())


def test_imaginary_parts() -> None:
    """`z.conj().imag` is a negative view that nobody asked for by name."""
    part = PAIR.conj().imag
    assert part.is_neg()
    np.testing.assert_array_equal(twice(part), 2 * part.resolve_neg().numpy())
    session = tw.compile(torch.nn.Hardtanh(-9, 9), (torch.zeros(2),))
    assert torch.equal(session(part), part)


def test_masks_are_lost_nowhere(tmp_path: Path) -> None:
    lost = r"a masked array would lose its mask; pass its data and use tw.where"
    ids = np.ma.masked_array([0, 1], [False, True])
    for call in (lambda: tw.take(ROW, ids), lambda: tw.jit(lambda x: tw.take(x, ids))(ROW), lambda: tw.mul(Wrapped(masked()), 1.0),
                 lambda: tw.jit(lambda x: x[ids])(ROW), lambda: tw.where(np.ma.masked_array([True, False, True]), ROW, ROW),
                 lambda: tw.softmax_cross_entropy(np.zeros((2, 3), np.float32), ids),
                 lambda: tw.jit(lambda x: tw.softmax_cross_entropy(x, ids))(np.zeros((2, 3), np.float32)),
                 lambda: tw.cond(np.ma.masked_array(True), lambda x: x, lambda x: -x, ROW)):
        with pytest.raises(InputError, match=f"{lost}|must have one of the dtypes"):
            call()
    with pytest.raises(tw.CheckpointError, match="leaf 'w' must be an array, a number, a string or None, got a MaskedArray"):
        save_checkpoint(tmp_path / "c", {"w": masked()})
