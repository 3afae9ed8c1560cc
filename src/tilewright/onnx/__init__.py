"""`tw.onnx`: ONNX models with the names that ONNX Runtime's users know, and ONNX graphs as functions.

    session = tw.onnx.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

A session from the cache starts in less time than the tables of ops take to load: `from_onnx` and `export_onnx` are found when they are
used (`functions.py`).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compile import compile as compile_model
from ..core.errors import InputError, UnsupportedError
from ..frontend.onnx.load import Source

if TYPE_CHECKING:
    from ..runtime.session import Session
    from .functions import export_onnx, from_onnx

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "OrtValue", "SessionOptions", "export_onnx", "from_onnx", "load_onnx"]

Model = str | PathLike[str] | bytes | Any


def __getattr__(name: str) -> Any:
    if name not in ("export_onnx", "from_onnx"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import functions

    return getattr(functions, name)


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
