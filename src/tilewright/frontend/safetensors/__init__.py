"""Hugging Face folders: `config.json` and weights in safetensors files, mapped, not read.

    folder = open_folder("SmolLM2-135M")
    folder.config["hidden_size"], folder.tensors["model.embed_tokens.weight"].shape
"""

from __future__ import annotations

from .folder import HFFolder, open_folder, open_safetensors

__all__ = ["HFFolder", "open_folder", "open_safetensors"]
