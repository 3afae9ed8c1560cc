"""A program as the source of a test: inputs, the function, what it must give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .program import DYNAMIC, EAGER, JIT, Body, Builder, Call, Program, Val, needed

SPELLED = {"scan_carry": ("scan", "[0]"), "scan_stack": ("scan", "[1]"), "while_array": ("while_loop", "[1]"),
           "wild_take": ("take", ""), "wild_floor_divide": ("floor_divide", "")}  # names of run.py


def literal(array: Any) -> str:
    array = np.asarray(array)
    name = array.dtype.name
    kind = f'"{name}"' if array.dtype.kind != "V" and name != "bfloat16" else "ml_dtypes.bfloat16"
    if array.size == 0:
        return f"np.zeros({array.shape}, {kind})"
    items = array.astype(np.float64).tolist() if name == "bfloat16" else array.tolist()
    said = re.sub(r"\b(inf|nan)\b", r"np.\1", repr(items))
    return f"np.array({said}, {kind})"


def line(call: Call, indent: str) -> str:
    """`v3 = tw.add(v1, v2)`, behind the functions that it is given."""
    before, said = [], []
    for i, (name, x) in enumerate([*(("", a) for a in call.args), *call.options]):
        if isinstance(x, Body):
            before.append(function(x, f"f{call.out}_{i}", indent))
            x = Named(f"f{call.out}_{i}")
        said.append(f"{name}={x!r}" if name else repr(x))
    if call.fn == "getitem":
        right = f"{call.args[0]!r}[{_key(call.args[1])}]"
    else:
        name, bracket, index = call.fn.partition("[")
        name, suffix = SPELLED.get(name, (name, f"{bracket}{index}"))
        right = f"tw.{name}({', '.join(said)}){suffix}"
    return "".join(before) + f"{indent}v{call.out} = {right}"


class Named(str):
    def __repr__(self) -> str:
        return str(self)


def function(body: Body, name: str, indent: str) -> str:
    inner = indent + "    "
    params = ", ".join(f"v{n}" if n >= 0 else "_" for n in body.params)
    head = [f"{indent}def {name}({'carry' if body.packed else params}):", *([f"{inner}{params} = carry"] if body.packed else [])]
    lines = [*head, *(line(c, inner) for c in body.calls)]
    results = ", ".join(map(repr, body.outputs))
    return "\n".join([*lines, f"{inner}return {results}", ""])


def _key(key: tuple[Any, ...]) -> str:
    def one(k: Any) -> str:
        if not isinstance(k, slice):
            return "..." if k is Ellipsis else repr(k)
        return ":".join("" if p is None else repr(p) for p in (k.start, k.stop, *([k.step] if k.step is not None else [])))

    return ", ".join(map(one, key)) or "()"


def written(name: str, program: Program, builder: Builder, outputs: Sequence[Val], arrays: Sequence[Any], wanted: Sequence[Any]) -> str:
    calls = needed(builder.calls, [v.number for v in outputs])
    body = "\n".join(line(c, "        ") for c in calls)
    names = ", ".join(f"v{v.number}" for v in builder.inputs)
    results = ", ".join(f"v{v.number}" for v in outputs) + ("," if len(outputs) == 1 else "")
    given = "\n".join(f"    v{v.number} = {literal(a)}" for v, a in zip(builder.inputs, arrays, strict=True))
    bfloat = "import ml_dtypes\n" if "ml_dtypes" in given else ""
    types = ", ".join(f"Leaf(TensorType(dt.{v.dtype}, ({''.join(f'{d}, ' for d in v.shape)})))" for v in builder.inputs)
    head, how = "", f"tw.jit(f)({names})"
    if program.way == EAGER:
        how = f"f({names})"
    elif program.way != JIT:
        head = (
            "from tilewright.compile import compile_graph, graph_signature, target_spec\nfrom tilewright.core import dtypes as dt\n"
            "from tilewright.core.dims import sym\nfrom tilewright.core.pytree import flatten\nfrom tilewright.ir.types import TensorType\n"
            "from tilewright.transform.trace import Leaf, trace\n"
        )
        symbols = '    S, T = sym("S", 0, 9), sym("T", 0, 9)\n' if program.way == DYNAMIC else ""
        given = f"{symbols}{given}"
        how = (
            f"compile_graph(graph, graph_signature(graph), target_spec(\"cpu\"), disable={program.off!r}, "
            f"threads={1 + program.threads % 2}, level=\"strict\")({names})"
        )  # fmt: skip
        body += f"\n        return {results}\n\n    graph = trace(f, flatten(((0,) * {len(builder.inputs)}, {{}}))[1], [{types}]).graph"
    ends = "" if head else f"\n        return {results}\n"
    wants = ", ".join(literal(w) for w in wanted)
    several = "got" if not head or len(outputs) > 1 else "[got]"
    return (
        f"import numpy as np\n{bfloat}\nimport tilewright as tw\n{head}\n\ndef test_{name}_case() -> None:\n{given}\n\n"
        f"    def f({names}):\n{body}{ends}\n    got = {how}\n"
        f"    for a, b in zip({several}, [{wants}], strict=True):\n        np.testing.assert_array_equal(a, b)\n"
    )
