"""From a file or folder to a compiled model: configuration, weights, graph, program."""
from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..compile import Stages, compile_graph, graph_signature, target_spec
from ..core.config import load as load_config
from ..core.errors import ExecutionError, FormatError, InputError, ShapeError, UnsupportedError
from ..core.validation import check_level
from ..ir.graph import Graph
from ..runtime.memory import trim
from ..runtime.session import Session
from ..runtime.state import StateSpec
from ..target.cpu.jit import forget_llvm
from .config import ModelConfig
from .lora import LoraInputs
from .model import AXIS, LLM, HostCall, check_cache, check_context
from .names import PACKAGES
from .program_store import load as load_program
from .program_store import optimised, program_key
from .program_store import save as save_program
from .recurrent import is_recurrent
from .tokenizer import Tokenizer
from .tokenizer_gguf import tokenizer_from_gguf
from .weights import Weights


def load(path: Path, *, context_length: int | None, threads: int | None, cache_dtype: str, progress: Any, target: str = "cpu") -> LLM:
    """See `load_llm`."""
    if not os.path.exists(path):
        raise InputError(f"load_llm: {str(path)!r} does not exist; a model is a GGUF file, a folder, {' '.join(PACKAGES)}, or owner/name")
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise InputError(f"load_llm: {str(path)!r} is neither a file nor a folder")
    stages = Stages(path.name, progress)
    try:
        with stages.stage("open"), named(path):
            config, weights, tokenizer = open_model(path)
        with named(path):
            return assemble(config, weights, tokenizer, context_length=context_length, threads=threads, cache_dtype=cache_dtype,
                            name=path.stem, stages=stages, target=target)
    finally:
        stages.close()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Whatever is wrong with a model becomes an error that names its file."""
    try:
        yield
    except ShapeError as e:
        raise FormatError(f"load_llm: the tensors do not fit each other: {e} ({path})") from e
    except (FormatError, UnsupportedError) as e:
        if str(path) in str(e):
            raise
        raise type(e)(f"{e} ({path})") from e
    except OSError as e:
        raise InputError(f"load_llm: {str(e.filename or path)!r} cannot be read: {e.strerror or e}") from e
    except MemoryError as e:
        raise ExecutionError(f"load_llm: there is not enough memory for {str(path)!r}") from e


def open_model(path: Path) -> tuple[ModelConfig, Weights, Tokenizer]:
    """A GGUF file, or a folder in Hugging Face's layout."""
    if os.path.isdir(path):
        from ..frontend.safetensors import open_folder
        from .hf import tensors_from_state
        from .hf_config import config_from_json
        from .tokenizer_json import tokenizer_from_folder

        folder, source = open_folder(path), str(path)
        config = config_from_json(folder.config, f"{source}/config.json")
        if folder.others:
            name, kind = min(folder.others.items())
            raise UnsupportedError(f"llm: tensor {name!r:.200} has type {kind}; supported: F32 F16 BF16 ({source})")
        state = {name: t.array for name, t in folder.tensors.items()}
        weights = Weights(tensors_from_state(state, config, source), config, source)
        return config, weights, replace(tokenizer_from_folder(folder), size=config.vocab)
    from ..frontend.gguf import open_gguf
    from .gguf_config import from_gguf

    file = open_gguf(path)
    config = from_gguf(file)
    return config, Weights.from_gguf(file, config), replace(tokenizer_from_gguf(file), size=config.vocab)


def assemble(config: ModelConfig, weights: Weights, tokenizer: Tokenizer, *, context_length: int | None = None, threads: int | None = None,
             cache_dtype: str = "f16", name: str = "", stages: Stages | None = None, target: str = "cpu") -> LLM:
    """Build the graph and compile it; programs for adapters are compiled from the same weights when one is used."""
    stages = Stages(name, False) if stages is None else stages
    capacity, cache = check_context(context_length, config.context), check_cache(cache_dtype, config)
    config = config.at(capacity)
    level, spec = check_level(load_config().validation), target_spec(target)

    def graph(wanted: LoraInputs | int | None) -> Graph:
        from .decoder import Decoder

        if isinstance(wanted, int):
            from .batch import BatchDecoder

            return BatchDecoder(config, weights, capacity, cache, lanes=wanted).build()
        return Decoder(config, weights, capacity, cache, wanted).build()

    def program(wanted: LoraInputs | int | None, stages: Stages) -> Session:
        """For one sequence, with an adapter perhaps; or for a number of sequences."""
        if spec.kind != "cpu" or isinstance(wanted, LoraInputs):  # building the graph is what tells LoraInputs its matrices
            return compiled(wanted, stages)
        key = program_key(config, weights, spec, capacity, cache, wanted)

        def stored() -> Session | None:
            with stages.stage("program"):
                return load_program(key, weights, spec, lambda: optimised(graph(wanted), spec), level=level, threads=threads)

        found = stored()
        if found is None:
            session = compiled(wanted, stages)
            save_program(key, session, weights)
            found = stored() or session  # from now on as if it had been there: graph and kernels are let go, packed weights are shared
            found.model.stages, found.model.notes = session.model.stages, session.model.notes
            del session
            forget_llvm()
        return found

    def compiled(wanted: LoraInputs | int | None, stages: Stages) -> Session:
        with stages.stage("graph"):
            built = graph(wanted)
        return compile_graph(built, graph_signature(built), spec, level=level, threads=threads, stages=stages)

    size = sum(t.nbytes for t in weights.tensors.values())
    if spec.kind == "cuda":
        from .cuda import cuda_programs

        on_gpu = cuda_programs(config, weights, capacity, cache, spec, level, stages, AXIS)
        return LLM(config, tokenizer, on_gpu, context_length=capacity, name=name, weight_bytes=size)
    first = program(None, stages)
    weights.forget_pages()  # most were read once, to be laid out for the kernels
    gc.collect()
    trim()
    states = StateSpec(first, AXIS, capacity=capacity, rewritten=is_recurrent)
    call = HostCall(first, states, lambda wanted: program(wanted, Stages(name, False)))
    return LLM(config, tokenizer, call, context_length=capacity, name=name, weight_bytes=size)
