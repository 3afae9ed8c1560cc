"""What a user does on a GPU: tensors in and out on any stream, derivatives, sizes that change, mistakes. Against PyTorch in float64."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.core.errors import ExecutionError, InputError
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")


def check_close(got: Any, want: Any, limit: float = 1e-5) -> None:
    """`got` is a CUDA tensor of the right shape, NaN where `want` is, else within `limit` of the largest element."""
    assert isinstance(got, torch.Tensor) and got.is_cuda and got.shape == want.shape
    a, b = got.detach().cpu(), want.detach().cpu()
    if not b.dtype.is_floating_point and not b.dtype.is_complex:
        assert torch.equal(a, b)
        return
    kind = torch.complex128 if b.dtype.is_complex else torch.float64
    a, b = a.to(kind), b.to(kind)
    assert torch.equal(torch.isnan(a), torch.isnan(b))
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    most = float(b.abs().max()) if b.numel() else 0.0
    assert bool(((a - b).abs() <= limit * (most + 1e-30)).all()), f"{float((a - b).abs().max()):.2e} apart, largest {most:.2e}"


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(65, 130), torch.nn.GELU(), torch.nn.Linear(130, 33)).eval().cuda()


def test_streams_and_no_copies() -> None:
    """The call waits for what its stream has to do before it, and its result is there for what comes after."""
    module, x = mlp(), torch.randn(7, 65, device="cuda")
    session: Any = tw.compile(module, (x,))
    want = module.double()(x.double())
    check_close(session(x), want)
    side: Any = torch.cuda.Stream()
    for stream in (side, torch.cuda.current_stream(), side):
        late, kept = torch.zeros_like(x), torch.empty(7, 33, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late.copy_(x)
            kept.copy_(session(late))
        stream.synchronize()
        check_close(kept, want)
    assert not session.copies
    with torch.inference_mode():
        check_close(session(x * 1), want)
    with pytest.warns(UserWarning, match="requires grad, and the results of a session have none"):
        check_close(session(x.clone().requires_grad_()), want)
    wide = torch.randn(7, 66, device="cuda")
    odd = wide.reshape(-1)[1 : 1 + 7 * 65].view(7, 65)  # four bytes off
    check_close(session(odd), module(odd.double()))
    check_close(session(wide[:, :65]), module(wide[:, :65].double()))
    assert sum(session.copies.values()) == 2


def test_two_threads() -> None:
    module, given = mlp(), [torch.randn(7, 65, device="cuda") for _ in range(4)]
    session: Any = tw.compile(module, (given[0],))
    exact = module.double()
    wanted = [exact(x.double()) for x in given]
    found: list[tuple[int, torch.Tensor]] = []

    def work(i: int) -> None:
        stream: Any = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            results = [session(given[i]) for _ in range(100)]
        stream.synchronize()
        found.extend((i, r) for r in results)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 400
    for i, r in found:
        check_close(r, wanted[i])


def test_a_stream_that_is_being_captured_is_refused() -> None:
    """Calls are graphs of their own. The error comes before anything that would spoil the capture."""
    module, x = mlp(), torch.randn(7, 65, device="cuda")
    session: Any = tw.compile(module, (x,))
    first = session(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.raises(ExecutionError, match="session: Sequential: the stream is being captured"):
            session(x)
    graph.replay()
    assert torch.equal(y, x + 1) and torch.equal(session(x), first)


def test_sizes_that_change() -> None:
    n, m = tw.Dim("N", 0, 5000), tw.Dim("M", 0, 300)

    class Several(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x @ w
            return (y.softmax(-1), y.sum(0), x.cumsum(0), (x > 0).sum(-1), torch.cat([x, x.flip(0)]), y.T * 2)

    module = Several()
    example = (torch.randn(3, 40), torch.randn(40, 5))
    for dtype, limit in ((torch.float32, 2e-5), (torch.float64, 1e-12), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        session: Any = tw.compile(module, tuple(a.to(dtype) for a in example), dynamic={"x": {0: n}, "w": {1: m}}, target="cuda")
        for rows, columns in ((3, 5), (0, 5), (5000, 1), (1, 300), (127, 0), (0, 0), (1023, 257), (3, 5)):
            x, w = torch.randn(rows, 40, device="cuda").to(dtype), torch.randn(40, columns, device="cuda").to(dtype)
            want = module(x.double(), w.double())
            for got, right in zip(session(x, w), want, strict=True):
                assert got.dtype == (dtype if right.dtype == torch.float64 else right.dtype)
                check_close(got, right, limit)


def spd(x: Any) -> Any:
    return x @ x.T + 40 * tw.eye(33, dtype=x.dtype)


FUNCTIONS: dict[str, Any] = {  # matrices are well conditioned: of a square one of random numbers one draw in 500 is too far off in f32
    "sort": lambda x: tw.sort(x, axis=-1),
    "sort rows": lambda x: tw.sort(x, axis=0),
    "argsort": lambda x: tw.argsort(x, axis=-1),
    "top k": lambda x: tw.top_k(x, 5)[0],
    "cumsum": lambda x: tw.cumsum(x, axis=0),
    "cumprod": lambda x: tw.cumprod(x, axis=1),
    "where": lambda x: tw.where(x > 0, x, tw.exp(x)),
    "einsum": lambda x: tw.einsum("ij,kj->ik", x, x),
    "triu": tw.triu,
    "take": lambda x: tw.take(x, np.array([5, 0, 5, 3]), axis=0),
    "std": lambda x: tw.std(x, axis=1),
    "argmax": lambda x: tw.argmax(x, axis=1),
    "scatter add": lambda x: tw.scatter_add(tw.zeros_like(x), np.array([1, 1, 2] * 11), x),
    "logsumexp": lambda x: tw.logsumexp(x, axis=0),
    "fft": lambda x: tw.abs(tw.fft.fft(x)),
    "rfft": lambda x: tw.abs(tw.fft.rfft(x, axis=0)),
    "solve": lambda x: tw.linalg.solve(spd(x), x),
    "det": lambda x: tw.linalg.det(x[:5, :5] + 8 * tw.eye(5, dtype=x.dtype)),
    "cholesky": lambda x: tw.linalg.cholesky(spd(x)),
    "qr": lambda x: tw.abs(tw.linalg.qr(x.T[:, :17])[1]),
    "svd": lambda x: tw.linalg.svd(x)[1],
    "eigh": lambda x: tw.linalg.eigh(x @ x.T)[0],
    "inv": lambda x: tw.linalg.inv(spd(x)),
    "floor divide": lambda x: tw.floor_divide(x, 0.3),
    "remainder": lambda x: tw.remainder(x, 0.7),
    "erf": tw.erf,
    "gelu": tw.gelu,
    "vmap": lambda x: tw.vmap(lambda r: tw.sort(r) * tw.sum(r))(x),
    "grad": lambda x: tw.grad(lambda y: tw.sum(tw.tanh(y @ y.T)))(x),
    "jvp": lambda x: tw.jvp(lambda y: tw.softmax(y, axis=-1), (x,), (x * x,))[1],
    "jacobian": lambda x: tw.jacobian(lambda r: tw.sin(r) * tw.sum(r))(x[0]),
    "hessian": lambda x: tw.hessian(lambda r: tw.sum(r**4) + tw.prod(r[:3]))(x[0]),
    "gradients of rows": lambda x: tw.vmap(tw.grad(lambda r: tw.sum(tw.cumsum(r) ** 2)))(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """The same function of the CPU's float64 (which other tests hold against PyTorch) and of CUDA tensors, traced as they are."""
    x = torch.randn(33, 37)
    if name in ("floor divide", "remainder"):  # not beside a jump
        x = (torch.randint(-20, 20, (33, 37)) + 0.31) * (0.3 if name == "floor divide" else 0.7)
    f = FUNCTIONS[name]
    want = torch.from_numpy(np.asarray(tw.jit(f)(x.double().numpy())))
    for given, limit in ((x.cuda(), 3e-5), (x.double().cuda(), 1e-11)):
        check_close(tw.jit(f, target="cuda")(given), want, limit)
        if name in ("vmap", "grad", "gradients of rows"):  # transforms compile by themselves
            check_close(f(given), want, limit)


def test_nan_goes_where_it_goes_in_pytorch() -> None:
    x = torch.randn(33, 37, device="cuda")
    x[3, 5], x[7], x[9, 9] = float("nan"), float("nan"), float("inf")

    def several(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        folded = y.amax(1), y.amin(0), y.softmax(1), y.cumsum(1), y.argmax(1), y.cummax(0)[0], F.layer_norm(y, (37,)), y.sum()
        return *folded, torch.relu(y), y.clamp(-1, 1), torch.maximum(y, y.flip(0)), y.sort(1)[0], torch.isnan(y)

    class Several(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return several(x)

    for got, want in zip(tw.compile(Several(), (x,), target="cuda")(x), several(x.cpu().double()), strict=True):
        check_close(got, want, 1e-5)


def test_training_a_module() -> None:
    """A step of AdamW on the GPU follows PyTorch's own."""
    torch.manual_seed(3)
    names = {"a": (65, 40), "b": (40,), "c": (40, 10)}
    theirs = {k: (torch.randn(s, device="cuda") * 0.1).requires_grad_() for k, s in names.items()}
    ours: Any = {k: v.detach().clone() for k, v in theirs.items()}
    torch_opt, opt = torch.optim.AdamW(theirs.values(), 1e-2, weight_decay=0.0, eps=1e-8), tw.optim.adamw(1e-2, weight_decay=0.0)
    state = opt.init(ours)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return tw.mean(tw.softmax_cross_entropy(tw.tanh(x @ p["a"] + p["b"]) @ p["c"], y))

    @tw.jit
    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = tw.value_and_grad(loss)(p, x, y)
        return (*opt.update(p, grads, state), value)

    for _ in range(5):
        x, y = torch.randn(33, 65, device="cuda"), torch.randint(0, 10, (33,), device="cuda")
        ours, state, value = step(ours, state, x, y)
        right = F.cross_entropy(torch.tanh(x @ theirs["a"] + theirs["b"]) @ theirs["c"], y)
        torch_opt.zero_grad()
        right.backward()
        torch_opt.step()
        check_close(value, right.detach(), 1e-3)
    for k in names:
        check_close(ours[k], theirs[k].detach(), 5e-3)


def until_found(f: Any, *args: Any) -> None:
    """What a kernel finds is raised by a later call."""
    for _ in range(3):
        f(*args)
        torch.cuda.synchronize()


def test_mistakes() -> None:
    f: Any = tw.jit(lambda x, y: x // y, target="cuda")
    one, two = torch.tensor([7, -7, 9], device="cuda"), torch.tensor([2, 2, -4], device="cuda")
    assert f(one, two).tolist() == [3, -4, -3]
    session: Any = tw.compile(mlp(), (torch.randn(7, 65, device="cuda"),))
    with pytest.raises(InputError, match=r"must be f32\[7,65\], got f32\[8,65\]"):
        session(torch.randn(8, 65, device="cuda"))
    with pytest.raises(InputError, match=r"must be f32\[7,65\], got f64\[7,65\]"):
        session(torch.randn(7, 65, device="cuda", dtype=torch.float64))
    with pytest.raises(InputError, match="must be on the GPU"):
        session(torch.randn(7, 65))
    with pytest.raises((InputError, TypeError)):
        session()
    with pytest.raises(InputError):
        session("seven")
    taking: Any = tw.jit(lambda t, i: tw.take(t, i, axis=0), target="cuda")
    table = torch.randn(5, 3, device="cuda")
    check_close(taking(table, torch.tensor([4, 0], device="cuda")), table[[4, 0]])
    with pytest.raises(ExecutionError, match="out of range, got 5"):
        until_found(taking, table, torch.tensor([4, 5], device="cuda"))
    check_close(taking(table, torch.tensor([1, 0], device="cuda")), table[[1, 0]])


def test_division_by_zero_is_found() -> None:
    f: Any = tw.jit(lambda x, y: x // y, target="cuda")
    one, none = torch.tensor([7, -7, 9], device="cuda"), torch.tensor([2, 0, 1], device="cuda")
    with pytest.raises(ExecutionError, match="not divided by 0"):
        until_found(f, one, none)


def test_out_of_memory_says_so_and_leaves_the_session_whole() -> None:
    n = tw.Dim("N", 4, 1 << 20)

    class Outer(torch.nn.Module):
        def __init__(self, keep: bool) -> None:
            super().__init__()
            self.keep = keep

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x[:, None] * x[None, :]).sort(1)[0]
            return y if self.keep else y[:, 3].cumsum(0)

    small, large = torch.randn(40, device="cuda"), torch.randn(400_000, device="cuda")
    for keep in (True, False):
        session: Any = tw.compile(Outer(keep), (small,), dynamic={"x": {0: n}})
        check_close(session(small), Outer(keep)(small.double()))
        with pytest.raises((ExecutionError, torch.OutOfMemoryError), match=r"(?i)memory"):
            session(large)
        check_close(session(small), Outer(keep)(small.double()))
    assert torch.equal(torch.ones(3, device="cuda") + 1, torch.full((3,), 2.0, device="cuda"))


def test_eight_bits() -> None:
    x = torch.randn(33, 37, device="cuda")
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):

        class Through(torch.nn.Module):
            def forward(self, x: torch.Tensor, kind: torch.dtype = kind) -> torch.Tensor:
                return x.to(kind).to(torch.float32) * 2

        check_close(tw.compile(Through(), (x,), target="cuda")(x), Through()(x), 1e-7)

    class Integers(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return a + b, (a.int() * b.int()).sum(1), a // b.abs().clamp(min=1), a.max(0)[0], a.float() @ b.float().T

    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        low = 0 if dtype == torch.uint8 else -100
        a, b = (torch.randint(low, 100, (33, 37), device="cuda").to(dtype) for _ in range(2))
        session: Any = tw.compile(Integers(), (a, b), target="cuda")
        for got, want in zip(session(a, b), Integers()(a.cpu(), b.cpu()), strict=True):
            check_close(got, want, 1e-6)


def test_save_load_profile_and_report(tmp_path: Any) -> None:
    module, x = mlp(), torch.randn(7, 65, device="cuda")
    session: Any = tw.compile(module, (x,))
    first = session(x)
    session.save(tmp_path / "m.tw")
    assert torch.equal(tw.load(tmp_path / "m.tw")(x), first)
    text = str(session.report()) + str(session.profile(x, repeat=3))
    for word in ("registers", "shared", "barrier", "us"):
        assert word in text
    assert "nan" not in text.lower()
