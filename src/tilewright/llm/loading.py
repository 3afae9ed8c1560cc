"""From a file or folder to a compiled model: configuration, weights, graph, program."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compile import Stages, compile_graph, graph_signature, target_spec
from ..core.config import load as load_config
from ..core.errors import InputError
from ..core.validation import check_level
from ..runtime.session import Session
from .batch import BatchDecoder
from .config import ModelConfig, from_gguf
from .decoder import Decoder
from .lora import LoraInputs
from .model import LLM, check_cache, check_context
from .tokenizer import Tokenizer
from .tokenizer_gguf import tokenizer_from_gguf
from .weights import Weights


def load(path: Path, *, context_length: int | None, threads: int | None, cache_dtype: str, progress: Any) -> LLM:
    """See `load_llm`."""
    if not path.exists():
        raise InputError(f"load_llm: {str(path)!r} does not exist")
    stages = Stages(path.name, progress)
    try:
        with stages.stage("open"):
            config, weights, tokenizer = open_model(path)
        return assemble(config, weights, tokenizer, context_length=context_length, threads=threads, cache_dtype=cache_dtype, name=path.stem,
                        stages=stages)
    finally:
        stages.close()


def open_model(path: Path) -> tuple[ModelConfig, Weights, Tokenizer]:
    """A GGUF file, or a folder in Hugging Face's layout."""
    if path.is_dir():
        from ..frontend.safetensors import open_folder
        from .hf import config_from_json, tensors_from_state
        from .tokenizer_json import tokenizer_from_folder

        folder = open_folder(path)
        config = config_from_json(folder.config)
        unused = {"lm_head.weight"} if folder.config.get("tie_word_embeddings") else set()
        state = {name: t.array for name, t in folder.tensors.items() if name not in unused}
        return config, Weights(tensors_from_state(state, config), config), tokenizer_from_folder(folder)
    from ..frontend.gguf import open_gguf

    file = open_gguf(path)
    config = from_gguf(file)
    return config, Weights.from_gguf(file, config), tokenizer_from_gguf(file)


def assemble(config: ModelConfig, weights: Weights, tokenizer: Tokenizer, *, context_length: int | None = None, threads: int | None = None,
             cache_dtype: str = "f16", name: str = "", stages: Stages | None = None, target: str = "cpu") -> LLM:
    """Build the graph and compile it; programs for adapters are compiled from the same weights when one is used."""
    stages = Stages(name, False) if stages is None else stages
    capacity, cache = check_context(context_length, config.context), check_cache(cache_dtype, config)
    level, spec = check_level(load_config().validation), target_spec(target)

    def program(wanted: LoraInputs | int | None, stages: Stages) -> Session:
        """For one sequence, with an adapter perhaps; or for a number of sequences."""
        with stages.stage("graph"):
            if isinstance(wanted, int):
                graph = BatchDecoder(config, weights, capacity, cache, lanes=wanted).build()
            else:
                graph = Decoder(config, weights, capacity, cache, wanted).build()
        return compile_graph(graph, graph_signature(graph), spec, level=level, threads=threads, stages=stages)

    size = sum(t.nbytes for t in weights.tensors.values())
    first = program(None, stages)
    weights.forget_pages()  # most were read once, to be laid out for the kernels
    return LLM(config, tokenizer, first, context_length=capacity, name=name, weight_bytes=size,
               compile_for=lambda wanted: program(wanted, Stages(name, False)))
