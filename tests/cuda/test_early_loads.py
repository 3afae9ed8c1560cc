"""Loads before the wait for the previous kernel: only of what nothing in the program writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.ops as o
from tests.cuda.launching import graph, program
from tests.cuda.small_llama import Model, Sizes
from tilewright.core.dtypes import bf16
from tilewright.kernels.cuda.kernel import QDotKernel
from tilewright.kernels.launch import Buffer, Launch, Pointer, roots
from tilewright.ops.rows.norms import RmsNorm
from tilewright.target.cuda.code import emit_all
from tilewright.target.cuda.device import cuda_target
from tilewright.tile.ir import ViewType


def read_early(launch: Launch) -> set[Buffer]:
    """What the launch reads before its wait."""
    kernel: Any = launch.kernel
    if isinstance(kernel, QDotKernel):
        names = {w.name for w in kernel.weights} | ({kernel.norm.name} if kernel.norm is not None and kernel.norm_early else set())
    else:
        names = {*kernel.streamed, *getattr(kernel, "ready", ())} if getattr(kernel, "early", False) else set()
    found, words = set[Buffer](), iter(launch.arguments)
    for p in kernel.params:
        argument = next(words)
        for _ in (s for s in p.type.strides if s is None) if isinstance(p.type, ViewType) else ():
            next(words)
        if p.name in names:
            assert isinstance(argument, Pointer)
            found.update(roots(argument.buffer))
    return found


@pytest.mark.parametrize("packed", ["", "Q8_0"])
def test_nothing_in_a_step_writes_what_a_later_kernel_reads_early(packed: str, rng: np.random.Generator) -> None:
    """A kernel may begin before those far before it have ended: each starts the next one, and none waits for more than the one before."""
    model, written, kinds = Model(Sizes(width=256, inner=256), rng, packed), set[Buffer](), set[str]()
    for launch in program(model.graph).launches:
        early = read_early(launch)
        assert not early & written, launch.name
        kinds |= {b.kind for b in early}
        written |= {b for w in launch.writes for b in roots(w)}
    assert kinds == {"const" if packed else "input", "state"}  # matrices and norms, caches


def test_a_matrix_that_the_step_changes_is_read_after_the_wait(rng: np.random.Generator) -> None:
    """A donated matrix whose row is replaced in its own memory, and one that a product makes."""
    product = o.Matmul(transpose_b=True)
    g = graph(lambda x, m, row: ((m := o.UpdateSlice(axis=0, start=3)(m, row)), product(product(x, m), product(m, m))),
              (bf16, (1, 64)), (bf16, (64, 64)), (bf16, (1, 64)))  # fmt: skip
    g.donated = {1: 0}
    launches = program(g).launches
    assert sum(x.kernel.name.startswith("gemv") for x in launches) == 2 and not any(map(read_early, launches))


def test_a_norm_whose_weights_another_kernel_makes_waits_for_them() -> None:
    """Two launches that differ only in who wrote the norm's weights are two kernels, in whichever order they come."""
    product, norm = o.Matmul(transpose_b=True), RmsNorm(eps=1e-5, affine="weight")

    def early(made_first: bool) -> list[int]:
        """How many loads come before the wait, for each of two layers."""
        def layers(x: Any, w: Any, s: Any, m: Any) -> Any:
            made = o.reshape(product(o.reshape(w, (1, 256)), s), (256,))
            first, second = (made, w) if made_first else (w, made)
            return product(norm(product(norm(x, first), m), second), m)

        p = program(graph(layers, *((bf16, s) for s in ((1, 256), (256,), (256, 256), (256, 256)))))
        names = [x.kernel.name for x in p.launches if x.kernel.name.startswith("row_products")]
        texts = emit_all((x.kernel for x in p.launches), cuda_target("sm_90a"))
        return [texts[n][0].split("griddepcontrol.wait")[0].count("ld.global") for n in names]

    assert early(False) == [2, 1]  # the matrix and the weights, the matrix alone
    assert early(True) == [1, 2]
