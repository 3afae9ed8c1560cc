"""The worked kernels against PyTorch and NumPy: odd sizes, none, NaN, other dtypes, operands that do not lie contiguous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.lang.examples import NAMES, example

LIMIT = {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-12, np.dtype(np.float16): 4e-3, np.dtype(ml_dtypes.bfloat16): 3e-2}
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def draw(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return fresh_rng().standard_normal(shape).astype(dtype)


def assert_close(got: Any, want: Any, dtype: Any) -> None:
    limit = LIMIT[np.dtype(dtype)]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=limit, atol=limit)


def wide(x: Any) -> Any:
    return torch.from_numpy(np.asarray(x, np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example(name).main()
    assert capsys.readouterr().out.startswith((name, "layer_norm"))


@pytest.mark.parametrize("n", [0, 1, 5, 1024, 2049])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float16])
def test_vector_add(n: int, dtype: Any) -> None:
    x, y = (fresh_rng().integers(0, 100, (2, n))).astype(dtype)
    got = example("vector_add").vector_add(x, y)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x + y)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5, 7), (3, 64), (1, 200), (0, 9), (4, 0)])
def test_softmax(shape: tuple[int, int], dtype: Any) -> None:
    x = draw(shape, dtype)
    assert_close(example("softmax").softmax(x), torch.softmax(wide(x), -1), dtype)


def test_softmax_of_nan_and_infinities() -> None:
    x = draw((4, 70))
    x[0, 3], x[1, 69], x[2, 0] = np.nan, np.inf, -np.inf
    want = torch.softmax(torch.from_numpy(x), -1).numpy()
    np.testing.assert_allclose(example("softmax").softmax(x), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(3, 3), (5, 70), (40, 131), (2, 9)])
def test_stencil(shape: tuple[int, int], dtype: Any) -> None:
    x = draw(shape, dtype)
    w = x.astype(np.float64)
    assert_close(example("stencil").stencil(x), (w[:-2, 1:-1] + w[2:, 1:-1] + w[1:-1, :-2] + w[1:-1, 2:]) / 4, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 13, 65), (140, 33, 70), (6, 0, 8), (0, 4, 4)])
def test_matmul(sizes: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = sizes
    a, b = draw((m, k), dtype), draw((k, n), dtype)
    want = a.astype(np.float64) @ b.astype(np.float64)
    got = example("matmul").matmul(a, b, BK=16)
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    assert_close(got.astype(np.float64) / scale, want / scale, dtype)


def test_the_matmul_for_gpus_runs_on_a_cpu_too() -> None:
    a, b = draw((30, 21)), draw((21, 40))
    assert_close(example("matmul").matmul_tiles(a, b, BM=4, BN=16, BK=8), a.astype(np.float64) @ b, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("sizes", [(2, 1, 1, 16), (1, 70, 100, 32), (3, 9, 65, 64)])
def test_attention(sizes: tuple[int, int, int, int], dtype: Any) -> None:
    h, s, n, d = sizes
    q, k, v = draw((h, s, d), dtype), draw((h, n, d), dtype), draw((h, n, d), dtype)
    want = torch.nn.functional.scaled_dot_product_attention(*map(wide, (q, k, v)))
    assert_close(example("attention").attention(q, k, v), want, dtype)
    assert_close(example("attention").attention_tiles(q, k, v, BM=4, BN=16), want, dtype)


@pytest.mark.parametrize("shape", [(5, 7), (9, 130), (3, 64)])
def test_layer_norm_and_its_gradients(shape: tuple[int, int]) -> None:
    x, w, b, g = draw(shape), draw(shape[1:]), draw(shape[1:]), draw(shape)
    norm = example("layer_norm").layer_norm
    t = [wide(a).requires_grad_() for a in (x, w, b)]
    y = torch.nn.functional.layer_norm(t[0], shape[1:], t[1], t[2], 1e-5)
    y.backward(wide(g))
    assert_close(norm(x, w, b), y.detach(), np.float32)
    grads = tw.grad(lambda *p: tw.sum(norm(*p) * g), argnums=(0, 1, 2))(x, w, b)
    for got, want in zip(grads, t, strict=True):
        np.testing.assert_allclose(got, want.grad, rtol=1e-3, atol=1e-4)


def test_operands_that_do_not_lie_contiguous() -> None:
    """Strides are read as they are: transposed, every second, backwards, broadcast, and results too."""
    base = draw((300, 200))
    soft = example("softmax").softmax
    for x in (base.T, base[::2, ::3], base[::-1, ::-1], base[5:9, 7:100], np.broadcast_to(base[:1], (6, 200)), np.asfortranarray(base[:7])):
        want = torch.softmax(wide(x), -1)
        assert_close(soft(x), want, np.float32)
        out = np.full((x.shape[0], 2 * x.shape[1]), 7, np.float32)[:, ::2]
        assert soft(x, out=out) is out
        assert_close(out, want, np.float32)
    a, b = base.T[:50], base[:, ::-1]
    assert_close(example("matmul").matmul(a, b), a.astype(np.float64) @ b, np.float32)
    x = np.frombuffer(b"\0" + base.tobytes(), np.uint8)[1:].view(np.float32)  # elements at odd addresses
    np.testing.assert_array_equal(example("vector_add").vector_add(x, x), 2 * x)


def test_results_next_to_each_other_are_not_touched() -> None:
    """A strided result is written through its strides: what lies between stays."""
    x = draw((3, 101))
    room = np.full((3, 303), 7, np.float32)
    example("softmax").softmax(x, out=room[:, 1:304:3])
    kept = np.delete(room, np.s_[1::3], axis=1)
    assert (kept == 7).all()
    assert_close(room[:, 1::3], torch.softmax(wide(x), -1), np.float32)


def test_torch_in_torch_out() -> None:
    x = torch.randn(6, 33)
    got = example("softmax").softmax(x)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, torch.softmax(x, -1))
    b = torch.randn(40, 3).to(torch.bfloat16)
    assert example("softmax").softmax(b.T).dtype is torch.bfloat16


class Foreign:
    """Another library's array: it has the protocol of DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries() -> None:
    x = draw((4, 30))
    assert_close(example("softmax").softmax(Foreign(x)), torch.softmax(wide(x), -1), np.float32)
    assert_close(example("softmax").softmax(x.astype(">f4")), torch.softmax(wide(x), -1), np.float32)
    assert_close(example("vector_add").vector_add([1.0, 2.0], [3.0, 4.0]), [4.0, 6.0], np.float64)


def test_inside_jit_with_neighbours() -> None:
    x = draw((5, 40))
    soft = example("softmax").softmax
    got = tw.jit(lambda a: tw.sum(soft(tw.tanh(a).T) * 2.0, axis=0))(x)
    assert_close(got, 2 * torch.softmax(torch.tanh(wide(x)).T, -1).sum(0), np.float32)
    with pytest.raises(tw.UnsupportedError, match=r"kernel_softmax: has no reverse-mode derivative: .* tw.custom_vjp"):
        tw.grad(lambda a: tw.sum(soft(a)))(x)


def test_arrays_in_arrays_out() -> None:
    x = draw((5, 40))
    soft, add = example("softmax").softmax, example("vector_add").vector_add
    ours = soft(tw.asarray(x).T[::-1])
    assert type(ours) is tw.Array
    assert_close(ours.numpy(), torch.softmax(wide(x).T.flip(0), -1), np.float32)
    assert type(soft.debug(tw.asarray(x[:1]))) is tw.Array
    out = tw.zeros(40)
    kept = out.view()  # shares out's memory, which the kernel must not write then
    assert add(tw.asarray(x[0]), x[1], out=out) is out
    assert_close(out.numpy(), wide(x[0]) + wide(x[1]), np.float32)
    assert not kept.numpy().any()


def test_vmap_is_the_stack_of_cases() -> None:
    x = draw((3, 2, 5, 40))
    soft, add = example("softmax").softmax, example("vector_add").vector_add
    assert_close(tw.vmap(tw.vmap(soft))(x), torch.softmax(wide(x), -1), np.float32)
    assert_close(tw.vmap(add, in_axes=(0, None))(x[0, 0], x[1, 1, 2]), wide(x[0, 0]) + wide(x[1, 1, 2]), np.float32)
    assert_close(tw.vmap(add, in_axes=(None, 1))(x[0, 0, 0], x[1, 1].T), wide(x[1, 1]) + wide(x[0, 0, 0]), np.float32)
    assert tw.vmap(soft)(x[:0, 0]).shape == (0, 5, 40)
    assert type(tw.vmap(soft)(tw.asarray(x[0]))) is tw.Array


def test_dynamic_sizes_and_files(tmp_path: Path) -> None:
    soft = example("softmax").softmax
    f = tw.jit(lambda a: soft(a) * 2.0, dynamic={"a": {0: "M", 1: "N"}})
    for shape in ((1, 3), (4, 64), (7, 100)):
        x = draw(shape)
        assert_close(f(x), 2 * torch.softmax(wide(x), -1), np.float32)
    assert "1 signatures" in repr(f)
    f.save(tmp_path / "f.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "f.tw")(x), f(x))


def test_one_kernel_serves_all_sizes() -> None:
    soft = example("softmax").softmax
    soft(draw((3, 5)))
    before = len(soft._compiled)
    for n in (2, 63, 64, 65, 400):
        soft(draw((n, n)))
    assert len(soft._compiled) == before


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.target.cpu.host import host_target

    try:
        host_target(level=level)  # type: ignore[arg-type]
    except tw.ConfigError:
        pytest.skip(f"this machine has no {level}")
    monkeypatch.setenv("TILEWRIGHT_CPU", level)
    a, b = draw((19, 40)), draw((40, 70))
    assert_close(example("matmul").matmul(a, b), a.astype(np.float64) @ b, np.float32)
    assert_close(example("softmax").softmax(a), torch.softmax(wide(a), -1), np.float32)


def test_threads_share_a_kernel() -> None:
    import threading

    soft, x = example("softmax").softmax, draw((40, 333))
    want, wrong = soft(x), list[int]()

    def work() -> None:
        wrong.extend(1 for _ in range(50) if not np.array_equal(soft(x), want))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_graphs_with_sizes_that_vary() -> None:
    """A session with a symbolic dim holds one kernel for all of them."""
    from tilewright.compile import compile_graph, graph_signature, target_spec
    from tilewright.core.dims import sym
    from tilewright.core.dtypes import f32
    from tilewright.ir.graph import Graph
    from tilewright.ir.types import TensorType

    graph, x = Graph("varying"), draw((50, 33))
    graph.outputs = [example("softmax").softmax.op_class(())(graph.input(TensorType(f32, (sym("S", 0, 100), 33)), "x"))]
    session = compile_graph(graph, graph_signature(graph), target_spec("cpu"))
    for n in (7, 50, 0, 1):
        assert_close(session(x[:n]), torch.softmax(wide(x[:n]), -1), np.float32)


def test_a_signal_ends_a_long_launch() -> None:
    import signal

    class Enough(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Enough

    a, product = draw((2500, 2500)), example("matmul").matmul
    product(a[:10], a)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Enough):
            [product(a, a) for _ in range(20)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert_close(product(a[:9, :20], a[:20]), a[:9, :20].astype(np.float64) @ a[:20], np.float32)
