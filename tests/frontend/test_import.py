"""What is accepted besides modules, names of dims, in-place writes, no_grad regions; and one readable error for what is not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import hugging, plain
from tilewright.core.dims import sym
from tilewright.core.errors import CompileError, ConfigError, UnsupportedError
from tilewright.frontend.torch import import_torch, versions
from tilewright.frontend.torch.importer import from_program

from .check import assert_close, call, check

T = torch.Tensor


def test_exported_program() -> None:
    module, x = plain.randomised(plain.Block(16, 2)), torch.randn(2, 5, 16)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {1: torch.export.Dim("S", min=2, max=40)}})
    imported = import_torch(program)
    for s in (2, 5, 40):
        y = torch.randn(2, s, 16)
        with torch.no_grad():
            assert_close(call(imported, (y,)), module(y))
    (symbol,) = imported.graph.symbols()
    assert (symbol.lo, symbol.hi) == (2, 40)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_decomposed_program() -> None:
    """A program that the user has already lowered to core ATen."""
    for build, args in (
        (lambda: plain.Block(16, 2, causal=True), (torch.randn(2, 5, 16),)),
        (plain.ConvNet, (torch.randn(1, 3, 17, 17),)),
        (plain.LlamaBlock, (torch.randn(1, 4, 32),)),
    ):
        module = plain.randomised(build())
        with torch.no_grad():
            program = torch.export.export(module, args).run_decompositions()
            assert_close(call(import_torch(program), args), module(*args))


def test_exported_program_with_dynamic_is_refused() -> None:
    program = torch.export.export(plain.MLP(3), (torch.randn(2, 3),))
    with pytest.raises(CompileError, match="already has its dynamic dims"):
        import_torch(program, dynamic={"x": {0: sym("B")}})


def test_torch_dynamic_shapes() -> None:
    x = torch.randn(3, 5)
    named = check(lambda x: x.sum(0), (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=1, max=9)}}, more=[(torch.randn(9, 5),)])
    (symbol,) = named.graph.symbols()
    assert (symbol.name, symbol.lo, symbol.hi) == ("rows", 1, 9)
    auto = check(lambda x: x.sum(0), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), more=[(torch.randn(7, 5),)])
    assert len(auto.graph.symbols()) == 1


def test_callable_and_bound_method() -> None:
    module = plain.randomised(plain.MLP(4))
    check(lambda x: torch.tanh(x) + 1, (torch.randn(3),))
    imported = check(module.forward, (torch.randn(2, 4),))
    assert imported.signature.params == ("x",)


def test_derived_and_shared_dims() -> None:
    half = sym("H", 1, 8)
    imported = check(
        lambda x, y: x.view(x.shape[0] // 2, 2) + y[:, None],
        (torch.randn(6), torch.randn(3)),
        dynamic={"x": {0: 2 * half}, "y": {0: half}},
        more=[(torch.randn(2), torch.randn(1)), (torch.randn(16), torch.randn(8))],
    )
    assert [str(v.type) for v in imported.graph.inputs] == ["f32[2*H]", "f32[H]"]


def test_example_of_size_one_stays_dynamic() -> None:
    b, s = sym("B", 1, 8), sym("S", 0, 8)
    check(
        lambda x: torch.cat([x, x * 2], 1),
        (torch.randn(1, 1, 3),),
        dynamic={"x": {0: b, 1: s}},
        more=[(torch.randn(4, 6, 3),), (torch.randn(1, 2, 3),), (torch.randn(3, 0, 3),)],
    )


def test_size_arithmetic() -> None:
    def fn(x: T) -> Any:
        n = x.shape[0]
        return x * n, torch.arange(n) + n, n + 3, n // 2, n % 3, x[::2], torch.full((n, 2 * n + 1), 1.0), x[: n - 1], x[n - 1 :]

    check(fn, (torch.randn(7),), dynamic={"x": {0: sym("N", 3, 50)}}, more=[(torch.randn(3),), (torch.randn(8),), (torch.randn(49),)])


def test_counting_in_steps_of_a_size() -> None:
    """Bags of ids in rows begin at multiples of the rows' length."""
    bag = torch.nn.EmbeddingBag(9, 4)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return bag(x), torch.arange(x.shape[0], 2 * x.numel(), x.shape[1], dtype=torch.float32)

    more = [(torch.randint(0, 9, size),) for size in ((2, 2), (7, 33))]
    check(fn, (torch.randint(0, 9, (3, 5)),), dynamic={"x": {0: sym("B", 2, 64), 1: sym("T", 2, 64)}}, more=more)



BAD_DYNAMIC: dict[str, tuple[Any, type[Exception], str]] = {
    "name": ({"z": {0: sym("B")}}, ConfigError, "there is no argument 'z'; the arguments are x"),
    "axis": ({"x": {5: sym("B")}}, ConfigError, "x has 2 axes, got axis 5"),
    "list": ({"x": [0]}, ConfigError, "x has 2 axes, got a list of 1; {axis: Dim} names some"),
    "range": ({"x": {0: sym("B", 4, 9)}}, ConfigError, "the example has B=2, outside 4..9"),
    "form": ({"x": {0: sym("B") * sym("B")}}, ConfigError, "must be a symbol or a"),
    "twice": ({"x": {0: sym("B"), 1: sym("B")}}, ConfigError, "does not fit B with B=2"),
    "entry": ({"x": 3}, ConfigError, "x needs {axis: Dim}, got 3"),
    "fixed": ({"x": {1: sym("K", 1, 9)}}, CompileError, "torch.export"),
}


@pytest.mark.parametrize("name", BAD_DYNAMIC)
def test_bad_dynamic(name: str) -> None:
    dynamic, error, message = BAD_DYNAMIC[name]
    with pytest.raises(error, match=re.escape(message)):
        import_torch(plain.MLP(3), (torch.randn(2, 3),), dynamic=dynamic)


def test_divisibility_is_explained() -> None:
    with pytest.raises(CompileError, match=r"torch.export: Constraints violated \(S\).*declare the dims as torch suggests: .*S = 2\*_S"):
        import_torch(lambda x: x.view(2, -1), (torch.randn(8),), dynamic={"x": {0: sym("S", 1, 64)}})


def test_rejected_export() -> None:
    def fn(x: T) -> T:
        return x if x.sum() > 0 else x * 2

    with pytest.raises(CompileError, match=r"torch.export: Could not guard on data-dependent .*torch\.where.*\(test_import\.py:\d+\)"):
        import_torch(fn, (torch.randn(3),))


def test_a_model_that_does_not_run(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """torch's complaint, the line of the model, and nothing else."""

    def fn(x: T) -> T:
        return x @ torch.ones(5, 4)

    line = fn.__code__.co_firstlineno + 1
    message = rf"must have same reduction dim, but got \[2, 3\] X \[5, 4\]; the model does not run .*\(test_import\.py:{line}\)$"
    with pytest.raises(CompileError, match=message):
        import_torch(fn, (torch.randn(2, 3),))
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def test_a_model_that_runs_but_cannot_be_traced() -> None:
    """torch raises the same class as for a wrong call; nobody is told that the model does not run."""

    def fn(x: T) -> T:
        return torch.from_numpy(x.numpy() * 2)

    fn(torch.randn(3))
    with pytest.raises(CompileError, match=rf"numpy\(\) is not supported .*; rewrite that part .*:{fn.__code__.co_firstlineno + 1}\)$"):
        import_torch(fn, (torch.randn(3),))


def test_result_of_an_unknown_class() -> None:
    class Thing:
        def __init__(self, x: T) -> None:
            self.x = x

    with pytest.raises(CompileError, match=r"Thing'> in output, which is not a known type; return tensors in tuples, lists and dicts"):
        import_torch(lambda x: Thing(x), (torch.randn(3),))


def test_not_a_model() -> None:
    with pytest.raises(CompileError, match=r"compile: takes a torch.nn.Module, a function, an ExportedProgram or an ONNX file, got int"):
        import_torch(3, ())


def test_unsupported_ops_are_listed_once_with_counts_and_places() -> None:
    def fn(x: T) -> Any:
        y = torch.linalg.ldl_factor(x)[0]
        z = torch.linalg.ldl_factor(y)[0]
        return z.sum() + torch.bincount(x.long().flatten(), minlength=4).sum()

    with pytest.raises(UnsupportedError) as caught:
        import_torch(fn, (torch.rand(3, 3),))
    text = str(caught.value)
    # the second one reads the first: not reported
    assert re.search(r"aten\.linalg_ldl_factor_ex\.default x1 \(first at test_import\.py:\d+\)", text)
    assert re.search(r"aten\.bincount\.default x1 \(first at test_import\.py:\d+\)", text)


def test_a_boolean_mask_as_an_index_is_explained() -> None:
    with pytest.raises(UnsupportedError, match="depends on the data"):
        import_torch(lambda x: x[x > 0], (torch.randn(3),))


def test_training_batch_norm() -> None:
    with pytest.raises(UnsupportedError, match=r"running_mean|num_batches_tracked|training mode"):
        import_torch(nn.BatchNorm1d(3), (torch.randn(4, 3),))


def test_written_buffers_and_inputs_are_named() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: T
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: T) -> T:
            self.count += x
            return self.count * 2

    with pytest.raises(UnsupportedError, match=r"writes to count in place, which is not supported here"):
        import_torch(Counter(), (torch.ones(3),))
    imported = import_torch(lambda y, x: (x.add_(y), x * 2), (torch.ones(3), torch.ones(3)))
    assert imported.signature.updates == ((1, 0),)  # the session writes it back


def in_place(x: T) -> Any:
    y = x * 2
    y += 1
    view = y.view(-1)
    F.relu_(view)
    z = y.clone()
    z[0] = 5.0
    z[:, 1:] *= 2
    return y, view + 1, z


def test_recurrent_layers_are_unrolled_by_decomposition() -> None:
    check(nn.GRU(4, 5, batch_first=True).eval(), (torch.randn(2, 3, 4),))
    check(nn.LSTM(4, 5).eval(), (torch.randn(3, 2, 4),))


def test_in_place_writes() -> None:
    check(in_place, (torch.randn(3, 4),))
    check(lambda x: (x + 1).relu_().mul_(3), (torch.randn(3),))


def test_in_place_write_inside_a_region() -> None:
    def fn(x: T) -> T:
        y = x * 2
        with torch.no_grad():
            y += 1
        return y * 3

    x = torch.randn(3)
    program = torch.export.export(_Wrap(fn), (x,))
    assert_close(call(import_torch(program), (x,)), fn(x))


def test_no_grad_and_autocast_regions_are_inlined() -> None:
    def fn(x: T) -> T:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", enabled=False):
            y = y + 1
        return y * x

    x = torch.randn(3)
    program = torch.export.export(_Wrap(fn), (x,))
    assert_close(call(from_program(program, name="f"), (x,)), fn(x))
    with pytest.raises(UnsupportedError, match="autocast"):
        import_torch(lambda x: _autocast(x), (torch.randn(2, 2),))


def _autocast(x: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


class _Wrap(nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: T) -> T:
        return self.fn(x)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_unsupported_dtype_and_device() -> None:
    with pytest.raises(UnsupportedError, match="complex32"):
        import_torch(lambda x: x * 2, (torch.randn(3, dtype=torch.complex32),))
    with pytest.raises((UnsupportedError, CompileError), match="meta"):
        import_torch(nn.Linear(2, 2, device="meta"), (torch.randn(1, 2),))


def test_places_and_names() -> None:
    imported = import_torch(plain.randomised(plain.MLP(3)), (torch.randn(2, 3),))
    relu = next(n for n in imported.graph if n.op.name == "relu")
    assert re.fullmatch(r"plain\.py:\d+( in [\w.]+)?", relu.place)
    assert relu.name == "relu"
    assert imported.graph.name == "MLP"


def test_import_is_quick() -> None:
    program = torch.export.export(hugging.gpt2(n_inner=64), (torch.randint(0, 9, (1, 8)),))
    import_torch(program)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()  # not the clock: a busy machine is no failure
        import_torch(program)
        best = min(best, time.process_time() - start)
    assert best < 1.0


def test_releases_of_torch_beyond_those_tested_are_named_once() -> None:
    versions.check(torch.__version__)
    versions.check("2.11.0+cu130")
    for other in ("2.15.0", "2.10.1", "3.0.0a0+git"):
        with pytest.warns(UserWarning, match=rf"release {re.escape(other)} is not one of those .* 2.11 to 2.13; .*torch>=2.11,<2.14"):
            versions.check(other)
        versions.check(other)  # warnings are errors here


def test_what_looks_at_data_only_to_check_it() -> None:
    layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24, 0.0, batch_first=True), 1).eval()
    labels = torch.tensor([[0, 3, -1, 1], [-1, 2, 0, 1], [3, 2, 1, 0]])

    def losses(x: torch.Tensor) -> Any:
        return (F.gaussian_nll_loss(x, x * 0.5, x.abs(), full=True), F.gaussian_nll_loss(x, x * 0.5, x.abs()[:, 0], reduction="none"),
                F.multilabel_margin_loss(x, labels), F.multilabel_margin_loss(x, labels, reduction="none"))

    x, y = torch.randn(3, 4), torch.randn(2, 5, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    check(losses, (x,))
    check(lambda y, m: layer(y, y, tgt_mask=m), (y, mask))
