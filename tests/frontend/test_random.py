"""Random ops of PyTorch modules: torch's distributions, a seed from torch's generator for every call, dropout in training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilewright as tw
from tests.bands import assert_distribution, assert_frequencies, assert_uncorrelated
from tilewright.core.errors import CompileError, InputError, UnsupportedError

N = 60_000
X = torch.zeros(N)


def drawn(fn: Callable[..., Any], *args: Tensor) -> Any:
    torch.manual_seed(3)
    return tw.compile(fn, args or (X,))(*(args or (X,))).numpy()


def normal_below(x: Any) -> Any:
    return torch.special.ndtr(torch.from_numpy(np.array(x, np.float64))).numpy()


def unit(x: Any) -> Any:
    return np.clip(x, 0, 1)


CONTINUOUS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "rand": (lambda x: torch.rand(x.shape), unit),
    "rand_like": (lambda x: torch.rand_like(x), unit),
    "rand f64": (lambda x: torch.rand(x.shape, dtype=torch.float64), unit),
    "randn": (lambda x: torch.randn(x.shape), normal_below),
    "randn_like": (lambda x: torch.randn_like(x), normal_below),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), lambda v: unit((v + 1) / 4)),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), lambda v: normal_below((v - 2) / 3)),
    "normal": (lambda x: torch.normal(2.0, 3.0, x.shape), lambda v: normal_below((v - 2) / 3)),
    "normal of tensors": (lambda x: torch.normal(x + 2, torch.ones_like(x) * 3), lambda v: normal_below((v - 2) / 3)),
    "normal of a mean": (lambda x: torch.normal(x + 2, 3.0), lambda v: normal_below((v - 2) / 3)),
    "normal of a deviation": (lambda x: torch.normal(2.0, x + 3), lambda v: normal_below((v - 2) / 3)),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(0.5), lambda v: -np.expm1(-v * 0.5)),
    "cauchy_": (lambda x: torch.empty_like(x).cauchy_(1, 2), lambda v: np.arctan((v - 1) / 2) / np.pi + 0.5),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(1, 0.5), lambda v: normal_below((np.log(v) - 1) / 0.5)),
    "complex": (lambda x: torch.randn(N, dtype=torch.complex64).imag, lambda v: normal_below(v * 2**0.5)),
    "distribution": (lambda x: torch.distributions.Normal(x + 2, 3.0).rsample(), lambda v: normal_below((v - 2) / 3)),
    "gumbel": (lambda x: torch.distributions.Gumbel(x, 1.0).sample(), lambda v: np.exp(-np.exp(-v))),
}
COUNTS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "randint": (lambda x: torch.randint(0, 7, x.shape), np.full(7, 1 / 7)),
    "randint of floats": (lambda x: torch.randint(0, 7, x.shape, dtype=torch.float32), np.full(7, 1 / 7)),
    "randint_like": (lambda x: torch.randint_like(x, 2, 7) - 2, np.full(5, 1 / 5)),
    "random_": (lambda x: torch.empty_like(x, dtype=torch.int64).random_(6), np.full(6, 1 / 6)),
    "random_ of bytes": (lambda x: torch.empty_like(x, dtype=torch.int8).random_(), np.full(128, 1 / 128)),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), [0.7, 0.3]),
    "bernoulli p": (lambda x: torch.bernoulli(x, 0.3), [0.7, 0.3]),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), [0.7, 0.3]),
    "bernoulli_ of tensors": (lambda x: torch.empty_like(x).bernoulli_(x + 0.3), [0.7, 0.3]),
    "geometric_": (lambda x: (torch.empty_like(x).geometric_(0.5) - 1).clamp(max=8), [*(0.5**k for k in range(1, 9)), 0.5**8]),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([1.0, 0, 3, 4]).expand(N, 4), 1)[:, 0], [1 / 8, 0, 3 / 8, 1 / 2]),
    "multinomial with replacement": (lambda x: torch.multinomial(torch.tensor([1.0, 0, 3, 4]), N, replacement=True),
                                     [1 / 8, 0, 3 / 8, 1 / 2]),
    "multinomial's first": (lambda x: torch.multinomial(torch.tensor([1.0, 0, 3, 4]).expand(N, 4), 3)[:, 0], [1 / 8, 0, 3 / 8, 1 / 2]),
    "categorical": (lambda x: torch.distributions.Categorical(probs=torch.tensor([1.0, 0, 3, 4]).expand(N, 4)).sample(),
                    [1 / 8, 0, 3 / 8, 1 / 2]),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(torch.tensor([1.0, 1e-30, 3, 4]).log().expand(N, 4), hard=True).argmax(-1),
                       [1 / 8, 0, 3 / 8, 1 / 2]),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str) -> None:
    fn, below = CONTINUOUS[name]
    x = drawn(fn)
    assert x.shape == (N,) and fn(X).dtype == torch.from_numpy(x).dtype
    assert_distribution(x, below)
    assert_uncorrelated(np.clip(x[1:], -9, 9), np.clip(x[:-1], -9, 9))


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    fn, odds = COUNTS[name]
    x = drawn(fn)
    assert x.shape == (N,) and fn(X).dtype == torch.from_numpy(x).dtype
    assert_frequencies(x, odds)


def test_samples_without_replacement_differ() -> None:
    x = drawn(lambda x: torch.multinomial(torch.tensor([1.0, 2, 3, 4]).expand(N, 4), 3))
    assert all(len(set(row)) == 3 for row in x[:2000].tolist())


def test_permutations() -> None:
    x = drawn(lambda x: torch.randperm(5000))
    assert sorted(x.tolist()) == list(range(5000)) and x.dtype == np.int64
    assert_uncorrelated(x, np.arange(5000))


def test_the_seed_is_torchs() -> None:
    session = tw.compile(lambda x: torch.rand_like(x) + torch.rand_like(x), (X,))
    assert session.interface.input_names[-1] == "seed"

    def pair() -> tuple[Tensor, Tensor]:
        torch.manual_seed(11)
        return session(X), session(X)

    first, second = pair()
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(pair(), (first, second), strict=True))  # the first call is a call like any other
    torch.manual_seed(12)
    assert not torch.equal(session(X), first)
    before = torch.get_rng_state()
    session(X)
    assert not torch.equal(torch.get_rng_state(), before)


def test_draws_of_one_call_are_independent() -> None:
    a, b = tw.compile(lambda x: (torch.randn_like(x), torch.randn_like(x)), (X,))(X)
    assert_uncorrelated(a, b)
    many = tw.compile(lambda x: torch.stack([torch.rand(3) for _ in range(150)]), (X,))(X)
    assert len(set(many.flatten().tolist())) > 440  # more keys than are made at a time


def test_the_way_of_the_call_and_the_threads_change_nothing() -> None:
    def model(x: Tensor) -> Tensor:
        return F.dropout(x + 1, 0.4) * torch.rand_like(x)

    x = torch.zeros(123, 77)
    results = []
    for threads, target in ((1, "cpu"), (2, "cpu"), (1, "reference")):
        session = tw.compile(model, (x,), threads=threads, target=target)
        for _ in range(2):  # the complete way, then the generated one
            torch.manual_seed(5)
            results.append(session(x))
    assert all(torch.equal(r, results[0]) for r in results)
    torch.manual_seed(5)
    np.testing.assert_array_equal(session(x.numpy()), results[0].numpy())


def test_random_numbers_that_nobody_reads_cost_nothing() -> None:
    def model(x: Tensor) -> Tensor:
        torch.rand([])
        F.dropout(x, 0.5)
        return x + 1

    session = tw.compile(model, (X,))
    assert session.interface.input_names == ("x",) and not session.model.signature.seeded
    torch.testing.assert_close(session(X), X + 1)


def test_branches_that_a_random_number_cannot_change() -> None:
    """A layer drop of 0 or 1, as speech models write it; one in between depends on data."""

    def layers(x: Tensor, drop: float) -> Tensor:
        if torch.rand([]) < drop:
            return x
        return x + 1 if torch.rand([]) >= drop else x * 0

    for drop, want in ((0.0, 1.0), (1.0, 0.0), (1, 0.0), (-0.5, 1.0)):
        session = tw.compile(lambda x, drop=drop: layers(x, drop), (X,))
        assert (session(X) == want).all() and not session.model.signature.seeded

    def others(x: Tensor) -> Tensor:
        return x + 2 if torch.rand([]).le(1.0) and torch.gt(torch.rand([]), -1e-9) else x

    assert (tw.compile(others, (X,))(X) == 2).all()
    for at in (0.5, 0.0):
        with pytest.raises(CompileError, match="control flow and sizes may not depend on tensor values"):
            tw.compile(lambda x, at=at: x if torch.rand([]) <= at else x + 1, (X,))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(F.dropout(F.relu(self.a(x)), 0.5, self.training, inplace=True))
        return out


def test_dropout_in_training_and_in_evaluation() -> None:
    net, x = Net(), torch.randn(16, 20)
    mean = torch.stack([tw.compile(net, (x,))(x) for _ in range(1)]).mean(0)
    session = tw.compile(net, (x,))
    total = torch.stack([session(x) for _ in range(2000)])
    want, error = net.eval()(x), total.std(0) / 2000**0.5
    assert mean.shape == want.shape and (total.std(0) > 0).all()
    assert ((total.mean(0) - want).abs() < 8 * error).all()
    torch.testing.assert_close(tw.compile(net, (x,))(x), want)


MODULES: dict[str, tuple[nn.Module, Callable[[Tensor], Any]]] = {
    "dropout": (nn.Dropout(0.25), lambda y: y == 0),
    "dropout2d": (nn.Dropout2d(0.25), lambda y: (y == 0).all((-1, -2))),
    "alpha": (nn.AlphaDropout(0.25), lambda y: y < 0),
    "feature alpha": (nn.FeatureAlphaDropout(0.25), lambda y: (y < 0).all((-1, -2))),
}


@pytest.mark.parametrize("name", MODULES)
def test_dropouts(name: str) -> None:
    """Shares of what is dropped, and the two values that are left, as torch has them."""
    module, gone = MODULES[name]
    x = torch.ones(100, 300, 2, 2)
    y = tw.compile(module, (x,))(x)
    assert_frequencies(gone(y).flatten().numpy()[:: 4 if name in ("dropout", "alpha") else 1], [0.75, 0.25])
    want = module(x)
    torch.testing.assert_close(y.unique(), want.unique())


def test_slopes_of_rrelu() -> None:
    y = drawn(lambda x: F.rrelu(x - 1, 0.1, 0.3, training=True))
    assert_distribution((-y - 0.1) / 0.2, unit)


def test_attention_with_dropout() -> None:
    """The mean over many calls is attention without it; a row's weights are dropped one by one."""
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    eye = torch.eye(7).expand(1, 2, 7, 7).contiguous()
    session = tw.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.25), (q, k, eye))
    weights = torch.stack([session(q, k, eye) for _ in range(4000)])
    want = F.scaled_dot_product_attention(q, k, eye)
    torch.testing.assert_close(weights.amax(0), want / 0.75)
    assert_frequencies((weights == 0).numpy(), [0.75, 0.25])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_network_with_dropout(kind: Any, both: bool) -> None:
    """(torch's decomposition forgets it.) The first layer has none, the second sees the first's result with elements dropped."""
    net, x = kind(6, 9, 2, dropout=0.5, batch_first=True, bidirectional=both), torch.randn(3, 5, 6)
    session = tw.compile(net, (x,))
    (a, end), (b, _) = session(x), session(x)
    assert a.shape == (3, 5, 18 if both else 9) and not torch.equal(a, b)
    h, want = (end[0], net(x)[1][0]) if kind is nn.LSTM else (end, net(x)[1])
    torch.testing.assert_close(h[: len(h) // 2], want[: len(h) // 2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(tw.compile(net.eval(), (x,))(x)[0], net(x)[0], rtol=1e-5, atol=1e-6)


def test_a_saved_session_draws_too(tmp_path: Path) -> None:
    session = tw.compile(nn.Dropout(0.5), (X,))
    session.save(tmp_path / "drop.tw")
    loaded = tw.load(tmp_path / "drop.tw")
    torch.manual_seed(1)
    want = session(X + 1)
    torch.manual_seed(1)
    assert torch.equal(loaded(X + 1), want)
    assert not torch.equal(loaded(X + 1), want)


def test_a_session_without_torch_draws_from_numpy(tmp_path: Path) -> None:
    tw.compile(nn.Dropout(0.5), (X,)).save(tmp_path / "drop.tw")
    text = f"""
import sys, numpy as np, tilewright as tw
session, x = tw.load({str(tmp_path / "drop.tw")!r}), np.ones({N}, np.float32)
np.random.seed(3)
a, b = session(x), session(x)
np.random.seed(3)
assert np.array_equal(session(x), a) and not np.array_equal(a, b) and "torch" not in sys.modules
print(a.mean())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - 1) < 7 / N**0.5


def test_any_size_and_an_input_of_the_same_name() -> None:
    """The hidden input takes another name; a row's mask depends on its number, not on how many there are."""

    def model(x: Tensor, seed: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + seed

    x = torch.ones(40, 30)
    session = tw.compile(model, (x, torch.zeros(())), dynamic={"x": {0: "n"}})
    assert session.interface.input_names == ("x", "seed", "seed_")
    torch.manual_seed(2)
    want = session(x, torch.ones(()))
    torch.manual_seed(2)
    assert torch.equal(session(x[:7], torch.ones(())), want[:7])
    assert_frequencies((want == 1).numpy(), [0.5, 0.5])


def test_dropout_beside_batch_norm() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).train()
    x = np.ones((4, 6), np.float32) * np.arange(4, dtype=np.float32)[:, None]
    apply, params = tw.from_torch(net, (torch.from_numpy(x),))
    out, buffers = apply(params, x, buffers=apply.buffers, key=tw.random.key(1))  # type: ignore[attr-defined]
    assert out.shape == (4, 8) and buffers["1.num_batches_tracked"] == 1
    with torch.no_grad():
        kept = net[1](net[0](torch.from_numpy(x))) * 2
    np.testing.assert_allclose(out[out != 0], kept.numpy()[out != 0], rtol=1e-4, atol=1e-5)


def test_a_module_as_a_function_takes_a_key() -> None:
    net, x = Net(), np.ones((4, 20), np.float32)
    apply, params = tw.from_torch(net, (torch.from_numpy(x),))
    one, two = tw.random.split(tw.random.key(0))
    np.testing.assert_array_equal(apply(params, x, key=one), apply(params, x, key=one))
    assert not np.array_equal(apply(params, x, key=one), apply(params, x, key=two))
    grads = tw.grad(lambda p, k: tw.sum(apply(p, x, key=k)))(params, one)
    step = {k: 1e-4 * np.sign(v) for k, v in grads.items()}  # small: few elements pass a kink on the way
    up, down = (float(tw.sum(apply({k: params[k] + s * step[k] for k in params}, x, key=one))) for s in (1, -1))
    assert abs((up - down) / 2 - sum(float((grads[k] * step[k]).sum()) for k in params)) < 5e-2 * abs(up - down)
    with pytest.raises(InputError, match=r"from_torch: the module draws random numbers .*apply\(params, ..., key=tw.random.key\(0\)\)"):
        apply(params, x)
    still, params = tw.from_torch(net.eval(), (torch.from_numpy(x),))
    with pytest.raises(InputError, match=r"from_torch: the module draws no random numbers in its mode .*leave out key="):
        still(params, x, key=one)


def test_what_is_not_supported_says_so() -> None:
    with pytest.raises(UnsupportedError, match="poisson"):
        tw.compile(lambda x: torch.poisson(x), (X,))
    with pytest.raises(UnsupportedError, match=r"random integers of 0 … .* - 1 need static bounds"):
        tw.compile(lambda x: torch.randint(0, x.shape[0], (3,)), (X,), dynamic={"x": {0: tw.Dim("n")}})
