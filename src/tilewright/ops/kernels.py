"""Ops whose kernels come with them: what users write in the kernel language, and functions of the host."""
from __future__ import annotations

from typing import Any

from .base import NotSupported
from .families import General


class OwnKernel(General):
    """An op that makes its own launches. `launches(region, target)` gives them, `unserved(target)` says why it has none for a target."""

    unsupported = {"vjp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_vjp"),
                   "jvp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_jvp"),
                   "batch": NotSupported("a kernel has the axes that it was written for; give it a batch axis, or loop with tw.scan")}

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return False

    def unserved(self, target: Any) -> str | None:
        """Why this op does not run on a target, or None."""
        return None

    def launches(self, region: Any, target: Any) -> list[Any]:
        """The launches of a region that is this op alone."""
        raise NotImplementedError

