"""`tw.onnx`: ONNX models with the names that ONNX Runtime's users know, and ONNX graphs as functions.

    session = tw.onnx.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from .array.functions import staged
from .compile import compile as compile_model
from .core.errors import InputError, UnsupportedError
from .core.signature import Slot
from .frontend.onnx.export import export_graph
from .frontend.onnx.importer import Blocked, Builder, Pending
from .frontend.onnx.load import Source
from .frontend.onnx.model import Frame, items_of, require_all
from .frontend.onnx.program import Program, Tensor, declared, input_names
from .ir.graph import Graph, Value
from .ir.types import TensorType
from .passes.pipeline import recognised
from .runtime.session import Session
from .transform.inline import inline
from .transform.promote import as_tracer
from .transform.trace import Leaf, current, is_array, leaf_of, trace

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "OrtValue", "SessionOptions", "export_onnx", "from_onnx", "load_onnx"]

Model = str | PathLike[str] | bytes | Any


def load_onnx(model: Model, *, target: Any = None, threads: int | None = None, dtype: Any = None, passes: Any = None,
              name: str | None = None) -> Session:
    """Compile an ONNX model: a path, its bytes, or a ModelProto. Symbolic sizes of its inputs are symbols of the session: one compile
    serves all sizes. External data must lie in the model's folder. The same as `tw.compile(path)`, for any file name."""
    return compile_model(Source(model), target=target, threads=threads, dtype=dtype, passes=passes, name=name)


class NodeArg:
    """An input or output of a model: `name`, `type` as ONNX Runtime writes it, `shape` with names for symbolic sizes."""

    def __init__(self, name: str, type_: str, shape: Sequence[Any]) -> None:
        self.name, self.type, self.shape = name, type_, list(shape)

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class SessionOptions:
    """ONNX Runtime's options. `intra_op_num_threads` is used; the others can be set and change nothing: what they ask for has no meaning
    here, or is always done."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level: Any = None
        self.execution_mode: Any = None
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.enable_mem_pattern = True
        self.enable_cpu_mem_arena = True
        self.enable_profiling = False
        self.optimized_model_filepath = ""

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Accepted and not used."""


class OrtValue:
    """An array with the methods of ONNX Runtime's values."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        return cls(np.asarray(array))

    def numpy(self) -> Any:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return str(self._array.dtype)


class IOBinding:
    """Inputs and outputs of calls that are bound once and used again. A bound output array is written in place."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[self._session._check_input(name)] = np.asarray(array)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[self._session._check_input(name)] = value.numpy()

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None, shape: Any = None,
                    buffer_ptr: Any = None) -> None:
        if buffer_ptr is not None:
            raise UnsupportedError("onnx: bind_output takes arrays (bind_ortvalue_output), not addresses")
        self._outputs[self._session._check_output(name)] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[self._session._check_output(name)] = value.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(a) for a in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        return list(self._results)


class InferenceSession:
    """A compiled model with the interface of `onnxruntime.InferenceSession`. `session` is the Tilewright session behind it.

    Threads: any number may call `run` at once, with the bits of one call after the other. A binding (`io_binding`) is one thread's."""

    def __init__(self, path_or_bytes: Model, sess_options: SessionOptions | None = None, providers: Any = None,
                 provider_options: Any = None, **_: Any) -> None:
        self._source = Source(path_or_bytes)
        wanted = [p[0] if isinstance(p, tuple) else p for p in providers or ()]
        target = "cuda" if wanted[:1] == ["CUDAExecutionProvider"] else "cpu"
        threads = (sess_options.intra_op_num_threads or None) if sess_options is not None else None
        self._providers = ["CUDAExecutionProvider" if target == "cuda" else "CPUExecutionProvider"]
        self.session: Any = compile_model(self._source, target=target, threads=threads)
        self._inputs, self._outputs = ([NodeArg(*a) for a in side] for side in self.session.arguments)

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_modelmeta(self) -> Any:
        return self._source.proto

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """The named outputs (all of them for None), in that order."""
        names = [i.name for i in self._inputs]
        for n in input_feed:
            self._check_input(n)
        missing = [n for n in names if n not in input_feed]
        if missing:
            raise InputError(f"onnx: the inputs {', '.join(missing)} are missing; the model takes {', '.join(names)}")
        result = self.session(*(_plain(input_feed[n]) for n in names))
        outs = list(result) if isinstance(result, tuple) else [result]
        if output_names is None:
            return outs
        order = [o.name for o in self._outputs]
        return [outs[order.index(self._check_output(n))] for n in output_names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, run_options: Any = None) -> None:
        names = list(binding._outputs) or [o.name for o in self._outputs]
        results = self.run(names, binding._inputs)
        for k, n in enumerate(names):
            target = binding._outputs.get(n)
            if target is not None:
                if target.shape != results[k].shape or target.dtype != results[k].dtype:
                    raise InputError(f"onnx: the array bound to output {n!r} must be {results[k].dtype}{list(results[k].shape)}, got "
                                     f"{target.dtype}{list(target.shape)}")
                np.copyto(target, results[k])
                results[k] = target
        binding._results = results

    def _check_input(self, name: str) -> str:
        names = [i.name for i in self._inputs]
        if name not in names:
            raise InputError(f"onnx: the model has no input {name!r}; it takes {', '.join(names)}")
        return name

    def _check_output(self, name: str) -> str:
        names = [o.name for o in self._outputs]
        if name not in names:
            raise InputError(f"onnx: the model has no output {name!r}; it gives {', '.join(names)}")
        return name


def _plain(x: Any) -> Any:
    return x.numpy() if isinstance(x, OrtValue) else x


# --- a model as a function -------------------------------------------------------------------------------------------------------------


class _Function:
    """The graph of a model for one set of argument types; its first inputs are the weights."""

    def __init__(self, source: Source, weights: Mapping[str, Any], types: Sequence[TensorType]) -> None:
        self.fixed: set[str] = set()  # weights whose elements the graph's shapes depend on: they stay what they are
        program = Program(source, source.proto.graph, Frame({}, source.opsets), lambda g: None, source.name)
        while True:
            builder = Builder(source, source.name)
            builder.weights = self._lifted(builder, weights)
            self.given: dict[str, Value] = {}
            builder.scope.constants = dict(program.constants)
            for n, t in zip(input_names(source.proto.graph), types, strict=True):
                builder.scope.bindings[n] = builder.input(t, n)
            builder.run(items_of(source, source.proto.graph.node, Frame({}, source.opsets)))
            needs = {n for b in builder.left if isinstance(b, Blocked) for n in b.needs if n in weights} - self.fixed
            if not needs:
                break
            self.fixed |= needs
        if builder.left:
            first = builder.left[0]
            why = f"{first.item.title}: {first.why}" if isinstance(first, Blocked) else first.title
            raise UnsupportedError(f"onnx: {source.name} is no graph of fixed sizes and has no derivative here: {why}")
        graph = builder.graph
        outs = [builder.scope.get(o) for o in program.outputs]
        if any(isinstance(o, Pending) or not isinstance(o, Value) for o in outs):
            raise UnsupportedError(f"onnx: {source.name} gives sequences or strings; a function gives tensors")
        graph.outputs = outs
        order = [*self.given.values(), *(builder.scope.bindings[n] for n in input_names(source.proto.graph))]
        graph.inputs = order
        graph.nodes.sort(key=lambda n: n.values[0] not in order)  # inputs first; the sort is stable
        if builder.context.seed is not None:
            raise UnsupportedError(f"onnx: {source.name} draws random numbers; from_onnx takes models that do not")
        self.graph: Graph = recognised(graph)

    def _lifted(self, builder: Builder, weights: Mapping[str, Any]) -> Callable[[str], Any]:
        """Weights become inputs of the graph when they are read."""
        def find(name: str) -> Any:
            if name not in weights or name in self.fixed:
                return None
            if name not in self.given:
                self.given[name] = builder.input(leaf_of(weights[name]).type, name)
            return self.given[name]

        return find


def from_onnx(model: Model) -> tuple[Callable[..., Any], dict[str, Any]]:
    """`(apply, params)`: `apply(params, *inputs)` is what the model computes, as a function that can be traced, differentiated and
    batched; params is a dict of the model's float initializers by name."""
    source = Source(model)
    require_all(source)
    from .frontend.onnx import families as _families  # noqa: F401  fills the tables

    graph = source.proto.graph
    params = {t.name: np.array(source.array(t)) for t in graph.initializer if t.data_type in (1, 10, 11, 16)}
    names = input_names(graph)
    made: dict[Any, _Function] = {}
    symbols: dict[str, Any] = {}
    infos = {i.name: i for i in graph.input}
    known = [declared(source, infos[n], symbols) for n in names]
    if not symbols and all(isinstance(k, Tensor) for k in known):
        types = [k.type for k in known]
        made[tuple(types)] = _Function(source, params, types)
        for n in made[tuple(types)].fixed:
            params.pop(n)

    def apply(params: Mapping[str, Any], *inputs: Any) -> Any:
        if len(inputs) != len(names):
            raise InputError(f"from_onnx: takes ({', '.join(names)}), got {len(inputs)} inputs")
        given = [as_tracer(x) for x in inputs]
        types = tuple(x.type for x in given)
        weights = {k: as_tracer(v) for k, v in params.items()}
        if types not in made:
            made[types] = _Function(source, {k: np.zeros(v.shape, v.dtype) for k, v in weights.items()}, types)
        fn = made[types]
        missing = [n for n in fn.given if n not in weights]
        if missing:
            raise InputError(f"from_onnx: the parameters lack {missing[0]!r}; have {' '.join(list(weights)[:4])} ...")
        outer = current()
        out = inline(fn.graph, outer.graph, [outer.lift(x) for x in (*(weights[n] for n in fn.given), *given)])
        results = [outer.wrap(v) for v in out]
        return results[0] if len(results) == 1 else tuple(results)

    apply.__name__ = "apply_onnx"
    return staged(apply), params


def export_onnx(model: Any, path: str | PathLike[str], args: Sequence[Any] = (), *, opset: int = 20) -> None:
    """Write a session, a graph or a function of arrays (with example arguments) as an ONNX file. What ONNX has no op for is written in
    plainer ops; where that is not possible either the error names the op."""
    if isinstance(model, Session):
        model._open()
        graph, _ = model.model.graph.clone()
        slots = [o.index for o in model.model.signature.outputs if isinstance(o, Slot)]
        graph.outputs = [graph.outputs[k] for k in slots] or graph.outputs
    elif isinstance(model, Graph):
        graph = model
    elif callable(model):
        from .core.pytree import flatten

        leaves, spec = flatten((tuple(args), {}))
        if not leaves or not all(is_array(x) for x in leaves):
            raise InputError("export_onnx: a function needs example arguments that are arrays: export_onnx(f, path, (x, ...))")
        graph = trace(model, spec, [Leaf(leaf_of(x).type) for x in leaves]).graph
    else:
        raise InputError(f"export_onnx: takes a session, a graph or a function, got a {type(model).__name__}")
    export_graph(graph, path, opset=opset)


