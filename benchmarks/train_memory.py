"""Peak memory of a training step through `torch.compile(backend="tilewright")` beside eager and other backends.

    python benchmarks/train_memory.py [WORDS] [--full] [--peers eager,inductor]

Every row is a process of its own: three steps warm it up, then the kernel's high-water mark is reset and one more step runs. `step` is that
mark less the memory of the process before the model was called, in MB; `saved` is what autograd keeps between forward and backward.
"""
from __future__ import annotations

import argparse
import gc
import json
import pathlib
import subprocess
import sys
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_compile import full_models, own_models, step


def status(field: str) -> float:
    """A field of /proc/self/status in MB."""
    text = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(field))


def kept(call: Any, inputs: tuple[Any, ...]) -> float:
    """MB of the tensors that a forward pass keeps, parameters and arguments left out."""
    given = (*call.parameters(), *call.buffers(), *(x for x in inputs if isinstance(x, torch.Tensor)))
    own = {t.untyped_storage().data_ptr() for t in given}
    found: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        memory = t.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(*inputs)
    del out
    return sum(found.values()) / 2**20


def measure(name: str, backend: str, full: bool) -> dict[str, Any]:
    module, inputs = (full_models() if full else own_models())[name]()
    module.train()
    gc.collect()
    before = status("VmRSS")
    call = module if backend == "eager" else torch.compile(module, backend=backend)
    run = step(call, module, inputs, True, False)
    for _ in range(3):
        run()
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    run()
    return {"model": name, "backend": backend, "step": status("VmHWM") - before, "saved": kept(call, inputs)}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", nargs="*")
    ap.add_argument("--full", action="store_true", help="BERT-base, GPT-2, ViT-S, ResNet-18")
    ap.add_argument("--peers", default="eager")
    ap.add_argument("--only", nargs=2, metavar=("MODEL", "BACKEND"))
    args = ap.parse_args()
    if args.only:
        import tilewright.dynamo  # noqa: F401  tells torch the backend's name

        model, backend = args.only
        print(json.dumps(measure(model, backend, args.full)))
        return
    for name in full_models() if args.full else own_models():
        if args.words and not any(w in name for w in args.words):
            continue
        for backend in (*args.peers.split(","), "tilewright"):
            more = ["--full"] if args.full else []
            done = subprocess.run([sys.executable, __file__, *more, "--only", name, backend], capture_output=True, text=True)
            if done.returncode:
                print(f"{name:20} {backend:12} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            print(f"{name:20} {backend:12} step {row['step']:8.1f} MB  saved {row['saved']:8.1f} MB", flush=True)


if __name__ == "__main__":
    main()
