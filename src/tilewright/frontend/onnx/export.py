"""Graphs as ONNX files: one function an op; what has none is written as its decomposition."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Expr
from ...core.errors import UnsupportedError
from ...core.files import write_file
from ...ir.graph import Graph, Node, Value
from ...ir.types import TensorType
from ...ops import emit
from ...ops import functions as F
from ...ops.index.scatter import Scatter
from .elements import OF_DTYPE
from .load import onnx_library

Writer = Callable[["Export", Any, list[str]], Any]  # writes a node whose op has attributes of its own
TABLE: dict[str, Writer] = {}
PLAIN = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log",
         "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan", "tanh": "Tanh", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin",
         "acos": "Acos", "atan": "Atan", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid",
         "relu": "Relu", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign", "reciprocal": "Reciprocal",
         "softplus": "Softplus", "mish": "Mish", "hardswish": "HardSwish", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual",
         "greater": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
         "logical_not": "Not", "where": "Where", "is_nan": "IsNaN", "is_inf": "IsInf", "bitwise_and": "BitwiseAnd",
         "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "bitwise_not": "BitwiseNot", "maximum": "Max", "minimum": "Min",
         "stop_gradient": "Identity", "det": "Det"}
OF_BOOLS = {"add": "Or", "mul": "And", "maximum": "Or", "minimum": "And", "bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor",
            "bitwise_not": "Not"}
REDUCE = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
          "log_sum_exp": "ReduceLogSumExp"}


def writes(*names: str) -> Callable[[Writer], Writer]:
    def enter(fn: Writer) -> Writer:
        TABLE.update(dict.fromkeys(names, fn))
        return fn

    return enter


class Export:
    """A file under construction."""

    def __init__(self, opset: int) -> None:
        self.onnx = onnx_library()
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: dict[Value, str] = {}
        self.sizes: dict[Dim, str] = {}
        self.where: dict[str, tuple[str, int]] = {}  # symbol -> input and axis that show it
        self._count = 0

    def fresh(self, hint: str) -> str:
        self._count += 1
        return f"{hint}_{self._count}"

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str] | None = None, **attrs: Any) -> str:
        outs = list(outputs) if outputs is not None else [self.fresh(op.lower())]
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), outs, name=self.fresh(op), **attrs))
        return outs[0]

    def constant(self, array: Any, hint: str = "const") -> str:
        name = self.fresh(hint)
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, dims: Sequence[Dim]) -> str:
        """A vector of sizes; symbolic ones are read off the inputs."""
        if all(isinstance(d, int) for d in dims):
            return self.constant(np.array(dims, np.int64), "ints")
        return self.node("Concat", [self.size(d) for d in dims], axis=0)

    def size(self, d: Dim) -> str:
        """One size as a vector of one element."""
        if d in self.sizes:
            return self.sizes[d]
        if isinstance(d, int):
            name = self.constant(np.array([d], np.int64), "size")
        else:
            total = None
            for mono, k in d.terms:
                part = self.constant(np.array([k], np.int64), "factor")
                for atom in mono:
                    shown = self.where.get(str(atom))
                    if shown is None:
                        raise UnsupportedError(f"onnx: the size {d} cannot be written: no input shows {atom}")
                    shape = self.node("Shape", [shown[0]], start=shown[1], end=shown[1] + 1)
                    part = self.node("Mul", [part, shape])
                total = part if total is None else self.node("Add", [total, part])
            assert total is not None
            name = total
        self.sizes[d] = name
        return name

    def graph(self, graph: Graph, env: dict[Value, str]) -> None:
        """Write nodes; env has the names of the inputs and learns the others."""
        for n in graph.nodes:
            if n.values[0] in env:
                continue
            self._one(n, env)

    def called(self, graph: Graph, given: Sequence[str]) -> list[str]:
        """The results of a graph at values with these names."""
        env = dict(zip(graph.inputs, given, strict=True))
        self.graph(graph, env)
        return [env[o] for o in graph.outputs]

    def body(self, name: str, inputs: Sequence[Any], results: Callable[[], list[str]], types: Sequence[TensorType]) -> Any:
        """A subgraph, which reads what is around it by name; `results` writes its nodes. What it makes is not seen outside."""
        around, sizes = self.nodes, self.sizes
        self.nodes, self.sizes = [], dict(sizes)
        try:
            outs = [self.info(self.node("Identity", [r]), t) for r, t in zip(results(), types, strict=True)]
            return self.onnx.helper.make_graph(self.nodes, self.fresh(name), inputs, outs)
        finally:
            self.nodes, self.sizes = around, sizes

    def info(self, name: str, t: TensorType) -> Any:
        sizes = [d if isinstance(d, int) else str(d) for d in t.shape]
        return self.onnx.helper.make_tensor_value_info(name, OF_DTYPE[t.dtype].number, sizes)

    def _one(self, n: Node, env: dict[Value, str]) -> None:
        inputs = [env[v] for v in n.operands]
        outs = [self.fresh(n.name) for _ in n.values]
        writer = TABLE.get(n.op.name)
        if n.op.name in ("fused", "checkpoint"):
            env.update(zip(n.values, self.called(n.op.body, inputs), strict=True))  # type: ignore[attr-defined]
            return
        made: Any = NotImplemented
        if writer is not None:
            made = writer(self, n, inputs)
        elif n.op.name in PLAIN:
            made = self.node(OF_BOOLS.get(n.op.name, PLAIN[n.op.name]) if n.values[0].dtype.is_bool else PLAIN[n.op.name], inputs, outs)
        if made is NotImplemented:
            made = self._decomposed(n, inputs)
        names = made if isinstance(made, (list, tuple)) else [made]
        env.update(zip(n.values, names, strict=True))

    def _decomposed(self, n: Node, inputs: list[str]) -> list[str]:
        body = Graph(n.op.name)
        values = [body.input(v.type, "x") for v in n.operands]
        try:
            out = n.op.decompose(*values)
        except UnsupportedError:
            raise UnsupportedError(f"onnx: {n.op.name} has no form in ONNX ({n})") from None
        outs = out if isinstance(out, tuple) else (out,)
        body.outputs = list(outs)
        return self.called(body, inputs)


@writes("slice")
def _slice(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    if not op.starts:
        return x
    ends = [a + (s - 1) * k + 1 if s != 0 else a for a, s, k in zip(op.starts, op.sizes, op.steps, strict=True)]
    axes = e.constant(np.arange(len(ends)), "axes")
    return e.node("Slice", [x[0], e.ints(op.starts), e.ints(ends), axes, e.constant(np.array(op.steps, np.int64), "steps")])


@writes("flip")
def _flip(e: Export, n: Node, x: list[str]) -> Any:
    axes = list(n.op.axes)  # type: ignore[attr-defined]
    if not axes:
        return x
    k = len(axes)
    return e.node("Slice", [x[0], e.constant(np.full(k, -1)), e.constant(np.full(k, -(1 << 62))), e.constant(np.array(axes)),
                            e.constant(np.full(k, -1))])


@writes("split")
def _split(e: Export, n: Node, x: list[str]) -> Any:
    outs = [e.fresh("part") for _ in n.values]
    e.node("Split", [x[0], e.ints(n.op.sizes)], outs, axis=n.op.axis)  # type: ignore[attr-defined]
    return outs


@writes("matmul")
def _matmul(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    a, b = x
    if op.dtype is not None and op.dtype is not n.operands[0].dtype:
        return NotImplemented
    for flag, k in ((op.transpose_a, 0), (op.transpose_b, 1)):
        if flag:
            rank = len(n.operands[k].shape)
            transposed = e.node("Transpose", [x[k]], perm=[*range(rank - 2), rank - 1, rank - 2])
            a, b = (transposed, b) if k == 0 else (a, transposed)
    if n.operands[1].dtype is not n.operands[0].dtype:
        b = e.node("Cast", [b], to=OF_DTYPE[n.operands[0].dtype].number)
    out = e.node("MatMul", [a, b])
    return out if op.alpha == 1.0 else e.node("Mul", [out, e.constant(np.array(op.alpha, n.values[0].dtype.np))])


@writes("conv")
def _conv(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    attrs: dict[str, Any] = {"strides": list(op.stride), "dilations": list(op.dilation), "group": op.groups,
                             "pads": [lo for lo, _ in op.padding] + [hi for _, hi in op.padding]}
    if op.transposed:
        return e.node("ConvTranspose", x, output_padding=list(op.output_padding or (0,) * len(op.stride)), **attrs)
    return e.node("Conv", x, **attrs)


@writes("max_pool", "avg_pool")
def _pool(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    attrs: dict[str, Any] = {"kernel_shape": list(op.kernel), "strides": list(op.stride), "ceil_mode": int(op.ceil_mode),
                             "pads": [lo for lo, _ in op.padding] + [hi for _, hi in op.padding]}
    if len(n.operands[0].shape) != len(op.kernel) + 2:
        return NotImplemented
    if n.op.name == "max_pool":
        return e.node("MaxPool", x, dilations=list(op.dilation), **attrs)
    return e.node("AveragePool", x, count_include_pad=int(op.count_include_pad), **attrs)


def _reduction(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    if not op.axes and n.operands[0].dtype is n.values[0].dtype:  # to ONNX no axes are all axes
        return x
    return e.node(REDUCE[op.name], [x[0], e.constant(np.array(op.axes, np.int64), "axes")], keepdims=int(op.keepdims))


TABLE.update(dict.fromkeys(REDUCE, _reduction))


@writes("any", "all")
def _logic(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    if not op.axes:
        return e.node("Cast", x, to=9)
    whole = e.node("Cast", [e.node("Cast", x, to=9)], to=6)
    found = e.node("ReduceMax" if op.name == "any" else "ReduceMin", [whole, e.constant(np.array(op.axes, np.int64))],
                   keepdims=int(op.keepdims))
    return e.node("Greater", [found, e.constant(np.array(0, np.int32))])  # the largest of no elements is below zero


@writes("var", "std")
def _var(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    axes = e.constant(np.array(op.axes, np.int64))
    count = int(np.prod([d for a, d in enumerate(n.operands[0].shape) if a in op.axes]))
    mean = e.node("ReduceMean", [x[0], axes], keepdims=1)
    off = e.node("Sub", [x[0], mean])
    total = e.node("ReduceSum", [e.node("Mul", [off, off]), axes], keepdims=int(op.keepdims))
    found = e.node("Div", [total, e.constant(np.array(count - op.correction, n.values[0].dtype.np))])
    return found if op.name == "var" else e.node("Sqrt", [found])


@writes("arg_max", "arg_min")
def _arg(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    out = e.node("ArgMax" if op.name == "arg_max" else "ArgMin", x, axis=op.axis, keepdims=int(op.keepdims))
    return out if op.dtype is dt.i64 else e.node("Cast", [out], to=OF_DTYPE[op.dtype].number)


@writes("top_k")
def _top_k(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    outs = [e.fresh("values"), e.fresh("indices")]
    e.node("TopK", [x[0], e.constant(np.array([op.k], np.int64))], outs, axis=op.axis, largest=int(op.largest))
    return outs if op.dtype is dt.i64 else [outs[0], e.node("Cast", [outs[1]], to=OF_DTYPE[op.dtype].number)]


@writes("sort", "arg_sort")
def _sort(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    if n.operands[0].dtype is dt.bool_:
        return NotImplemented
    outs = [e.fresh("values"), e.fresh("indices")]
    e.node("TopK", [x[0], e.size(n.values[0].shape[op.axis])], outs, axis=op.axis, largest=int(op.descending))
    if op.dtype is not dt.i64:
        outs[1] = e.node("Cast", [outs[1]], to=OF_DTYPE[op.dtype].number)
    return outs if op.name == "sort" else outs[1]


@writes("cond")
def _cond(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    outs = [e.fresh("chosen") for _ in n.values]
    then, other = (e.body("branch", [], partial(e.called, g, x[1:]), n.types) for g in (op.then, op.other))
    e.node("If", [x[0]], outs, then_branch=then, else_branch=other)
    return outs


@writes("while")
def _while(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    outs, held, captured = [e.fresh("last") for _ in n.values], [e.fresh("carry") for _ in n.values], x[op.carries :]
    number, go = TensorType(dt.i64, ()), TensorType(dt.bool_, ())

    def step() -> list[str]:
        after = e.called(op.body, [*held, *captured])
        return [*e.called(op.test, [*after, *captured]), *after]

    inputs = [e.info(e.fresh("round"), number), e.info(e.fresh("go"), go), *map(e.info, held, n.types)]
    body = e.body("step", inputs, step, [go, *n.types])
    most = "" if op.max_iterations is None else e.constant(np.array(op.max_iterations, np.int64), "most")
    e.node("Loop", [most, *e.called(op.test, x), *x[: op.carries]], outs, body=body)
    return outs


@writes("scan")
def _scan(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    own, captured = op.carries + op.xs, x[op.carries + op.xs :]
    held, slices = [e.fresh("part") for _ in range(own)], x[op.carries : own]
    inputs = [e.info(name, v.type) for name, v in zip(held, op.body.inputs, strict=False)]
    if not slices:  # the standard counts slices
        slices = [e.node("Expand", [e.constant(np.zeros(1, np.int64)), e.size(op.length)])]
        inputs.append(e.info(e.fresh("round"), TensorType(dt.i64, ())))
    body = e.body("step", inputs, lambda: e.called(op.body, [*held, *captured]), [v.type for v in op.body.outputs])
    outs, back = [e.fresh("scanned") for _ in n.values], int(op.reverse)
    e.node("Scan", [*x[: op.carries], *slices], outs, body=body, num_scan_inputs=len(slices), scan_input_directions=[back] * len(slices),
           **({"scan_output_directions": [back] * (len(outs) - op.carries)} if len(outs) > op.carries else {}))
    return outs


@writes("layer_norm")
def _layer_norm(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    shape = n.operands[0].shape[len(n.operands[0].shape) - op.naxes :]
    if op.affine == "none":
        if not all(isinstance(d, int) for d in shape):
            return NotImplemented
        x = [*x, e.constant(np.ones(shape, n.values[0].dtype.np))]
    return e.node("LayerNormalization", x, axis=-op.naxes, epsilon=op.eps)


@writes("batch_norm")
def _batch_norm(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    if op.affine != "both":
        return NotImplemented
    return e.node("BatchNormalization", [x[0], x[3], x[4], x[1], x[2]], epsilon=op.eps)


def _spelled(build: Callable[..., Any]) -> Writer:
    """An op as a formula of others."""
    def writer(e: Export, n: Node, x: list[str]) -> Any:
        body = Graph(n.op.name)
        values = [body.input(v.type, "x") for v in n.operands]
        out = build(*values)
        env = dict(zip(values, x, strict=True))
        e.graph(body, env)
        return env[out]

    return writer


TABLE |= {
    "constant": lambda e, n, x: e.constant(n.op.data.array, n.name),
    "cast": lambda e, n, x: e.node("Cast", x, to=OF_DTYPE[n.values[0].dtype].number),
    "reshape": lambda e, n, x: e.node("Reshape", [x[0], e.ints(n.values[0].shape)], allowzero=1),
    "expand": lambda e, n, x: e.node("Expand", [x[0], e.ints(n.values[0].shape)]),
    "transpose": lambda e, n, x: e.node("Transpose", x, perm=list(n.op.perm)) if n.op.perm else x,
    "concat": lambda e, n, x: e.node("Concat", x, axis=n.op.axis),
    "pad": lambda e, n, x:
        e.node("Pad", [x[0], e.ints([*n.op.lo, *n.op.hi]), e.constant(np.array(n.op.value, n.values[0].dtype.np))]) if n.op.lo else x,
    "strided": lambda e, n, x: e.node("Gather", [x[0], e.constant(_places(n.op))], axis=len(n.operands[0].shape) - 1),
    "softmax": lambda e, n, x: e.node("Softmax", x, axis=n.op.axis),
    "log_softmax": lambda e, n, x: e.node("LogSoftmax", x, axis=n.op.axis),
    "gather": lambda e, n, x: e.node("Gather", x, axis=n.op.axis),
    "gather_along_axis": lambda e, n, x: e.node("GatherElements", x, axis=n.op.axis),
    "scatter_along": lambda e, n, x: e.node("ScatterElements", x, axis=n.op.axis, reduction="add" if n.op.mode == "add" else "none"),
    "cum_sum": lambda e, n, x:
        e.node("CumSum", [x[0], e.constant(np.array(n.op.axis, np.int64))], exclusive=int(n.op.exclusive), reverse=int(n.op.reverse)),
    "gelu": lambda e, n, x: e.node("Gelu", x, approximate=n.op.approximate),
    "elu": lambda e, n, x: e.node("Elu", x, alpha=n.op.alpha),
    "leaky_relu": lambda e, n, x: e.node("LeakyRelu", x, alpha=n.op.slope),
    "not_equal": lambda e, n, x: e.node("Not", [e.node("Equal", x)]),
    "dim_value": lambda e, n, x: e.node("Cast", [e.node("Squeeze", [e.size(n.op.dim)])], to=OF_DTYPE[n.op.dtype].number),
    "square": _spelled(lambda x: F.mul(x, x)),
    "rsqrt": _spelled(lambda x: F.one("reciprocal", F.sqrt(x))),
    "silu": _spelled(lambda x: F.mul(x, F.sigmoid(x))),
    "trunc": _spelled(lambda x: F.where(F.less(x, 0.0), F.one("ceil", x), F.one("floor", x))),
    "exp2": _spelled(lambda x: F.exp(F.mul(x, math.log(2)))),
    "log2": _spelled(lambda x: F.mul(F.log(x), 1 / math.log(2))),
    "log10": _spelled(lambda x: F.mul(F.log(x), 1 / math.log(10))),
    "expm1": _spelled(lambda x: F.sub(F.exp(x), 1.0)),
    "log1p": _spelled(lambda x: F.log(F.add(x, 1.0))),
    "hardsigmoid": _spelled(lambda x: F.div(F.minimum(F.maximum(F.add(x, 3.0), 0.0), 6.0), 6.0)),
}


def _places(op: Any) -> Any:
    """The indices that strides stand for."""
    steps = np.array(op.strides, np.int64).reshape(-1, *(1,) * len(op.shape))
    return op.offset + (np.indices(op.shape, np.int64) * steps).sum(0, dtype=np.int64)


@writes("scatter", "scatter_add")
def _scatter(e: Export, n: Node, x: list[str]) -> Any:
    """By ScatterND, whose indices speak of the first axis."""
    op: Any = n.op
    rank, k, count = len(n.operands[0].shape), op.axis, len(n.operands[1].shape)
    rows = [*range(k, k + count), *range(k), *range(k + count, rank + count - 1)]
    front = [k, *range(k), *range(k + 1, rank)]
    ids = e.node("Unsqueeze", [e.node("Cast", [x[1]], to=7), e.constant(np.array([count]))])
    whole, updates = (e.node("Transpose", [v], perm=p) if k else v for v, p in ((x[0], front), (x[2], rows)))
    mode = {"scatter_add": "add"}.get(op.name) or {"set": "none"}.get(op.mode, op.mode)
    out = e.node("ScatterND", [whole, ids, updates], reduction=mode)
    return e.node("Transpose", [out], perm=[front.index(a) for a in range(rank)]) if k else out


@writes("update_slice")
def _update_slice(e: Export, n: Node, x: list[str]) -> Any:
    op: Any = n.op
    cache, new = n.operands
    body = Graph("update")
    a, b = (body.input(v.type, "x") for v in (cache, new))
    ids = F.iota(body, (new.shape[op.axis],), 0, dt.i64, start=op.start, step=op.step)
    body.outputs = [emit(Scatter(axis=op.axis), a, ids, F.cast(b, cache.dtype))]
    return e.called(body, x)


@writes("iota")
def _iota(e: Export, n: Node, _: list[str]) -> Any:
    op: Any = n.op
    d, rank = op.shape[op.axis], len(op.shape)
    if isinstance(d, int) and isinstance(op.start, int):
        ramp = e.constant((np.arange(d) * op.step + op.start).astype(op.dtype.np))
    else:
        zero, one = e.constant(np.array(0, np.int64)), e.constant(np.array(1, np.int64))
        count = e.node("Range", [zero, e.node("Squeeze", [e.size(d)]), one])
        moved = e.node("Add", [e.node("Mul", [count, e.constant(np.array([op.step]))]), e.size(op.start)])
        ramp = e.node("Cast", [moved], to=OF_DTYPE[op.dtype].number)
    if rank == 1:
        return ramp
    flat = e.node("Reshape", [ramp, e.constant(np.array([-1 if a == op.axis else 1 for a in range(rank)], np.int64))])
    return e.node("Expand", [flat, e.ints(op.shape)])


@writes("floor_divide")
def _floor_divide(e: Export, n: Node, x: list[str]) -> Any:
    kind = n.values[0].dtype.kind
    if kind == "f":
        return e.node("Floor", [e.node("Div", x)])
    if kind == "u":
        return e.node("Div", x)
    left = e.node("Mod", x)  # it has the divisor's sign: what is left is a multiple of the divisor
    return e.node("Div", [e.node("Sub", [x[0], left]), x[1]])


@writes("remainder")
def _remainder(e: Export, n: Node, x: list[str]) -> Any:
    if n.values[0].dtype.is_int:
        return e.node("Mod", x)
    whole = e.node("Floor", [e.node("Div", x)])
    return e.node("Sub", [x[0], e.node("Mul", [whole, x[1]])])


def export_graph(graph: Graph, path: str | PathLike[str], *, opset: int = 20) -> None:
    """Write a graph as an ONNX file."""
    e = Export(opset)
    h = e.onnx.helper
    env: dict[Value, str] = {}
    inputs = []
    taken: set[str] = set()
    for v in graph.inputs:
        name = v.name
        while name in taken:
            name += "_"
        taken.add(name)
        env[v] = name
        for a, d in enumerate(v.shape):
            if isinstance(d, Expr) and str(d).isidentifier():
                e.where.setdefault(str(d), (name, a))
        inputs.append(e.info(name, v.type))
    e.graph(graph, env)
    outputs = []
    for k, v in enumerate(graph.outputs):
        name = f"output_{k}" if len(graph.outputs) > 1 else "output"
        e.node("Identity", [env[v]], [name])
        outputs.append(e.info(name, v.type))
    made = h.make_graph(e.nodes, graph.name or "graph", inputs, outputs, initializer=e.constants)
    model = h.make_model(made, opset_imports=[h.make_opsetid("", opset)], producer_name="tilewright")
    model.ir_version = min(model.ir_version, 10)
    write_file(path, model.SerializeToString(), subject="export_onnx")
