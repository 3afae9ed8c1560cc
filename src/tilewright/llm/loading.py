"""From a file or folder to a compiled model: configuration, weights, graph, program."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compile import Stages, compile_graph, graph_signature, target_spec
from ..core.config import load as load_config
from ..core.errors import InputError
from ..core.validation import check_level
from .config import ModelConfig, from_gguf
from .decoder import Decoder
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
    from ..frontend.gguf import open_gguf

    file = open_gguf(path)
    config = from_gguf(file)
    return config, Weights.from_gguf(file, config), tokenizer_from_gguf(file)


def assemble(config: ModelConfig, weights: Weights, tokenizer: Tokenizer, *, context_length: int | None = None, threads: int | None = None,
             cache_dtype: str = "f16", name: str = "", stages: Stages | None = None, target: str = "cpu") -> LLM:
    """Build the graph and compile it."""
    stages = Stages(name, False) if stages is None else stages
    capacity, cache = check_context(context_length, config.context), check_cache(cache_dtype)
    with stages.stage("graph"):
        graph = Decoder(config, weights, capacity, cache).build()
    level = check_level(load_config().validation)
    session = compile_graph(graph, graph_signature(graph), target_spec(target), level=level, threads=threads, stages=stages)
    session.model.framework = "numpy"
    size = sum(t.nbytes for t in weights.tensors.values())
    return LLM(config, tokenizer, session, context_length=capacity, name=name, weight_bytes=size)
