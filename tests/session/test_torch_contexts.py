"""Sessions, jitted functions and compiles inside torch's modes, transforms and traces: the right result, or a typed error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw
from tilewright.core import torch_context
from tilewright.core.errors import InputError, TilewrightError
from tilewright.runtime import fastcall, outputs

N = tw.Dim("n", 0, 64)
KINDS = ("fixed", "dynamic", "large", "scalar")
LARGE = 1 << 19  # elements: the memory of such a result is used again


class Same(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Wider(Same):
    """A mode that computes in another dtype than it was asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.double() if isinstance(out, torch.Tensor) and out.dtype is torch.float32 else out


class Nowhere(Same):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.to("meta") if isinstance(out, torch.Tensor) else out


class Smaller(TorchFunctionMode):
    """A mode in which new tensors are too small."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.flatten()[:1] if func in (torch.empty, torch.empty_like, torch.from_numpy) else made


@contextmanager
def plain() -> Iterator[None]:
    yield


CONTEXTS: dict[str, Callable[[], Any]] = {
    "plain": plain, "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True), "inference": torch.inference_mode, "dispatch": Same,
    "wider": Wider, "nowhere": Nowhere, "smaller": Smaller, "device": lambda: torch.device("meta"), "no_grad": torch.no_grad,
}
RIGHT = ("plain", "inference", "dispatch", "device", "no_grad")
READS = (*RIGHT, "fake", "wider", "nowhere", "smaller")  # where a session whose inputs are plain tensors runs
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "functionalize": lambda call, x: torch.func.functionalize(call)(x),
    "vmap": lambda call, x: torch.vmap(call)(x[None])[0],
    "grad": lambda call, x: torch.func.grad(lambda v: call(v).sum())(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x,)),
    "fake input": lambda call, x: call(FakeTensorMode().from_tensor(x)),
    "make_fx": lambda call, x: make_fx(call)(x),
    "make_fx fake": lambda call, x: make_fx(call, tracing_mode="fake")(x),
    "jit.trace": lambda call, x: torch.jit.trace(call, (x,), check_trace=False),
    "export": lambda call, x: torch.export.export(_module(call), (x,), strict=False),
}


def _module(call: Callable[[Any], Any]) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return call(x)

    return Model()


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


@pytest.fixture(scope="module")
def sessions() -> dict[str, tuple[Any, torch.Tensor]]:
    """Fixed and dynamic shapes, a result whose memory is used again, no static input that shows a trace."""
    x, large, scalar = torch.randn(8, 6), torch.randn(LARGE), torch.tensor(3.0)
    found = {"fixed": (tw.compile(Doubled(), (x,)), x), "dynamic": (tw.compile(Doubled(), (x,), dynamic={"x": {0: N}}), x),
             "large": (tw.compile(Doubled(), (large,)), large), "scalar": (tw.compile(Doubled(), (scalar,)), scalar)}
    for session, example in found.values():
        assert torch.equal(session(example), example * 2 + 1)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_session_in_a_mode(sessions: Any, kind: str, context: str) -> None:
    session, x = sessions[kind]
    want = x * 2 + 1
    out = torch.empty_like(x)
    assert context in READS
    with CONTEXTS[context]():
        found, given = session(x), session(x, out=out)
    assert type(found) is torch.Tensor and torch.equal(found, want) and given is out and torch.equal(out, want)
    assert torch.equal(session(x), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", ["fake", "wider", "nowhere", "smaller"])
def test_a_torch_whose_new_tensors_are_changed_by_modes(kind: str, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without the function that allocates past its modes."""
    x = {"large": torch.randn(LARGE), "scalar": torch.tensor(3.0)}.get(kind, torch.randn(8, 6))
    monkeypatch.setattr(torch_context, "allocator", slow := lambda: (lambda shape, _, dtype: torch.empty(shape, dtype=dtype), False))
    monkeypatch.setattr(fastcall, "allocator", slow)
    monkeypatch.setattr(outputs, "allocator", slow)
    session = tw.compile(Doubled(), (x,), dynamic={"x": {0: N}} if kind == "dynamic" else None)
    assert torch.equal(session(x), x * 2 + 1) and torch.equal(session(x), x * 2 + 1)
    if (context, kind) == ("smaller", "large"):  # memory that is used again does not come from such a function
        return
    with CONTEXTS[context](), pytest.raises(InputError, match=r"session: an output must be f32\[.*\] in memory, and torch's tensor"):
        session(x)
    assert torch.equal(session(x), x * 2 + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_session_in_a_transform(sessions: Any, kind: str, transform: str) -> None:
    session, x = sessions[kind]
    with pytest.raises(InputError, match=r"session: input 'x' (has no memory|is recorded by|is a \w+ without memory).*; call it outside"):
        TRANSFORMS[transform](lambda v: session(v), x)
    assert torch.equal(session(x), x * 2 + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", ["functionalize", "vmap", "grad", "jvp"])
def test_a_transform_of_something_else(sessions: Any, kind: str, transform: str) -> None:
    """The input is the caller's own and not the transform's; the result may be wrapped, which is an error then."""
    session, x = sessions[kind]
    found: list[Any] = []

    def call(v: torch.Tensor) -> torch.Tensor:
        found.append(session(x))
        return v * 1

    try:
        TRANSFORMS[transform](call, torch.randn(3))
    except InputError as e:
        found = [e]
    assert "call it outside" in str(found[0]) if isinstance(found[0], InputError) else torch.equal(found[0], x * 2 + 1)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_jitted_function_in_a_transform(transform: str) -> None:
    f = tw.jit(lambda x: x * 2)
    x = torch.randn(4, 3)
    np.testing.assert_array_equal(f(x), 2 * x.numpy())
    for call in (lambda v: torch.as_tensor(f(v)), lambda v: torch.as_tensor(tw.tanh(v))):
        refusal = r"(torch|jit): a tensor (has no memory|is recorded by|is a \w+ without memory).*; call it outside"
        with pytest.raises(InputError, match=refusal):
            TRANSFORMS[transform](call, x)
    np.testing.assert_array_equal(f(x), 2 * x.numpy())


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_jitted_function_in_a_mode(context: str) -> None:
    f = tw.jit(lambda x: x * 2)
    x, y = torch.randn(4, 3), np.ones(3, np.float32)
    with CONTEXTS[context]():
        np.testing.assert_array_equal(f(y), [2, 2, 2])
        try:
            found = f(x)
        except TilewrightError:
            assert context not in RIGHT
            return
    np.testing.assert_array_equal(found, 2 * x.numpy())


@pytest.mark.parametrize("name", [*CONTEXTS, *TRANSFORMS])
def test_a_compile_in_there_works_or_says_why_not(name: str) -> None:
    model, x = torch.nn.Linear(6, 2), torch.randn(8, 6)

    def call(v: torch.Tensor) -> Any:
        return tw.compile(model, (v,))(v)

    try:
        if name in CONTEXTS:
            with CONTEXTS[name]():
                found = call(x)
        else:
            found = TRANSFORMS[name](call, x)
    except TilewrightError:
        assert name not in RIGHT
    else:
        torch.testing.assert_close(found, model(x).detach(), check_stride=False)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin `tilewright:UserWarning")
@pytest.mark.parametrize("what", ["session", "jit", "eager", "compile"])
def test_torch_compile_leaves_our_functions_alone(what: str) -> None:
    x = torch.randn(8, 6)
    f = tw.jit(lambda x: x * 2 + 1)
    session = tw.compile(Doubled(), (x,))

    def model(v: torch.Tensor) -> Any:
        v = v + 0
        if what == "session":
            return session(v) * 1
        if what == "jit":
            return torch.as_tensor(f(v)) * 1
        if what == "eager":
            return torch.as_tensor(tw.add(tw.multiply(v, np.float32(2)), np.float32(1)))
        return tw.compile(Doubled(), (v,))(v)

    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        y = torch.randn(8, 6)
        assert torch.equal(compiled(y), y * 2 + 1)


def test_the_first_call_may_be_in_a_mode() -> None:
    x = torch.randn(3)
    session = tw.compile(Doubled(), (x,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = session(x)
        with pytest.raises(InputError, match="call it outside"):
            session(x * 1)
    assert torch.equal(found, x * 2 + 1)
    assert torch.equal(session(x), x * 2 + 1) and torch.equal(session(x), x * 2 + 1)


def test_empty_tensors_have_no_address_and_are_fine(sessions: Any) -> None:
    session, _ = sessions["dynamic"]
    for n in (0, 3, 0):
        x = torch.randn(n, 6)
        assert torch.equal(session(x), x * 2 + 1)
