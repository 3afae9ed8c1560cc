"""A folder of checkpoints of one run: `step-00001000.safetensors` and so on, the last few of them kept."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, ConfigError
from ..core.files import remove_leftovers
from .checkpoint import Checkpoint, is_checkpoint, load_checkpoint, save_checkpoint

NAME = re.compile(r"step-(\d{8,})\.safetensors")


class CheckpointFolder:
    """Numbered checkpoints, the last `keep` of them (None: all). An older one is deleted only when the new one is on disk.

        folder = tw.training.CheckpointFolder("run", keep=3)
        folder.save({"params": params, "state": state}, step=100)
        folder.steps, folder.load(like={"params": params, "state": state}).step
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int | None = 3) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"checkpoints: keep must be at least 1, or None for all, got {keep}")
        self.path, self.keep = Path(path), keep

    def __repr__(self) -> str:
        return f"CheckpointFolder({str(self.path)!r}, steps {self.steps})"

    @property
    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, in order."""
        names = (NAME.fullmatch(p.name) for p in self.path.iterdir()) if os.path.isdir(self.path) else ()
        return sorted(int(m[1]) for m in names if m is not None)

    def file(self, step: int) -> Path:
        return self.path / f"step-{step:08d}.safetensors"

    def save(self, tree: Any, *, step: int, metadata: Mapping[str, Any] | None = None) -> Path:
        """Write one checkpoint, then delete those beyond `keep`."""
        if step < 0:
            raise ConfigError(f"checkpoints: a step must not be negative, got {step}")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise CheckpointError(f"checkpoint: could not make the folder {self.path}: {e.strerror or e}") from e
        save_checkpoint(self.file(step), tree, step=step, metadata=metadata)
        if self.keep is not None:
            for old in [s for s in self.steps if s != step][: -self.keep + 1 or None]:
                if is_checkpoint(self.file(old)):  # the folder may hold other things of the user's, under such names too
                    self.file(old).unlink(missing_ok=True)
        remove_leftovers(self.path, NAME)
        return self.file(step)

    def load(self, like: Any = None, *, step: int | None = None) -> Checkpoint:
        """The newest checkpoint, or that of a step."""
        steps = self.steps
        if not steps or (step is not None and step not in steps):
            wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
            raise CheckpointError(f"checkpoints: there must be {wanted} in {self.path}, got steps {steps}")
        return load_checkpoint(self.file(steps[-1] if step is None else step), like)
