"""Small random configurations of transformers' models. No file is read and nothing is downloaded."""

from __future__ import annotations

from typing import Any

from torch import nn

from .plain import Hidden, Logits, randomised

VOCAB = 101


def gpt2(attention: str = "sdpa", **more: Any) -> nn.Module:
    """GPT-2 with tied embeddings, logits only."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        use_cache=False,
        n_embd=32,
        n_layer=2,
        n_head=2,
        vocab_size=VOCAB,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
        **more,
    )
    return randomised(Logits(GPT2LMHeadModel(config)))


def bert(attention: str = "sdpa") -> nn.Module:
    """BERT encoder (MiniLM has the same shape): ids and mask to hidden states."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    return randomised(Hidden(BertModel(config)))


def llama(attention: str = "sdpa", **more: Any) -> nn.Module:
    """Llama decoder with grouped-query attention, logits only."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
        **more,
    )
    return randomised(Logits(LlamaForCausalLM(config)))


def vit() -> nn.Module:
    """Vision transformer, logits of 7 classes from 3x32x32."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8, num_labels=7
    )
    return randomised(Logits(ViTForImageClassification(config)))


def resnet(layer: str = "bottleneck") -> nn.Module:
    """ResNet, logits of 7 classes from 3x32x32."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=7, layer_type=layer)
    return randomised(Logits(ResNetForImageClassification(config)))
