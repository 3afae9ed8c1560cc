"""A kernel's name is a hash of its whole description: whatever its code depends on gives another name, and equal kernels have one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.cuda.launching import graph, program
from tilewright import ops as o
from tilewright.core.dtypes import bf16, f32
from tilewright.kernels.cuda.kernel import TensorMap, identified
from tilewright.target.cuda.code import emit_all
from tilewright.target.cuda.device import cuda_target
from tilewright.tile.ir import Kernel, Var

CONV: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
PROGRAMS: dict[str, tuple[Any, Any]] = {
    "product": (lambda a, b: o.Matmul(transpose_b=True)(a, b), [(bf16, (256, 128)), (bf16, (256, 128))]),
    "row": (lambda a, b: o.Matmul(transpose_b=True)(a, b), [(bf16, (1, 256)), (bf16, (512, 256))]),
    "attention": (lambda q, k, v: o.Attention(scale=0.125, causal=True)(q, k, v), [(bf16, (1, 4, 128, 64))] * 3),
    "convolution": (lambda x, w: o.Conv(**CONV)(x, w), [(bf16, (2, 64, 16, 16)), (bf16, (64, 64, 3, 3))]),
    "sum": (lambda x: o.Sum(axes=(1,))(x), [(f32, (64, 512))]),
}


def kernels(name: str) -> list[Kernel]:
    fn, types = PROGRAMS[name]
    return [k for launch in program(graph(fn, *types), "sm_90a").launches for k in launch.kernels]


def other(value: Any) -> Any:
    """A value that is not this one, of its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}x" if isinstance(value, str) else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_field_is_in_the_name(name: str) -> None:
    for k in kernels(name):
        again = identified(replace(k, name=k.name))
        assert again.name == k.name, "the same kernel has another name"
        for f in fields(k):
            value = getattr(k, f.name)
            if isinstance(value, (bool, int, float, str)) and f.name != "name":
                changed = identified(replace(k, **{f.name: other(value)}))
                assert changed.name != k.name, f.name
            elif isinstance(value, Var) and f.name != "pid":
                renamed: dict[str, Any] = {f.name: Var(value.type, value.name + "_")}
                assert identified(replace(k, **renamed)).name != k.name, f.name
            elif f.name == "maps" and value:
                first: TensorMap = value[0]
                wider = replace(first, box=(first.box[0] * 2, *first.box[1:]))
                assert identified(replace(k, maps=(wider, *value[1:]))).name != k.name  # type: ignore[call-arg]
                longer = replace(first, sizes=tuple(s + 1 for s in first.sizes))
                assert identified(replace(k, maps=(longer, *value[1:]))).name == k.name  # type: ignore[call-arg]


def test_one_name_is_one_text() -> None:
    """Two scales of attention are two constants in the code, and two names."""
    made: list[dict[str, Any]] = []
    for scale in (0.125, 0.25, 0.125):
        p = program(graph(lambda q, k, v, s=scale: o.Attention(scale=s)(q, k, v), *[(bf16, (1, 4, 128, 64))] * 3), "sm_90a")
        made.append(emit_all((k for x in p.launches for k in x.kernels), cuda_target("sm_90a")))
    assert made[0] == made[2] and set(made[0]) != set(made[1])
    assert all(made[0][name] == made[1][name] for name in set(made[0]) & set(made[1]))
