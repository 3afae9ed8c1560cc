"""What `torch.compile(..., mode=, options=)` says to the backend."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..core.config import load as load_config
from ..core.errors import ConfigError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """`mode` changes nothing: calls are always of low overhead, and kernels are chosen by a cost model."""

    freeze: bool | str = False  # parameters become constants of the program, packed for its kernels; "watch": again after a write
    threads: int | None = None
    precision: str | None = None
    passes: Any = None
    validation: str | None = None
    target: str | None = None

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Options:
        if mode is not None and mode not in MODES:
            raise ConfigError(f"torch.compile: mode must be one of {', '.join(MODES)}, got {mode!r}")
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"torch.compile: options must be a mapping, got {options!r}")
        known = [f.name for f in fields(cls)]
        for name in options or {}:
            if name not in known:
                raise ConfigError(f"torch.compile: the backend tilewright has no option {name!r}; it has {', '.join(known)}")
        found = cls(**dict(options or {}))
        if not isinstance(found.freeze, bool) and found.freeze != "watch":
            raise ConfigError(f"torch.compile: option 'freeze' must be True, False or 'watch', got {found.freeze!r}")
        load_config(threads=found.threads, precision=found.precision)
        return found
