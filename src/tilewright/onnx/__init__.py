"""`tw.onnx`: ONNX models with the names that ONNX Runtime's users know, and ONNX graphs as functions.

    session = tw.onnx.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

A session from the cache starts in less time than the tables of ops take to load: `from_onnx` and `export_onnx` are found when they are
used (`functions.py`).
"""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compile import compile as compile_model
from ..core.errors import InputError, UnsupportedError
from ..frontend.onnx.load import Source, on_host

if TYPE_CHECKING:
    from ..runtime.session import Session
    from .functions import export_onnx, from_onnx

__all__ = ["IOBinding", "InferenceSession", "ModelMeta", "NodeArg", "OrtValue", "SessionOptions", "export_onnx", "from_onnx",
           "get_available_providers", "load_onnx"]

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


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def get_available_providers() -> list[str]:
    """What sessions can run on here, as `providers=` takes it."""
    from ..runtime.cuda.driver import available

    return [CPU] if available() else [CUDA, CPU]


def _target(providers: Sequence[str]) -> str:
    """The device of the first provider that there is. One for GPUs that is alone is taken without a GPU, too: it says what is missing."""
    known = [p for p in providers if p in (CPU, CUDA)]
    if len(known) < len(providers):
        other = ", ".join(p for p in providers if p not in known)
        warnings.warn(f"onnx: there is no provider {other} here, only {CPU} and {CUDA}; the others of the list are used", stacklevel=3)
    if known[:1] != [CUDA]:
        return "cpu"
    if CPU in known and CUDA not in get_available_providers():
        warnings.warn("onnx: there is no GPU that can be used here (`tilewright doctor` says why); the model runs on the CPU", stacklevel=3)
        return "cpu"
    return "cuda"


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

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu",
                                     device_id: int = 0) -> OrtValue:
        return cls(np.empty(tuple(shape), element_type))

    def numpy(self) -> Any:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return f"tensor({_KINDS.get(str(self._array.dtype), str(self._array.dtype))})"

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def update_inplace(self, array: Any) -> None:
        np.copyto(self._array, array)

    def is_tensor(self) -> bool:
        return isinstance(self._array, np.ndarray)


_KINDS = {"float32": "float", "float64": "double", "object": "string"}  # that ONNX Runtime calls otherwise than NumPy


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Any:
    """The array of these elements that lies at an address of the caller's."""
    from ctypes import c_char

    kind = np.dtype(element_type)
    size = int(np.prod(tuple(shape), dtype=np.int64)) * kind.itemsize
    return np.frombuffer((c_char * size).from_address(int(address)), kind).reshape(tuple(shape))


class ModelMeta:
    """What a file says about itself, with ONNX Runtime's names."""

    def __init__(self, proto: Any) -> None:
        self.producer_name, self.domain, self.description = proto.producer_name, proto.domain, proto.doc_string
        self.version = proto.model_version
        self.graph_name, self.graph_description = proto.graph.name, proto.graph.doc_string
        self.custom_metadata_map = {p.key: p.value for p in proto.metadata_props}


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

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None:
        self._inputs[self._session._check_input(name)] = _at(_on_cpu(device_type, buffer_ptr), element_type, shape)

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None, shape: Any = None,
                    buffer_ptr: int | None = None) -> None:
        where = None if buffer_ptr is None else _at(_on_cpu(device_type, buffer_ptr), element_type, shape)
        self._outputs[self._session._check_output(name)] = where

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[self._session._check_output(name)] = value.numpy()

    def synchronize_inputs(self) -> None:
        """Nothing is in flight when a method returns."""

    synchronize_outputs = synchronize_inputs

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
        target = _target([p[0] if isinstance(p, tuple) else p for p in providers or ()])
        threads = (sess_options.intra_op_num_threads or None) if sess_options is not None else None
        self._providers = [CUDA if target == "cuda" else CPU]
        self._on_gpu = target == "cuda"
        self.session: Any = compile_model(self._source, target=target, threads=threads)
        self._inputs, self._outputs = ([NodeArg(*a) for a in side] for side in self.session.arguments)
        self._names, self._gives = ([a.name for a in side] for side in (self._inputs, self._outputs))

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_modelmeta(self) -> Any:
        return ModelMeta(self._source.proto)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        """The named outputs (all of them for None), in that order."""
        names = self._names
        if not isinstance(input_feed, Mapping):
            raise InputError(f"onnx: inputs are given by name, {{{names[0] if names else 'x'!r}: array}}, got {type(input_feed).__name__}")
        try:
            given = [x.numpy() if type(x := input_feed[n]) is OrtValue else x for n in names]
        except KeyError:
            given = []
        if len(input_feed) != len(names) or len(given) < len(names):
            for n in input_feed:
                self._check_input(n)
            missing = [n for n in names if n not in input_feed]
            raise InputError(f"onnx: the inputs {', '.join(missing)} are missing; the model takes {', '.join(names)}")
        result = self.session(*given)
        outs = list(result) if isinstance(result, tuple) else [result]
        if self._on_gpu:
            outs = [a if isinstance(a, list) else on_host(a) for a in outs]
        if output_names is None:
            return outs
        return [outs[self._gives.index(self._check_output(n))] for n in output_names]

    def run_with_ort_values(self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: Any = None) -> list[OrtValue]:
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values)]

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
        if name not in self._names:
            raise InputError(f"onnx: the model has no input {name!r}; it takes {', '.join(self._names)}")
        return name

    def _check_output(self, name: str) -> str:
        if name not in self._gives:
            raise InputError(f"onnx: the model has no output {name!r}; it gives {', '.join(self._gives)}")
        return name


def _on_cpu(device_type: str, address: int) -> int:
    if device_type != "cpu":
        raise UnsupportedError(f"onnx: an address can be bound on the CPU only, got {device_type!r}")
    return address
