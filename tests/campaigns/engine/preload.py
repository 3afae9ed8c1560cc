"""What the server of worker processes imports before it forks."""

from __future__ import annotations

import tilewright

tilewright.compile, tilewright.jit, tilewright.grad, tilewright.add  # noqa: B018  # names are imported when they are first used
