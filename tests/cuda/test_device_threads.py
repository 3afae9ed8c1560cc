"""What threads may share, on a real GPU under a scheduler that changes its mind often: the bits are those of one thread."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.llm.families import make, ours
from tests.session.test_shared import Model, scaled_rows, seeds
from tests.shaken import shaken, together
from tilewright.core.errors import InputError
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")


def test_a_session() -> None:
    """Every thread on a stream of its own, sizes that change, tensors and Arrays, bad calls between."""
    example = torch.randn(3, 12, device="cuda")
    session: Any = tw.compile(Model().eval().cuda(), (example,), dynamic={"x": {0: tw.Dim("n", 1, 500)}})
    sizes = [int(n) for n in fresh_rng().permutation(499)[:12] + 1]
    inputs = {n: torch.randn(n, 12, device="cuda") for n in sizes}
    want = {n: session(x) for n, x in inputs.items()}
    torch.cuda.synchronize()

    def work(seed: int) -> None:
        rng, stream = random.Random(seed), torch.cuda.Stream()
        for _ in range(30):
            n = rng.choice(sizes)
            if rng.random() < 0.1:
                with pytest.raises(InputError, match="session: input 'x' must be"):
                    session(torch.randn(n, 13, device="cuda"))
            with torch.cuda.stream(stream):
                found = session(inputs[n])
                same = [torch.equal(a, b) for a, b in zip(found, want[n], strict=True)]
            assert all(same)

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds()])


def test_functions_kernels_and_arrays() -> None:
    shared = tw.asarray(fresh_rng().integers(-9, 9, (300, 8)).astype(np.float32)).to("cuda")
    host, f = shared.numpy(), tw.jit(lambda x: {"sum": (x * x).sum(0), "all": x + 1})

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(10):
            i = rng.randrange(1, 250)
            view = shared[i : i + 40]
            np.testing.assert_array_equal((view * 2 - view).numpy(), host[i : i + 40])
            view[0] = float(i)
            assert view[0].tolist() == [float(i)] * 8
            found = f(shared[:i])
            np.testing.assert_array_equal(found["sum"].numpy(), (host[:i] ** 2).sum(0))
            y, sums = scaled_rows(shared[:i], scale=3.0)
            np.testing.assert_array_equal(y.numpy(), host[:i] * 3)
            np.testing.assert_array_equal(sums.numpy(), (host[:i] * 3).sum(1))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(4)])
    np.testing.assert_array_equal(shared.numpy(), host)


def test_a_language_model() -> None:
    prompts = [[3, 1, 4], [20], [7, 7, 7, 99, 100], [50, 60]]
    with ours(make("llama"), target="cuda") as llm:
        texts = ["".join(llm.generate(p, max_tokens=8)) for p in prompts]
        pairs = [llm.generate_batch([p, prompts[0]], max_tokens=8) for p in prompts]
        state = llm.start()

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(6):
                k = rng.randrange(len(prompts))
                assert "".join(llm.generate(prompts[k], max_tokens=8)) == texts[k]
                assert llm.generate_batch([prompts[k], prompts[0]], max_tokens=8) == pairs[k]
                next(llm.generate(prompts[k], max_tokens=8))
                llm.feed(state, [k])

        with shaken(seeds(1)[0]):
            together([functools.partial(work, s) for s in seeds(4)])
        assert state.length == 24


def test_a_torch_compiled_module() -> None:
    """Forward and backward passes of one compiled module, every thread on a stream of its own."""
    call = torch.compile(Model().cuda(), backend="tilewright", dynamic=True)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mine = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(torch.stack([y.square().sum() for y in call(mine)]).sum(), mine)
        with torch.no_grad():
            return call(x)[0], found

    inputs = [torch.randn(n, 12, device="cuda") for n in (5, 3, 40, 7)]
    want = [both(x) for x in inputs]
    torch.cuda.synchronize()

    def work(seed: int) -> None:
        rng, stream = random.Random(seed), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(5):
                k = rng.randrange(len(inputs))
                assert all(torch.equal(a, b) for a, b in zip(both(inputs[k]), want[k], strict=True))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(4)])


def test_an_optimizer() -> None:
    """One optimizer and one jitted step serve all threads; each has a state of its own."""
    optimizer = tw.optim.adamw(1e-2)
    start = fresh_rng().standard_normal((6, 4)).astype(np.float32)
    step = tw.jit(lambda params, state, x: optimizer.update(params, tw.grad(lambda p: tw.sum((x @ p) ** 2))(params), state))

    def train(seed: int) -> Any:
        rows = np.random.default_rng(seed).standard_normal((5, 6)).astype(np.float32)
        params, x = tw.asarray(start).to("cuda"), tw.asarray(rows).to("cuda")
        state = optimizer.init(params)
        for _ in range(4):
            params, state = step(params, state, x)
        return params.numpy()

    want = {s: train(s) for s in seeds(4)}
    with shaken(seeds(1)[0]):
        together([lambda s=s: np.testing.assert_array_equal(train(s), want[s]) for s in want])  # type: ignore[misc]
