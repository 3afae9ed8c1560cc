"""Small random models of every architecture of transformers: configurations are shrunk by the names of their fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Build = tuple[nn.Module, tuple[Any, ...]]

VOCAB, LENGTH, BATCH, IMAGE = 256, 16, 2, 64
FULL_WIDTH = False  # layers as wide as in the configuration, but few of them
FEWER = r"(_id|_index|_idx|vocab_size|codebook_size|n_vocab|layers?|blocks|depth|_count|period|interval|pattern)$|expert|group|every_n"


def at_full_width() -> None:
    global VOCAB, LENGTH, BATCH, IMAGE, FULL_WIDTH
    VOCAB, LENGTH, BATCH, IMAGE, FULL_WIDTH = 8192, 256, 8, 224, True
# The richest class of an architecture is enough: the first of these mappings that knows the configuration.
TASKS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "OBJECT_DETECTION",
         "ZERO_SHOT_OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "IMAGE_CLASSIFICATION",
         "VIDEO_CLASSIFICATION", "MASKED_LM", "MASK_GENERATION", "AUDIO_CLASSIFICATION", "TIME_SERIES_PREDICTION", "KEYPOINT_DETECTION",
         "IMAGE_TO_IMAGE", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM")
HEADS = ("SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING", "MULTIPLE_CHOICE", "MASKED_LM", "IMAGE_CLASSIFICATION",
         "AUDIO_CLASSIFICATION", "AUDIO_XVECTOR", "AUDIO_FRAME_CLASSIFICATION", "PRETRAINING")


def mapping(task: str) -> Any:
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")


def names() -> dict[str, str]:
    """Row -> class: one class for each architecture, then heads of further kinds."""
    from transformers.models.auto import modeling_auto

    first = lambda v: v if isinstance(v, str) else v[0]
    found: dict[str, str] = {}
    for kind, base in modeling_auto.MODEL_MAPPING_NAMES.items():
        found[f"hf {kind}"] = first(next((mapping(t)[kind] for t in TASKS if kind in mapping(t)), base))
    seen = set(found.values())
    for task in HEADS:
        for kind, cls in mapping(task).items():
            if first(cls) not in seen:
                seen.add(first(cls))
                found[f"hf {kind} {task.lower()}"] = first(cls)
    return found


def _number(key: str, v: int, d: dict[str, Any]) -> int:
    """A smaller value for a field of that name."""
    at = lambda pattern: re.search(pattern, key) is not None
    if FULL_WIDTH and not at(FEWER):
        return v
    if at(r"(_id|_index|_idx)$") and v >= VOCAB - 60:
        return VOCAB - 1 - sum(map(ord, key)) % 50
    if at(r"^(vocab_size|.*_vocab_size|codebook_size|n_vocab)$"):
        return min(v, VOCAB)
    if at(r"experts_per_tok|top_k_experts|num_experts_per|moe_top_?k|moe_k$"):
        return min(v, 2)
    if at(r"^(n_group|topk_group|num_expert_group.*)$"):
        return 1
    if at(r"experts|^expert_num$"):
        return min(v, 4)
    if at(r"(layer_period|_interval|sliding_window_pattern|global_attn_every_n_layers|every_n_layers)$"):
        return min(v, 2)
    if at(r"(^|_)(n_?layers?|layers|num_blocks|depth|n_blocks|num_layers_per_block|layers_count)$|num_.*_layers$") and v > 2:
        return 2
    if at(r"^(num_key_value_heads|multi_query_group_num|.*num_kv_heads|.*key_value_heads|num_query_groups)$"):
        return v if v < 2 else 2
    if at(r"(heads|n_head|^nhead|num_head|head_num)$"):
        return min(v, 4)
    if at(r"(rope|pe|rotary)_(head_)?dim$|rotary_dim|qk_rope"):
        return min(v, 8)
    if at(r"head_dim|head_size|_lora_rank|lora_rank|^d_kv$|d_head|dim_head|head_width"):
        return min(v, 16)
    if at(r"patch_size$"):
        return {32: 16, 16: 8, 14: 8}.get(v, v)
    if at(r"^(image_size|img_size|input_size|crop_size|image_resolution)$"):
        return IMAGE
    if at(r"position_embeddings|n_positions|max_.*(position|length|seq)|seq_length|context_length|n_ctx"):
        return min(v, 512)
    if at(r"num_queries|num_object|query_len|num_latents|num_query_tokens"):
        return min(v, 12)
    if at(r"intermediate|ffn|inner|ff_dim|mlp_dim|feed_?forward|d_ff|mlp_hidden"):
        return min(v, 96)
    if at(r"(hidden_size|d_model|n_embd|_dim|^dim|width|_size|channels|embed.*dim|_units|filters|features|d_embed)$") and v >= 64 and \
            not at(r"chunk|window|kernel|pool|sampl|hop|fft|mel|segment|bucket|num_"):
        return max(16, min(64, v))
    return v


RESNET = {"model_type": "resnet", "embedding_size": 32, "hidden_sizes": [32, 32, 48, 64], "depths": [1, 1, 1, 1], "layer_type": "basic",
          "out_features": ["stage2", "stage3", "stage4"]}
CODECS = ("dac", "encodec", "mimi", "xcodec", "neucodec", "vibevoice_acoustic_tokenizer", "xcodec2", "higgs_audio_v2_tokenizer")


def shrunk(d: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with few and small layers."""
    out: dict[str, Any] = {}
    for key, v in d.items():
        if key in ("layer_types", "layers_block_type", "mlp_layer_types", "transformers_version", "architectures", "id2label", "label2id",
                   "attention_types"):
            continue  # they follow from other fields
        if key in ("out_features", "out_indices", "stage_names") and "depths" not in d:
            continue
        if key == "backbone_config" and isinstance(v, dict) and v.get("model_type") == "timm_backbone":
            out[key] = RESNET
            continue
        if isinstance(v, dict):
            out[key] = shrunk(v) if "rope" not in key else v
        elif isinstance(v, bool) or not isinstance(v, (int, list, tuple)):
            out[key] = v
        elif isinstance(v, int):
            out[key] = _number(key, v, d)
        elif v and all(isinstance(i, int) and not isinstance(i, bool) for i in v):
            if re.search(r"depths|num_layers|layers|blocks|num_block", key) and not re.search(r"out_|index|feature", key):
                out[key] = [min(i, 2) for i in v]
            elif FULL_WIDTH:
                out[key] = list(v)
            elif re.search(r"heads", key):
                out[key] = [min(i, 4) for i in v]
            elif re.search(r"image_size|img_size|input_size", key):
                out[key] = [IMAGE for _ in v]
            elif re.search(r"hidden|dim|widths|sizes|filters|embed", key) and min(v) >= 32 and not re.search("kernel|stride|patch", key):
                out[key] = [max(32, i * 32 // min(v)) for i in v]
            else:
                out[key] = list(v)
        else:
            out[key] = v
    return out


def config_of(cls: Any) -> Any:
    config = cls.config_class()
    d = shrunk(config.to_dict())
    d.pop("model_type", None)
    if "prediction_length" in d and not d["prediction_length"]:
        d["prediction_length"] = 8
    if d.get("vocab_size", 0) is None:
        d["vocab_size"] = VOCAB
    d |= OVERRIDES.get(config.model_type, {})
    made = cls.config_class(**d)
    for c in (made, *(getattr(made, k) for k in getattr(made, "sub_configs", {}))):
        for name in ("use_cache", "return_dict_in_generate"):
            if hasattr(c, name):
                setattr(c, name, False)
        if getattr(c, "pad_token_id", 0) is None:
            c.pad_token_id = 0
        for name, v in vars(c).items() if c is not None else ():
            if re.search(r"drop(out)?(_rate|_prob|path)?|_pdrop|layerdrop", name) and isinstance(v, float):
                setattr(c, name, 0.0)
    return made


OVERRIDES: dict[str, dict[str, Any]] = {}


class Outputs(nn.Module):
    """A model called with named inputs; every float tensor of what it returns."""

    def __init__(self, model: Any, keys: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model, self.keys, self.options = model, keys, options

    def double(self) -> Outputs:
        """PyTorch's grouped products have no f64: experts are a loop there."""
        for c in (self.model.config, *(getattr(self.model.config, k, None) for k in getattr(self.model.config, "sub_configs", {}))):
            if c is not None:
                c._experts_implementation = "eager"
        return super().double()

    def forward(self, *inputs: Any) -> Any:
        out = self.model(**dict(zip(self.keys, inputs, strict=True)), **self.options)
        return tuple(_floats(out))


def _floats(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, dict):
        for v in tree.values():
            yield from _floats(v)
    elif isinstance(tree, (list, tuple)):
        for v in tree:
            yield from _floats(v)


def field(config: Any, *names_: str, default: Any = None) -> Any:
    """The first of these fields that the configuration or a part of it has."""
    parts = [config, *(getattr(config, k, None) for k in getattr(config, "sub_configs", {}))]
    for name in names_:
        for c in parts:
            if (v := getattr(c, name, None)) is not None:
                return v
    return default


def pictures(config: Any, frames: int = 0) -> torch.Tensor:
    size = field(config, "image_size", "img_size", "crop_size", default=IMAGE)
    h, w = size if isinstance(size, (list, tuple)) else (size, size)
    if isinstance(h, (list, tuple)) or isinstance(size, dict):
        h = w = IMAGE
    c = field(config, "num_channels", "in_channels", "in_chans", default=3)
    return torch.randn(*((BATCH, frames) if frames else (BATCH,)), c if isinstance(c, int) else 3, h, w)


def inputs_of(model: Any) -> dict[str, Any]:
    """Inputs by the names of the arguments of `forward`."""
    config, found = model.config, dict[str, Any]()
    takes = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    words = field(config, "vocab_size", default=VOCAB)
    words = words if isinstance(words, int) else VOCAB
    special = [v for c in (config, *(getattr(config, k, None) for k in getattr(config, "sub_configs", {}))) if c is not None
               for k, v in vars(c).items() if k.endswith(("_token_id", "_token_index")) and isinstance(v, int)]
    top = max(min([words, *(s for s in special if s > 20)]), 8)

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(min(3, top - 1), top, shape)

    optional = "input_ids" in takes and takes["input_ids"].default is not inspect.Parameter.empty
    text = "input_ids" in takes and not (optional and main in ("pixel_values", "input_features", "input_values") and main in takes)
    if text:
        found["input_ids"] = ids(BATCH, LENGTH)
        if "attention_mask" in takes:
            mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
            mask[1, LENGTH - 3:] = 0
            found["attention_mask"] = mask
        if "bbox" in takes:
            found["bbox"] = torch.randint(0, 50, (BATCH, LENGTH, 1)).expand(-1, -1, 4).contiguous()
    needed = {k for k, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
    both = config.model_type in ("clip", "siglip", "blip", "align", "altclip", "chinese_clip", "clipseg", "flava", "groupvit", "owlvit",
     "owlv2",
                                 "x_clip", "metaclip_2", "siglip2", "vilt", "bridgetower", "layoutlmv3", "lxmert", "aimv2", "git",
                                  "instructblip")
    for key in takes:
        if key in found or (key not in needed and key != main and not (key == "pixel_values" and both)
                            and key not in ("decoder_input_ids", "decoder_inputs_embeds", "actions", "rewards", "returns_to_go",
                             "timesteps")):
            continue
        if key in ("pixel_values", "pixel_values_videos"):
            video = "video" in config.model_type or config.model_type in ("vivit", "timesformer", "vjepa2", "x_clip", "tvp")
            found[key] = pictures(config, field(config, "num_frames", "frames_per_clip", default=4) if video else 0)
        elif key == "input_values":
            found[key] = torch.randn(BATCH, 1, 4800) if config.model_type in CODECS else torch.randn(BATCH,
             4000) if "conv_dim" in vars(config) or "num_mel_bins" not in vars(config) else \
                torch.randn(BATCH, field(config, "max_length", default=128), config.num_mel_bins)
        elif key == "input_features":
            bins, length = field(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "feature_dim", "input_dim",
             default=80), 96
            positions = field(config, "max_source_positions")
            if positions and "whisper" in config.model_type:
                found[key] = torch.randn(BATCH, bins, 2 * positions)
            else:
                found[key] = torch.randn(BATCH, length, bins)
        elif key == "decoder_input_ids" and getattr(config, "is_encoder_decoder", False):
            found[key] = ids(BATCH, LENGTH - 5)
        elif key in ("states", "actions", "rewards", "returns_to_go"):
            found[key] = torch.randn(BATCH, LENGTH, {"states": config.state_dim, "actions": config.act_dim}.get(key, 1))
        elif key == "timesteps":
            found[key] = torch.arange(LENGTH).repeat(BATCH, 1)
        elif key in ("inputs",):
            found[key] = ids(BATCH, LENGTH)
        elif key in ("past_values",):
            n = field(config, "context_length", default=32) + (max(getattr(config, "lags_sequence", None) or [0]))
            found[key] = torch.randn(BATCH, n, *([config.num_input_channels] if hasattr(config, "num_input_channels") else []))
        elif key == "past_time_features":
            found[key] = torch.randn(BATCH, found["past_values"].shape[1], max(config.num_time_features, 1))
        elif key == "past_observed_mask":
            found[key] = torch.ones_like(found["past_values"])
        elif key.endswith(("features_mask", "padding_mask")) and main in found:
            found[key] = torch.ones(found[main].shape[:2], dtype=torch.long)
        elif key in ("query_embeds", "hidden_states", "encoder_hidden_states"):
            found[key] = torch.randn(BATCH, LENGTH, field(config, "hidden_size", default=64))
    return found


def randomised(module: nn.Module) -> nn.Module:
    """Weights of the usual size, so that small layers pass on what they get; norms and biases near what they were."""
    with torch.no_grad():
        for p in module.parameters():
            if not p.is_floating_point():
                continue
            if not torch.isfinite(p).all():
                p.zero_()
            p.copy_(torch.randn(p.shape) * max(p.numel() / max(len(p), 1), 1) ** -0.5 if p.ndim > 1 else p + 0.1 * torch.randn(p.shape))
        for b in module.buffers():
            if b.is_floating_point() and not torch.isfinite(b).all() and b.ndim != 2:
                b.zero_()
    return module.eval()


def build(cls_name: str) -> Build:
    """A model of that class and its inputs."""
    import transformers

    cls = getattr(transformers, cls_name)
    torch.manual_seed(0)
    config = config_of(cls)
    model = cls(config)
    inputs = inputs_of(model)
    if not inputs:
        raise LookupError(f"no inputs are known for {list(inspect.signature(model.forward).parameters)}")
    if cls_name.endswith("MultipleChoice"):
        inputs = {k: v[:, None].repeat(1, 2, *([1] * (v.ndim - 1))) for k, v in inputs.items()}
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    return randomised(Outputs(model, tuple(inputs), **options)), tuple(inputs.values())
