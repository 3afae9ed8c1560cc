"""GGUF files: metadata and packed tensors, mapped from the file.

    file = open_gguf("model.gguf")
    file.metadata.text("general.architecture"), file.tensors["token_embd.weight"].format
"""

from __future__ import annotations

from .metadata import Metadata, StringArray
from .reader import GGUFFile, open_gguf

__all__ = ["GGUFFile", "Metadata", "StringArray", "open_gguf"]
