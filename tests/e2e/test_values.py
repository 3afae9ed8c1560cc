"""What goes in and out of a session: frameworks, structures, memory of any shape, zero sizes, NaN and infinities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tests.e2e.compare import assert_close, eager
from tests.e2e.families import FAMILIES, module_of

TARGETS = pytest.mark.parametrize("target", ["cpu", "reference"])


class Pair(NamedTuple):
    """A named tuple of tensors."""

    left: torch.Tensor
    right: torch.Tensor


class Nested(nn.Module):
    """Nested inputs and outputs, a None, a flag, a number and a text among them."""

    def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], scale: torch.Tensor | None = None, *, flag: bool = True,
                factor: float = 2.0) -> dict[str, Any]:
        a, more = pair
        total = a + more["b"] if flag else a - more["b"]
        return {"sum": total * factor, "list": [total, (more["c"].flip(0), None)], "same": total, "pair": Pair(a * 2, a),
                "scale": total if scale is None else total * scale, "size": a.shape[0], "text": "done"}


@TARGETS
def test_nested_structures(target: str) -> None:
    module = Nested()
    pair = (torch.randn(5), {"b": torch.randn(5), "c": torch.arange(4)})
    for args, kwargs in [((pair,), {}), ((pair, torch.randn(5)), {"flag": False, "factor": 0.5})]:
        session = tw.compile(module, args, kwargs, target=target)
        for _ in range(2):
            assert_close(session(*args, **kwargs), eager(module, args, kwargs))
    with pytest.raises(tw.InputError, match=r"^session: argument leaf \d+ \('flag'\) was fixed to False .* got True; compile again"):
        session(*args, flag=True, factor=0.5)
    with pytest.raises(tw.InputError, match=r"^session: argument 'pair'"):
        session((pair[0], {"b": pair[0]}), args[1], **kwargs)
    with pytest.raises(tw.InputError, match=r"^session: argument 'pair'"):
        session(pair[0], args[1], **kwargs)
    assert_close(session(*args, **kwargs), eager(module, args, kwargs))


@TARGETS
def test_numpy_in_numpy_out(target: str) -> None:
    args = FAMILIES["bert"].args(2, 7)
    session = tw.compile(module_of("bert"), args, target=target)
    want = eager(module_of("bert"), args)
    for _ in range(2):
        got = session(*(a.numpy() for a in args))
        assert isinstance(got, np.ndarray)
        assert_close(torch.from_numpy(got), want)
        mixed = session(args[0], args[1].numpy())
        assert isinstance(mixed, torch.Tensor)
        assert_close(mixed, want)


@TARGETS
def test_bf16_through_numpy(target: str) -> None:
    import ml_dtypes

    x = torch.randn(3, 8).bfloat16()
    session = tw.compile(lambda x: x * 2 + 1, (x,), target=target)
    array = x.float().numpy().astype(ml_dtypes.bfloat16)
    got = session(array)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), session(x).float().numpy())


@TARGETS
def test_out(target: str) -> None:
    args = FAMILIES["block"].args(2, 7)
    session = tw.compile(module_of("block"), args, target=target)
    want = session(*args)
    out = torch.full((2, 7, 24), float("nan"))
    assert session(*args, out=out) is out
    assert torch.equal(out, want)
    array = np.empty((2, 7, 24), np.float32)
    assert session(args[0].numpy(), out=array) is array
    np.testing.assert_array_equal(array, want.numpy())
    x = args[0].clone()
    assert session(x, out=x) is x  # the input itself
    assert torch.equal(x, want)
    both = tw.compile(lambda x: (x + 1, {"y": x * 2}), (args[0],), target=target)
    outs = (torch.empty(2, 7, 24), {"y": torch.empty(2, 7, 24)})
    assert both(*args, out=outs) is outs
    assert torch.equal(outs[1]["y"], args[0] * 2)
    for bad in (torch.empty(2, 7, 25), torch.empty(2, 7, 24, dtype=torch.float64), torch.empty(2, 24, 7).transpose(1, 2)):
        message = r"^session: out= for output 0 must be a contiguous, writable f32\[2,7,24\] on the CPU, got "
        with pytest.raises(tw.InputError, match=message):
            session(*args, out=bad)
    array.flags.writeable = False
    with pytest.raises(tw.InputError, match="must be a contiguous, writable"):
        session(*args, out=array)
    assert torch.equal(session(*args), want)


def odd_memory(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The same values in memory of many kinds."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    locked = x.copy()
    locked.flags.writeable = False
    raw = np.zeros(x.nbytes + 1, np.uint8)
    raw[1:] = x.view(np.uint8).reshape(-1)
    return {
        "strided": wide[..., ::2], "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1], "fortran": np.asfortranarray(x),
        "transposed": np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1), "read-only": locked,
        "unaligned": raw[1:].view(x.dtype).reshape(x.shape), "swapped bytes": x.astype(x.dtype.newbyteorder()),
        "matrix of another base": np.broadcast_to(x, x.shape), "strided torch": torch.from_numpy(wide)[..., ::2],
        "transposed torch": torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1))).transpose(0, 1),
        "shifted torch": torch.cat([torch.zeros(1), torch.from_numpy(x).reshape(-1)])[1:].reshape(x.shape),
        "needs grad": torch.from_numpy(x.copy()).requires_grad_(), "parameter": nn.Parameter(torch.from_numpy(x.copy())),
        "channels last": torch.from_numpy(x)[None].to(memory_format=torch.channels_last)[0] if x.ndim == 3 else torch.from_numpy(x),
    }


@TARGETS
def test_memory_of_every_kind(target: str) -> None:
    x = torch.randn(3, 7, 24)
    session = tw.compile(module_of("block"), (x,), target=target)
    want = session(x).numpy()
    before = x.clone()
    for kind, value in odd_memory(x.numpy()).items():
        with torch.no_grad():
            got = session(value)
        assert isinstance(got, np.ndarray if isinstance(value, np.ndarray) else torch.Tensor), kind
        assert not (isinstance(got, torch.Tensor) and got.requires_grad), kind
        np.testing.assert_array_equal(np.asarray(got), want, err_msg=kind)
    assert torch.equal(x, before), "an input was written to"


def test_an_expanded_input() -> None:
    x = torch.randn(1, 1, 24).expand(2, 7, 24)
    session = tw.compile(module_of("block"), (x,))
    assert_close(session(x), eager(module_of("block"), (x,)))


@TARGETS
def test_outputs_are_never_the_inputs_memory(target: str) -> None:
    """Identity, views and constants: what comes back belongs to the caller."""
    weight = torch.randn(3, 4)
    session = tw.compile(lambda x: (x, x.t(), x.reshape(-1)[2:7], x[::2], weight, weight * 2), (torch.randn(3, 4),), target=target)
    x = torch.randn(3, 4)
    want = (x, x.t(), x.reshape(-1)[2:7], x[::2], weight, weight * 2)
    outs = session(x)
    kept = [w.clone() for w in want]
    for out, w in zip(outs, kept, strict=True):
        assert torch.equal(out, w)
        out.fill_(7.0)
    assert torch.equal(x, kept[0])
    again = session(x)
    assert all(torch.equal(a, w) for a, w in zip(again, kept, strict=True))


ZERO: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "relu": (torch.relu, (torch.empty(0),)),
    "linear": (lambda x: F.linear(x, torch.ones(5, 4)), (torch.empty(0, 4),)),
    "no columns": (lambda x: F.linear(x, torch.ones(5, 0), torch.ones(5)), (torch.empty(3, 0),)),
    "matmul": (torch.matmul, (torch.empty(2, 3, 0), torch.empty(2, 0, 4))),
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(1)), (torch.empty(0, 3),)),
    "mean": (lambda x: x.mean(1), (torch.empty(0, 3),)),
    "softmax": (lambda x: torch.softmax(x, -1), (torch.empty(0, 3),)),
    "softmax of nothing": (lambda x: torch.softmax(x, -1), (torch.empty(3, 0),)),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), (torch.empty(0, 8),)),
    "cat": (lambda x, y: torch.cat([x, y]), (torch.empty(0, 3), torch.randn(2, 3))),
    "attention": (F.scaled_dot_product_attention, (torch.empty(1, 2, 0, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8))),
    "embedding": (lambda i: F.embedding(i, torch.ones(7, 3)), (torch.empty(0, dtype=torch.long),)),
    "slice": (lambda x: x[2:2] + 1, (torch.randn(4, 3),)),
    "scalar": (lambda x: x * 2 + 1, (torch.tensor(3.5),)),
}


@TARGETS
@pytest.mark.parametrize("name", ZERO)
def test_zero_sizes(name: str, target: str) -> None:
    fn, args = ZERO[name]
    session = tw.compile(fn, args, target=target)
    for _ in range(2):
        assert_close(session(*args), eager(fn, args))


@pytest.mark.parametrize("name", ["mlp", "block", "convnet"])
def test_a_dynamic_dim_of_zero(name: str) -> None:
    family, module = FAMILIES[name], module_of(name)
    session = tw.compile(module, family.args(3, 7), dynamic={"x": {0: tw.Dim("N", 0, 9)}})
    for n in (0, 1, 9, 0, 3):
        args = family.args(n, 7)
        assert_close(session(*args), eager(module, args))


NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, 1.0, -1.0, 88.8, -104.0, 0.5, 1e-8, 20.0, -20.0])
POINTWISE: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": torch.relu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "exp": torch.exp, "log": torch.log, "erf": torch.erf, "sin": lambda x: torch.sin(x.clamp(-100, 100)),
    "cos": lambda x: torch.cos(x.clamp(-100, 100)), "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "abs": torch.abs, "neg": torch.neg, "floor": torch.floor, "round": torch.round, "clamp": lambda x: x.clamp(-1, 1), "sign": torch.sign,
    "isnan": torch.isnan, "isinf": torch.isinf, "square": lambda x: x**2, "cube": lambda x: x**3, "pow": lambda x: x**0.5,
    "maximum": lambda x: torch.maximum(x, x.flip(0)), "minimum": lambda x: torch.minimum(x, x.flip(0)), "div": lambda x: x / x.flip(0),
    "add": lambda x: x + x.flip(0), "mul": lambda x: x * x.flip(0), "compare": lambda x: (x < x.flip(0), x == x, x != x, x >= 0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)), "leaky": lambda x: F.leaky_relu(x, 0.1), "elu": F.elu,
    "softplus": F.softplus, "fmod": lambda x: torch.fmod(x, 3.0), "hardswish": F.hardswish, "log1p": torch.log1p, "expm1": torch.expm1,
}

EITHER_ZERO = {"relu", "fmod"}  # max(-0, 0) depends on the instruction set in torch too; our fmod of -0 is 0


@TARGETS
@pytest.mark.parametrize("name", POINTWISE)
def test_special_values_of_pointwise_ops(name: str, target: str) -> None:
    fn = POINTWISE[name]
    for values in (SPECIAL, SPECIAL.double()):
        x = values.repeat(5)  # vectors and a tail
        session = tw.compile(fn, (x,), target=target)
        got, want = session(x), eager(fn, (x,))
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=2e-6 if b.dtype == torch.float32 else 1e-14, atol=1e-37, equal_nan=True)
            if b.is_floating_point() and name not in EITHER_ZERO:
                same = torch.signbit(a) == torch.signbit(b)
                assert bool((same | b.isnan()).all()), "the sign of a zero"


ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: torch.softmax(x, -1), "log softmax": lambda x: torch.log_softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (9,)), "rms norm": lambda x: F.rms_norm(x, (9,)),
    "sum": lambda x: x.sum(-1), "max": lambda x: x.amax(-1), "min": lambda x: x.amin(-1),
    "mean": lambda x: x.mean(-1), "argmax": lambda x: x.argmax(-1), "matmul": lambda x: x @ torch.eye(9), "var": lambda x: x.var(-1),
    "cumsum": lambda x: x.cumsum(-1), "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "logsumexp": lambda x: x.logsumexp(-1), "prod": lambda x: x.prod(-1), "norm": lambda x: x.norm(dim=-1),
}


@TARGETS
@pytest.mark.parametrize("name", ROWS)
def test_special_values_stay_in_their_row(name: str, target: str) -> None:
    """NaN and infinities come out where torch has them."""
    fn = ROWS[name]
    x = torch.randn(6, 9)
    x[0, 3], x[1, 2], x[2, 7], x[3, 1], x[3, 5] = NAN, INF, -INF, INF, -INF
    x[4] = -INF
    if name == "attention":
        x[:5] = torch.randn(5, 9)
        x[2, 4] = NAN
    session = tw.compile(fn, (x,), target=target)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # torch's flash kernel loses a NaN
        want = eager(fn, (x,))
    torch.testing.assert_close(session(x), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_nan_in_a_batch_stays_in_its_row() -> None:
    for name in ("mlp", "block", "llama-block"):
        family = FAMILIES[name]
        args = family.args(3, 7)
        session = tw.compile(module_of(name), args)
        clean = session(*args)
        dirty = args[0].clone()
        dirty[1].view(-1)[2] = NAN
        got = session(dirty)
        assert torch.equal(got[0], clean[0])
        assert torch.equal(got[2], clean[2])
        assert bool(got[1].isnan().any())


def test_dataclass_outputs_of_transformers() -> None:
    """A Hugging Face model's own output class keeps its structure."""
    model: Any = module_of("bert")
    ids, mask = FAMILIES["bert"].args(2, 7)
    want: Any = eager(model.model, (ids, mask))
    got = tw.compile(model.model, (ids, mask))(ids, mask)
    assert bool(dataclasses.is_dataclass(want))
    assert type(got) is type(want)
    assert_close(got.last_hidden_state, want.last_hidden_state)
    assert_close(got.pooler_output, want.pooler_output)
