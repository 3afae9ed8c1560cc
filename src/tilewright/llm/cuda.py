"""A language model on a GPU: one program for a single new token, one for prompts of any length, one that chooses the next token, and
one for each number of sequences side by side that was asked for.

The first two work on the same caches in place. A chosen token stays on the GPU, where the next step reads it; its number alone is copied
back. What the choice reads (settings, random counter, tokens of the text) is copied there when it is another than last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from .. import ops as o
from ..compile import Stages, compile_graph, graph_signature
from ..core import dtypes as dt
from ..core.dtypes import DType
from ..core.target_spec import TargetSpec
from ..core.validation import Level
from ..ir.graph import Graph
from ..ir.types import TensorType
from ..ops.index.sampling import NUMBERS, SETTINGS
from ..runtime.cuda import driver as cuda_driver
from ..runtime.cuda.array import DeviceArray, upload
from ..runtime.cuda.session import CudaSession
from ..runtime.cuda.state import CudaState, CudaStateSpec
from .batch import BatchDecoder
from .cuda_store import load as load_program
from .cuda_store import save as save_program
from .decoder import Decoder
from .lora import LoraInputs
from .program_store import optimised, program_key
from .recurrent import is_recurrent

Array = np.ndarray[Any, Any]
KEPT = 16  # settings of choices that stay on the GPU


class Kept:
    """Small arrays of the host that stay on the GPU."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.arrays: dict[bytes, DeviceArray] = {}

    def choice(self, seen: Array, settings: Array, numbers: Array) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """What a choice (or one of every row) reads beside the logits. Without a penalty it matters to nobody which tokens were seen,
        without a temperature neither what the random numbers come from: zeros stay there for both."""
        penal = bool(((settings[..., 3] != 1) & (settings[..., 3] > 0)).any())
        hot = bool((settings[..., 0] > 0).any())
        seen_there = upload(seen, dt.u8, self.stream) if penal else self.kept(b"seen", seen, dt.u8, zeros=True)
        numbers_there = upload(numbers, dt.i64, self.stream) if hot else self.kept(b"numbers", numbers, dt.i64, zeros=True)
        return seen_there, self.kept(settings.tobytes(), settings, dt.f32), numbers_there

    def kept(self, key: bytes, array: Array, dtype: DType, *, zeros: bool = False) -> DeviceArray:
        """An array, or zeros in its place."""
        found = self.arrays.get(key)
        if found is None:
            if len(self.arrays) >= KEPT:
                self.arrays.clear()
            found = self.arrays[key] = upload(np.zeros_like(array) if zeros else array, dtype, self.stream)
        return found


class CudaLanes:
    """One token for each of several sequences (`BatchDecoder`): what `StatefulCall` with lanes is on the CPU. Logits stay on the GPU."""

    def __init__(self, session: CudaSession, lanes: int, turn: Lock) -> None:
        self.session, self.lanes, self._there, self._turn = session, lanes, Kept(session.stream), turn

    def __call__(self, states: Sequence[CudaState], env: Mapping[str, int], inputs: Sequence[Array],
                 outputs: Sequence[Array | None]) -> None:
        ids, seen, settings, numbers = inputs
        caches = [x for state in states for x in state.arrays]
        with self._turn:
            cuda_driver.enter()
            choice = self._there.choice(seen, settings, numbers)
            found = self.session.in_place(upload(ids, dt.i64, self.session.stream), *choice, *caches, **env)[1]
            tokens = outputs[1]
            assert tokens is not None
            tokens[...] = found.numpy()
            for state in states:
                state.chosen = None
            self.session.synchronize()


@dataclass(frozen=True)
class Others:
    """How programs are compiled that not everybody needs: for several sequences, and for an adapter (one token, prompts)."""

    lanes: Callable[[int], CudaSession]
    adapted: Callable[[LoraInputs], tuple[CudaSession, CudaSession]]


class CudaCall:
    """What `HostCall` is on the CPU: (states, env, inputs, outputs), arrays in and out. An output that is None is not wanted.

    All programs of a model run on one stream. Calls from several threads take turns, so that what a call finds in its data is its own."""

    keeps_logits = True

    def __init__(self, one: CudaSession, many: CudaSession, choose: CudaSession, states: CudaStateSpec, others: Others,
                 turn: Lock | None = None) -> None:
        self._turn = Lock() if turn is None else turn
        self.session, self.many, self.choose, self.states, self._others = one, many, choose, states, others
        self._lanes: dict[int, CudaLanes] = {}
        self._adapted: list[CudaCall] = []
        self._there = Kept(one.stream)

    def start(self) -> CudaState:
        return CudaState(self.states)

    def __call__(self, states: Sequence[CudaState], env: Mapping[str, int], inputs: Sequence[Array],
                 outputs: Sequence[Array | None]) -> None:
        ids, seen, settings, numbers, *adapter = inputs
        logits, token = outputs
        (state,) = states
        session = self.session if len(ids) == 1 else self.many
        with self._turn:
            cuda_driver.enter()
            found = session.in_place(self._ids(state, ids), *state.arrays, *adapter, P=env["P"])[0]
            state.chosen = None
            if token is not None:
                chosen = self.choose(found, *self._there.choice(seen, settings, numbers))
                token[...] = chosen.numpy()[0]
                state.chosen = int(token), chosen
            if logits is not None:
                logits[...] = found.numpy()
            session.synchronize()
            self.choose.synchronize()

    def _ids(self, state: CudaState, ids: Array) -> DeviceArray:
        """The tokens on the GPU: the one that was chosen there, where it is that one."""
        if state.chosen is not None and len(ids) == 1 and int(ids[0]) == state.chosen[0]:
            return state.chosen[1]
        return upload(ids, dt.i64, self.session.stream)

    def lanes_for(self, count: int) -> CudaLanes:
        """A program for this many sequences side by side, compiled when it is first asked for."""
        if count not in self._lanes:
            self._lanes[count] = CudaLanes(self._others.lanes(count), count, self._turn)
        return self._lanes[count]

    def adapted(self, inputs: LoraInputs) -> CudaCall:
        """Programs with an adapter's matrices as inputs, for one token and for prompts; their arrays come last, as `arrays` makes them."""
        new = CudaCall(*self._others.adapted(inputs), self.choose, self.states, self._others, self._turn)
        self._adapted.append(new)
        return new

    def arrays(self, arrays: Sequence[Array]) -> list[DeviceArray]:
        """An adapter's matrices on the GPU."""
        cuda_driver.enter()
        return [upload(x, dt.f32, self.session.stream) for x in arrays]

    def programs(self) -> dict[str, CudaSession]:
        found = {"one token": self.session, "prompts": self.many, "choice": self.choose}
        return found | {f"{n} sequences": lanes.session for n, lanes in self._lanes.items()}

    def report(self) -> LlmReport:
        return LlmReport({**{name: session.report() for name, session in self.programs().items()}, "host": HOST})

    def close(self) -> None:
        for session in self.programs().values():
            session.close()
        for call in self._adapted:
            call.close()
        self._there.arrays.clear()


HOST = (
    "text and tokens: encoding, decoding, where a generation ends",
    "once for each kind of settings: 16 bytes of them to the GPU",
    "at every step: the chosen token's number (8 bytes) from the GPU",
    "with a temperature: 24 bytes to the GPU at every step (top_k, seed, counter of the random numbers, which are drawn there)",
    "with a repetition penalty: a byte for every token of the vocabulary to the GPU at every step",
    "use_adapter(): the adapter's matrices to the GPU",
    "feed(): the tokens to the GPU, the logits from it",
    "generate_batch(): prompts one by one; then for each sequence 8 bytes to the GPU and 8 from it at every step",
)


class LlmReport:
    """The reports of the programs by what they do, and what is left to the host."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __str__(self) -> str:
        parts = [f"{name}:\n{report}" for name, report in self.data.items() if name != "host"]
        return "\n\n".join([*parts, "on the host:\n" + "\n".join(f"  {line}" for line in self.data["host"])])

    __repr__ = __str__


def choosing_graph(vocab: int) -> Graph:
    """The choice of a token as a program: i64[1], as the next step takes it."""
    g = Graph("choice")
    logits = g.input(TensorType(dt.f32, (vocab,)), "logits")
    seen, settings = g.input(TensorType(dt.u8, (vocab,)), "seen"), g.input(TensorType(dt.f32, (len(SETTINGS),)), "settings")
    numbers = g.input(TensorType(dt.i64, (len(NUMBERS),)), "numbers")
    g.outputs = [o.reshape(o.Sample()(logits, seen, settings, numbers, name="sample"), (1,))]
    return g


def cuda_programs(config: Any, weights: Any, capacity: int, cache: str, spec: TargetSpec, level: Level, stages: Stages,
                  axis: int) -> CudaCall:
    """Compile the programs from the same weights."""
    def compiled(graph: Graph, stages: Stages | None = None) -> CudaSession:
        session: Any = compile_graph(graph, graph_signature(graph), spec, level=level, stages=stages)
        assert isinstance(session, CudaSession)
        return session

    narrow = not weights.is_f32  # a model in f32 is computed in f32: its queries are not rounded to the cache's dtype

    def program(what: str, build: Callable[[], Graph], stages: Stages) -> CudaSession:
        """From the code cache, or compiled now and stored there."""
        key = program_key(config, weights, spec, capacity, cache, what)
        with stages.stage("program"):
            found = load_program(key, weights, spec, lambda: optimised(build(), spec), level, stages)
        if found is None:
            with stages.stage("graph"):
                built = build()
            found = compiled(built, stages)
            save_program(key, found, weights)
        return found

    def graph(rows: int | None, adapt: LoraInputs | None = None) -> Graph:
        return Decoder(config, weights, capacity, cache, adapt, sampled=False, rows=rows, narrow=narrow).build()

    def lanes(count: int) -> CudaSession:
        several = BatchDecoder(config, weights, capacity, cache, lanes=count).build
        return program(f"{count} sequences", several, Stages(f"{count} sequences", False))

    def adapted(inputs: LoraInputs) -> tuple[CudaSession, CudaSession]:
        same = LoraInputs(inputs.kinds)  # its matrices come in the same order
        return compiled(graph(1, inputs)), compiled(graph(None, same))

    one, many = program("one token", lambda: graph(1), stages), program("prompts", lambda: graph(None), stages)
    states = CudaStateSpec(one, axis, capacity, is_recurrent)
    return CudaCall(one, many, program("choice", lambda: choosing_graph(config.vocab), stages), states, Others(lanes, adapted))
