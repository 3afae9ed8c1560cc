"""Small claims of docs/internals/hypotheses.md that need no GPU: views, empty inputs, targets side by side, branches, counts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph, program
from tilewright.core.dtypes import bf16, f32, i64
from tilewright.ir.layout import Layout
from tilewright.kernels.call import Call
from tilewright.kernels.launch import Buffer
from tilewright.ops.rows.norms import Softmax
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import cuda_target


def test_a_view_is_six_words() -> None:
    """50: under 1 % of a megabyte, at rank 5."""
    call = Call("k", "k")
    call.view("x", f32, Buffer("x", "input", 1 << 20, 0), Layout((8, 8, 8, 8, 64), (32768, 4096, 512, 64, 1)))
    assert 8 * len(call._arguments) == 40 < (1 << 20) // 100


@pytest.mark.parametrize("build, shapes", [
    (lambda x: Softmax(axis=1)(x), [(f32, (0, 5))]), (lambda x: o.Sum(axes=(0,))(x), [(f32, (0, 5))]),
    (lambda a, b: o.Matmul()(a, b), [(f32, (0, 8)), (f32, (8, 4))]), (lambda a, b: o.Matmul()(a, b), [(f32, (3, 0)), (f32, (0, 4))]),
    (lambda t, i: o.Gather(axis=0)(t, i), [(f32, (4, 8)), (i64, (0,))]), (lambda x: o.transpose(x, (1, 0)), [(f32, (0, 40))]),
])  # fmt: skip
def test_empty_inputs(build: Any, shapes: list[Any]) -> None:
    """88: nothing is run, or the sum of nothing is zero."""
    arrays = [np.zeros(s, d.np) for d, s in shapes]
    (got,) = Emulated(graph(build, *shapes))(*arrays)
    assert got.size == 0 or not got.any()


def test_targets_do_not_disturb_each_other() -> None:
    """87: the same code and the same bits before and after other targets compiled the same graph."""
    def build() -> Any:
        return graph(lambda x, w: o.Gelu()(o.Matmul(transpose_b=True)(x, w)), (f32, (5, 32)), (f32, (16, 32)))

    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 32)).astype(np.float32), rng.standard_normal((16, 32)).astype(np.float32)
    seen = []
    for name in ("cpu", "sm_90a", "cpu", "sm_80", "cpu"):
        session: Any = tw.compile(build(), target=name)
        if name == "cpu":
            seen.append((session(x, w).tobytes(), [k.name for launch in session.executable.program.launches for k in launch.kernels]))
    assert seen[0] == seen[1] == seen[2]


def branches(*shape: int) -> int:
    (launch,) = program(graph(lambda x: o.Gelu()(x), (bf16, shape))).launches
    return len(re.findall(r"\bbra", emit_cuda(launch.kernel, cuda_target())))


def test_odd_sizes_have_no_branches_of_their_own() -> None:
    """5: an edge is a predicate of an access, so threads of a warp take the same way."""
    assert branches(64, 4096) == branches(64, 4095) == branches(7, 33)


def test_barriers_are_counted_exactly() -> None:
    """106: one block reduction is one barrier, in the text and in the report."""
    session: Any = tw.compile(graph(lambda x: o.Sum(axes=(1,))(x), (f32, (8, 8192))), target="sm_90a")
    (code,), (kernel,) = session.executable.code.values(), session.report().data["kernels"].values()
    assert code.ptx.count("bar.sync") == kernel["barriers"]["bar.sync"] == 1


def test_loops_of_gpu_kernels_are_split() -> None:
    """51: the main loop of a split one has lost the masks that its counter decides, its tail has them; else nothing changes."""
    launches = program(graph(lambda x: o.Qr()(x), (f32, (3, 61, 61)))).launches  # one thread a matrix
    masks = {"main": 0, "tail": 0}
    for loop in (i for launch in launches for i in launch.kernel.walk()):
        for i in loop.blocks[0].body if "split" in loop.attrs else ():
            masks[loop.attrs["split"]] += len(i.attrs.get("limits", ()))
    assert masks["main"] < masks["tail"]
    (launch,) = program(graph(lambda x: o.Sort(axis=1)(x), (f32, (3, 21)))).launches
    assert not any("split" in i.attrs for i in launch.kernel.walk())
