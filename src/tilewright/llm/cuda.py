"""A language model on a GPU: one program for a single new token, one for prompts of any length, the next token chosen on the host.

Both programs work on the same caches in place. Choosing runs the CPU's own kernel on the logits: the same logits give the same token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops as o
from ..compile import Stages, compile_graph, graph_signature, target_spec
from ..core import dtypes as dt
from ..core.errors import UnsupportedError
from ..core.target_spec import TargetSpec
from ..core.validation import Level
from ..ir.graph import Graph
from ..ir.types import TensorType
from ..ops.sampling import NUMBERS, SETTINGS
from ..runtime import cuda_driver
from ..runtime.cuda_array import upload
from ..runtime.cuda_session import CudaSession
from ..runtime.cuda_state import CudaState
from .decoder import Decoder

Array = np.ndarray[Any, Any]


class CudaCall:
    """What `StatefulCall` is on the CPU: (states, env, inputs, outputs), arrays in and out."""

    def __init__(self, one: CudaSession, many: CudaSession, sample: Any, axis: int) -> None:
        self.session, self.many, self.sample, self.axis = one, many, sample, axis

    def start(self) -> CudaState:
        return CudaState(self.session, self.axis)

    def __call__(self, states: Sequence[CudaState], env: Mapping[str, int], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        ids, seen, settings, numbers = inputs
        logits, token = outputs
        (state,) = states
        session = self.session if len(ids) == 1 else self.many
        cuda_driver.enter()
        given = upload(np.asarray(ids), session.interface.inputs[0].dtype, session.stream)
        found = session.in_place(given, *state.arrays, P=env["P"])
        session.synchronize()
        logits[...] = found[0].numpy()
        token[...] = self.sample(logits, seen, settings, numbers)


def sampler_of(vocab: int) -> Any:
    """The choice of a token as a program for the CPU."""
    g = Graph("sample")
    logits = g.input(TensorType(dt.f32, (vocab,)), "logits")
    seen, settings = g.input(TensorType(dt.u8, (vocab,)), "seen"), g.input(TensorType(dt.f32, (len(SETTINGS),)), "settings")
    numbers = g.input(TensorType(dt.i64, (len(NUMBERS),)), "numbers")
    g.outputs = [o.Sample()(logits, seen, settings, numbers, name="sample")]
    return compile_graph(g, graph_signature(g), target_spec("cpu"))


def cuda_programs(
    config: Any, weights: Any, capacity: int, cache: str, spec: TargetSpec, level: Level, stages: Stages, axis: int
) -> CudaCall:
    """Compile both programs from the same weights."""
    if cache == "q8_0":
        raise UnsupportedError("load_llm: a q8_0 cache has no kernels on a GPU; use cache_dtype='f16'")

    def compiled(rows: int | None) -> CudaSession:
        with stages.stage("graph"):
            built = Decoder(config, weights, capacity, cache, sampled=False, rows=rows, narrow=True).build()
        session: Any = compile_graph(built, graph_signature(built), spec, level=level, stages=stages)
        assert isinstance(session, CudaSession)
        return session

    return CudaCall(compiled(1), compiled(None), sampler_of(config.vocab), axis)
