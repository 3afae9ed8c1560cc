"""The work of a child process: arrays, a session that is saved and opened, a language model, a checkpoint. Prints a digest of all results.

    python -m tests.campaigns.processes.child FOLDER [part …]

Errors of Tilewright and a lack of memory end it with status 3 and one line; anything else is a traceback, as it should be.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

PARTS = ("arrays", "session", "model", "checkpoint")


def main(folder: Path, parts: list[str]) -> int:
    try:
        import numpy as np

        import tilewright as tw

        digest = hashlib.sha256()
        for part in parts:
            for array in WORK[part](tw, np, folder):
                digest.update(np.ascontiguousarray(array).tobytes())
        print(digest.hexdigest())
        return 0
    except MemoryError as e:
        print(f"memory: {e}", file=sys.stderr)
        return 3
    except Exception as e:
        if type(e).__module__.startswith("tilewright"):
            print(f"typed: {type(e).__name__}: {e}".encode("ascii", "replace").decode(), file=sys.stderr)
            return 3
        raise


def arrays(tw: Any, np: Any, _: Path) -> list[Any]:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    f = tw.jit(lambda a, b: tw.tanh(a @ b) + 1)
    return [f(x, x.T), tw.grad(lambda a: tw.sum(a * a))(x)]


def session(tw: Any, np: Any, folder: Path) -> list[Any]:
    from tilewright.ops import functions as F
    from tilewright.ops.base import single
    from tilewright.ops.families import f32

    weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    made = tw.compile(single(lambda g, v: F.relu(F.matmul(v[0], g.constant(weights))), f32(8, 64)))
    path = folder / "session.tw"
    made.save(path)
    x = np.ones((8, 64), np.float32)
    with tw.load(path) as opened:
        return [made(x), opened(x)]


def model(tw: Any, np: Any, folder: Path) -> list[Any]:
    from tilewright.llm.tiny import write_tiny_model

    with tw.load_llm(write_tiny_model(folder / "tiny.gguf", layers=1), threads=1) as llm:
        stream = llm.generate([3, 1, 4], max_tokens=5)
        text = "".join(stream)
        return [np.frombuffer(text.encode(), np.uint8), np.array(stream.ids), llm.feed(llm.start(), [5, 6])]


def checkpoint(tw: Any, np: Any, folder: Path) -> list[Any]:
    from tilewright.training.checkpoint import load_checkpoint, save_checkpoint

    tree = {"w": np.arange(5000, dtype=np.float32), "step": np.array(3)}
    save_checkpoint(folder / "c.safetensors", tree, step=3)
    back = load_checkpoint(folder / "c.safetensors", tree)
    return [back.tree["w"], np.array(back.step)]


WORK = {"arrays": arrays, "session": session, "model": model, "checkpoint": checkpoint}

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or list(PARTS)))
