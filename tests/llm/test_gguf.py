"""Models from GGUF files: the same bits as from the state dict they were written from, and files that cannot be."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.llm.families import RECURRENT, SIZES, make, ours
from tilewright.core.errors import FormatError, UnsupportedError
from tilewright.frontend.gguf import open_gguf
from tilewright.llm.config import ModelConfig
from tilewright.llm.gguf_config import from_gguf
from tilewright.llm.hf import tensors_from_state
from tilewright.llm.hf_config import config_from_json
from tilewright.llm.loading import assemble
from tilewright.llm.model import LLM
from tilewright.llm.weights import Weights

NAMES = ["llama", "llama_tied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2", "mixtral", "qwen3moe", "mamba", "mamba2",
         "qwen3next", "falcon_h1"]
IDS = [5, 80, 33, 2, 17, 6, 9, 101, 44, 3]


def interleaved(rows: Any, head_dim: int) -> Any:
    """What llama.cpp's converter does to the rows of q and k."""
    heads = len(rows) // head_dim
    return rows.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, model: Any, *, old: bool = False, **override: Any) -> ModelConfig:
    """`model` as a GGUF file, by the gguf package; `old` has the matrices of a delta net in one."""
    raw = model.config.to_dict()
    config = config_from_json(raw)
    arch = config.architecture
    state = {k: (lambda v=v: v.detach().numpy()) for k, v in model.state_dict().items()}
    if raw.get("tie_word_embeddings"):
        state.pop("lm_head.weight", None)
    tensors = tensors_from_state(state, config)
    writer = gguf.GGUFWriter(path, arch)
    values: dict[str, Any] = {
        "embedding_length": config.width, "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
        "block_count": config.layers, "context_length": config.context, "attention.key_length": config.head_dim,
        "attention.layer_norm_epsilon" if arch == "gpt2" else "attention.layer_norm_rms_epsilon": float(config.norm_eps),
    }
    if config.rope is not None:
        values["rope.freq_base"], values["rope.dimension_count"] = float(config.rope.base), config.rope.dims
    if (r := config.recurrence) is not None:
        values |= {"ssm.conv_kernel": r.taps, "ssm.inner_size": r.inner, "ssm.state_size": r.state, "ssm.time_step_rank": r.rank or r.heads,
                   "ssm.group_count": r.groups}
        if "attention" in config.mixers:
            values["full_attention_interval"] = config.mixers.index("attention") + 1
    if config.experts:
        values["expert_count"], values["expert_used_count"] = config.experts, config.experts_used
    window = next((w for w in config.windows if w is not None), None)
    if window:
        values["attention.sliding_window"] = window
    if config.attention_softcap:
        values["attn_logit_softcapping"] = float(config.attention_softcap)
    if config.logit_softcap:
        values["final_logit_softcapping"] = float(config.logit_softcap)
    for key, value in {**values, **override}.items():
        if value is not None:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{arch}.{key}", value)
    for name, tensor in tensors.items():
        array = tensor.array()
        if arch == "llama" and name.endswith(("attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias")):
            array = interleaved(array, config.head_dim)
        if r is not None and r.kind == "mamba2" and name.endswith((".ssm_a", ".ssm_d")):
            array = array[:, None]
        if r is not None and r.kind == "mamba2" and name.endswith(".ssm_norm.weight"):
            array = array.reshape(r.norm_groups, -1)
        parts = {name: array}
        if r is not None and r.kind == "delta" and name.endswith(".ssm_in.weight") and not old:
            groups = np.split(array.reshape(r.groups, -1, config.width), np.cumsum([r.state, r.state, r.inner // r.groups]), axis=1)
            *mixed, gate = (g.reshape(-1, config.width) for g in groups)
            parts = {name.replace("ssm_in", "attn_qkv"): np.concatenate(mixed), name.replace("ssm_in", "attn_gate"): gate}
        for place, part in parts.items():
            writer.add_tensor(place, np.ascontiguousarray(part))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def read(path: Path, model: LLM) -> LLM:
    file = open_gguf(path)
    config = from_gguf(file)
    return assemble(config, Weights.from_gguf(file, config), model.tokenizer, context_length=64, cache_dtype="f32")


def plain(name: str) -> Any:
    """A configuration without what a file cannot say: its converter multiplies it into tensors, or llama.cpp does not know it."""
    import transformers as tf

    if name == "mamba2":
        return tf.Mamba2Config(**RECURRENT, num_heads=6, head_dim=16, state_size=9, n_groups=1, chunk_size=8)
    if name == "falcon_h1":
        return tf.FalconH1Config(**SIZES, mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=2,
                                 mamba_rms_norm=True, mamba_norm_before_gate=False)
    return None


@pytest.mark.parametrize("name", [n if i % 3 == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(NAMES)])
def test_a_file_gives_the_bits_of_its_model(name: str, tmp_path: Path) -> None:
    model = make(name, config=plain(name))
    model.config.query_pre_attn_scalar = model.config.head_dim if name.startswith("gemma") else None
    model.config.norm_topk_prob = True  # the file does not say: llama.cpp always does
    want = ours(model)
    write(tmp_path / "m.gguf", model)
    got = read(tmp_path / "m.gguf", want)
    assert np.array_equal(got.feed(got.start(), IDS), want.feed(want.start(), IDS))


def test_files_of_delta_nets_of_both_kinds(tmp_path: Path) -> None:
    model = make("qwen3next")
    model.config.norm_topk_prob = True
    want = ours(model)
    for old in (False, True):
        write(tmp_path / "m.gguf", model, old=old)
        assert ("blk.0.ssm_in.weight" in open_gguf(tmp_path / "m.gguf").tensors) == old
        got = read(tmp_path / "m.gguf", want)
        assert np.array_equal(got.feed(got.start(), IDS), want.feed(want.start(), IDS))


@pytest.mark.slow
def test_files_that_cannot_be(tmp_path: Path) -> None:
    model = make("llama")
    path = tmp_path / "m.gguf"
    for override, message in (({"attention.head_count": 0}, "'llama.attention.head_count' must be an integer in 1..65536, got 0"),
                              ({"attention.head_count_kv": 3}, "cannot share"), ({"block_count": 9}, "blk.3.attn_norm.weight' is missing"),
                              ({"embedding_length": 40}, r"must have shape \[131, 40\]"), ({"rope.dimension_count": 0}, "an integer in 1"),
                              ({"rope.dimension_count": 5}, "rotated dims must be even"), ({"rope.dimension_count": 14}, "in 2..12"),
                              ({"attention.layer_norm_rms_epsilon": -1e-5}, "rms_epsilon' must be a number of at least 0 and at most 1"),
                              ({"rope.freq_base": float("nan")}, "freq_base' must be a number of at least 1"),
                              ({"expert_used_count": 2}, "2 of 0 experts"), ({"expert_count": 2}, "no experts of 2 serve a token"),
                              ({"block_count": 1 << 30}, "'llama.block_count' must be an integer in 1..4096, got 1073741824"),
                              ({"block_count": 2}, "no place for tensor 'blk.2.attn_k.weight' in a llama model of 2 layers"),
                              ({"block_count": None}, "'llama.block_count' must be an integer in 1..4096, got nothing")):
        write(path, model, **override)
        with pytest.raises(FormatError, match=message):
            read(path, ours(model))


def test_keys_that_change_a_model_are_refused(tmp_path: Path) -> None:
    model = make("llama")
    for override, message in (({"logit_scale": 0.5}, "'llama.logit_scale' is 0.5, which is not supported; supported: 0.0 1.0"),
                              ({"attention.value_length": 7}, "'llama.attention.value_length' is 7"),
                              ({"expert_shared_count": 1}, "'llama.expert_shared_count' is 1")):
        write(tmp_path / "m.gguf", model, **override)
        with pytest.raises(UnsupportedError, match=message):
            read(tmp_path / "m.gguf", ours(model))


def test_recurrent_files_that_cannot_be(tmp_path: Path) -> None:
    model = make("mamba2", config=plain("mamba2"))
    path, whole = tmp_path / "m.gguf", ours(model)
    for override, message in (({"ssm.state_size": None}, "'mamba2.ssm.state_size' must be an integer in 1..65536, got nothing"),
                              ({"ssm.conv_kernel": 1}, "'mamba2.ssm.conv_kernel' must be an integer in 2..64, got 1"),
                              ({"ssm.conv_kernel": 5}, r"'blk.0.ssm_conv1d.weight' must have shape \[114, 5\], got \[114, 4\]"),
                              ({"ssm.time_step_rank": 7}, "96 channels of a recurrence cannot be 7 heads"),
                              ({"ssm.group_count": 4}, "6 heads of a recurrence cannot be 4 groups"),
                              ({"block_count": 4}, "tensor 'blk.3.attn_norm.weight' is missing; a mamba2 model of 4 layers needs it")):
        write(path, model, **override)
        with pytest.raises(FormatError, match=message + r".*m\.gguf"):
            read(path, whole)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv7")
    writer.add_tensor("x", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="architecture 'rwkv7' is not supported; supported: llama"):
        from_gguf(open_gguf(tmp_path / "m.gguf"))
