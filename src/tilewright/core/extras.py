"""Packages that the core does without. A function that needs one asks `need` first: where it is missing, the error names the extra."""
from __future__ import annotations

from importlib import import_module

from .errors import TilewrightError, UnsupportedError

EXTRAS = {"torch": "torch", "onnx": "onnx", "cuda-bindings": "cuda", "scipy": "linalg", "tokenizers": "llm", "jinja2": "llm",
          "safetensors": "llm"}  # package -> the extra of pyproject.toml that brings it


def how_to_install(package: str) -> str:
    """The end of an error about a package that is missing.

    >>> how_to_install("onnx")
    "install it with: pip install 'tilewright[onnx]'"
    """
    return f"install it with: pip install 'tilewright[{EXTRAS[package]}]'"


def need(package: str, subject: str, error: type[TilewrightError] = UnsupportedError) -> None:
    """Raise an error that says how to install `package` where it is missing. One that is there and broken raises what it raises."""
    try:
        import_module(package)
    except ModuleNotFoundError as e:
        if e.name != package:
            raise
        raise error(f"{subject}: needs the package {package!r}; {how_to_install(package)}") from None
