"""LoRA adapters: the logits of weights with the adapter merged in, switched without compiling."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.llm.families import make, ours, reference, relative
from tilewright.core.errors import FormatError

IDS = [7, 3, 90, 14, 55, 2, 8]


def write(folder: Path, model: Any, rank: int, modules: tuple[str, ...], alpha: float, seed: int) -> Path:
    """A random adapter in PEFT's layout; merges it into `model` as well."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(modules):
            out, into = module.weight.shape
            a, b = (rng.standard_normal(s).astype(np.float32) * 0.2 for s in ((rank, into), (out, rank)))
            tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = a, b
            with torch.no_grad():
                module.weight += torch.from_numpy(b @ a * np.float32(alpha / rank))
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": alpha, "peft_type": "LORA"}))
    return folder


def test_an_adapter_is_what_merging_it_gives(tmp_path: Path) -> None:
    llm = ours(make("llama"))
    plain = llm.feed(llm.start(), IDS)
    merged = []
    for i, (rank, modules, alpha) in enumerate(((4, ("q_proj", "v_proj", "down_proj"), 8.0), (7, ("q_proj",), 3.0))):
        model = make("llama")
        llm.use_adapter(llm.load_adapter(write(tmp_path / str(i), model, rank, modules, alpha, i)))
        got = llm.feed(llm.start(), IDS)
        want = reference(model, IDS)[-1]
        assert relative(got, want) < 3e-5
        assert relative(got, plain) > 1e-2, "the adapter changes something"
        merged.append(got)
    assert len(llm._adapted) == 1, "the second adapter runs in the first one's program"
    llm.use_adapter(None)
    assert np.array_equal(llm.feed(llm.start(), IDS), plain)


def test_a_state_survives_a_switch(tmp_path: Path) -> None:
    llm = ours(make("llama"))
    adapter = llm.load_adapter(write(tmp_path / "a", make("llama"), 2, ("q_proj",), 2.0, 0))
    state = llm.start()
    llm.feed(state, IDS)
    llm.use_adapter(adapter)
    llm.feed(state, [5])
    assert state.length == len(IDS) + 1


def test_a_wrong_adapter_says_what_is_wrong(tmp_path: Path) -> None:
    llm = ours(make("llama"))
    with pytest.raises(FormatError, match="lora: no adapter at"):
        llm.load_adapter(tmp_path / "none.safetensors")
    save_file({"x.weight": np.zeros((2, 2), np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match="is not part of a LoRA adapter"):
        llm.load_adapter(tmp_path / "other.safetensors")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file({name + "A.weight": np.zeros((2, 48), np.float32)}, tmp_path / "half.safetensors")
    with pytest.raises(FormatError, match="needs one matrix A and one matrix B"):
        llm.load_adapter(tmp_path / "half.safetensors")
    save_file({name + "A.weight": np.zeros((2, 40), np.float32), name + "B.weight": np.zeros((48, 2), np.float32)},
              tmp_path / "size.safetensors")
    with pytest.raises(FormatError, match=r"attn_q is \[48,48\] in the model, but the adapter is for \[48,40\]"):
        llm.use_adapter(llm.load_adapter(tmp_path / "size.safetensors"))
