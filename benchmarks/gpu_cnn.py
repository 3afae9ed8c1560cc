"""Layers of CNNs in training on a GPU beside cuDNN: convolutions forward, their gradients of images and of weights, batch norms, max pools.

    python benchmarks/gpu_cnn.py                   every row (under a minute on an H200); --dtype f32: tf32 convolutions
    python benchmarks/gpu_cnn.py weights --first   names that contain a word; values that lie channels first
    python benchmarks/gpu_cnn.py --predict         no GPU: predicted times of our launches on sm_90a

Both sides run in CUDA graphs, in turn. `error` is against PyTorch in f64. A row with an error above its bound is marked WRONG, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_tools import DTYPES, Table, error, measure, ours, session

import tilewright as tw
from tilewright import ops as o
from tilewright.compile import target_spec
from tilewright.core.dtypes import f32
from tilewright.ops import functions as f
from tilewright.ops.rows import norms

# images, channels, size, results, taps, stride, dilation, groups
LAYERS = {
    "stem 7x7 step 2": (32, 3, (224, 224), 64, 7, 2, 1, 1),
    "64 at 56x56 3x3": (32, 64, (56, 56), 64, 3, 1, 1, 1),
    "64 to 256 at 56x56 1x1": (32, 64, (56, 56), 256, 1, 1, 1, 1),
    "64 to 128 at 56x56 3x3 step 2": (32, 64, (56, 56), 128, 3, 2, 1, 1),
    "64 to 128 at 56x56 1x1 step 2": (32, 64, (56, 56), 128, 1, 2, 1, 1),
    "128 at 28x28 3x3": (32, 128, (28, 28), 128, 3, 1, 1, 1),
    "256 at 14x14 3x3": (32, 256, (14, 14), 256, 3, 1, 1, 1),
    "512 at 7x7 3x3": (32, 512, (7, 7), 512, 3, 1, 1, 1),
    "depthwise 192 at 28x28 5x5": (32, 192, (28, 28), 192, 5, 1, 1, 192),
    "video 64 at 8x28x28 3x3x3": (4, 64, (8, 28, 28), 64, 3, 1, 1, 1),
    "dilated 128 of 4096 3": (8, 128, (4096,), 128, 3, 1, 3, 1),
}
NORMS = {"64 at 56x56": (32, 64, 56, 56), "256 at 14x14": (32, 256, 14, 14), "512 at 7x7": (32, 512, 7, 7)}
BOUND = {torch.bfloat16: 1e-2, torch.float32: 2e-3}

Build = Callable[..., Any]
# name, our graph, its tensors (as they lie), PyTorch's call, the same in f64, flops, bytes
Row = tuple[str, Build, list[torch.Tensor], Callable[[], Any], Callable[[], Any], float, float]


class Rows:
    def __init__(self, args: argparse.Namespace) -> None:
        self.first, self.device = args.first, "meta" if args.predict else "cuda"
        self.images: list[torch.Tensor] = []
        self.dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]

    def rand(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)

    def image(self, *shape: int) -> torch.Tensor:
        """[N, C, spatial…], channels last unless --first."""
        made = self.rand(*shape) if self.first else self.rand(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
        self.images.append(made)
        return made

    def stored(self, x: torch.Tensor) -> torch.Tensor:
        """What our session is given: contiguous memory."""
        return x.movedim(1, -1) if not self.first and any(x is i for i in self.images) else x

    def seen(self, x: Any) -> Any:
        rank = len(x.shape)
        return x if self.first or rank < 3 else o.Transpose(perm=(0, rank - 1, *range(1, rank - 1)))(x)

    def lying(self, x: Any) -> Any:
        """A result as its memory is."""
        rank = len(x.shape)
        return x if self.first or rank < 3 else o.Transpose(perm=(0, *range(2, rank), 1))(x)

    def convolutions(self) -> list[Row]:
        found: list[Row] = []
        for name, (n, c, sizes, out, k, stride, dilation, groups) in LAYERS.items():
            rank, pad = len(sizes), dilation * (k // 2)
            x, w = self.image(n, c, *sizes), self.rand(out, c // groups, *(k,) * rank)
            made = tuple((d + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for d in sizes)
            g = self.image(n, out, *made)
            op = o.Conv(stride=(stride,) * rank, padding=((pad, pad),) * rank, dilation=(dilation,) * rank, groups=groups)
            args = (None, [stride] * rank, [pad] * rank, [dilation] * rank, False, [0] * rank, groups)
            flops = 2.0 * n * out * math.prod(made) * (c // groups) * k**rank
            wide = [v.double() for v in (x, w, g)] if self.device == "cuda" else []

            def forward(a: Any, b: Any, op: Any = op) -> Any:
                return self.lying(op(self.seen(a), b))

            def peer(x: Any = x, w: Any = w, args: Any = args) -> Any:
                return torch.ops.aten.convolution(x, w, *args)

            def exact(wide: Any = wide, args: Any = args) -> Any:
                return torch.ops.aten.convolution(*wide[:2], *args)

            found.append((f"forward {name}", forward, [x, w], peer, exact, flops, 0))
            for which, kind in enumerate(("image", "weights")):
                if which == 0 and c < 8:
                    continue  # nobody asks for the gradient of a picture

                def back(x: Any, w: Any, g: Any, op: Any = op, which: int = which) -> Any:
                    x, g = self.seen(x), self.seen(g)
                    made = op.vjp((x, w), (op(x, w),), (g,), (which == 0, which == 1))[which]
                    return self.lying(made) if which == 0 else made

                def peers(x: Any = x, w: Any = w, g: Any = g, args: Any = args, which: int = which) -> Any:
                    return torch.ops.aten.convolution_backward(g, x, w, *args, [which == 0, which == 1, False])[which]

                def exactly(wide: Any = wide, args: Any = args, which: int = which) -> Any:
                    return torch.ops.aten.convolution_backward(wide[2], *wide[:2], *args, [which == 0, which == 1, False])[which]

                found.append((f"{kind} {name}", back, [x, w, g], peers, exactly, flops, 0))
        return found

    def norms(self) -> list[Row]:
        found: list[Row] = []
        for name, shape in NORMS.items():
            x, g = self.image(*shape), self.image(*shape)
            scale, shift, mean, var = (self.rand(shape[1], dtype=torch.float32) for _ in range(4))
            nbytes = math.prod(shape) * x.element_size()

            def forward(x: Any, scale: Any, shift: Any, mean: Any, var: Any) -> Any:
                y, *new = norms.batch_norm_training(self.seen(x), mean, var, scale, shift, momentum=0.1, eps=1e-5)
                return self.lying(f.maximum(y, 0)), *new

            def peer(x: Any = x, parts: Any = (mean, var, scale, shift)) -> Any:
                return F.relu(F.batch_norm(x, parts[0].clone(), parts[1].clone(), *parts[2:], True))

            def exact(x: Any = x, parts: Any = (mean, var, scale, shift)) -> Any:
                return F.relu(F.batch_norm(x.double(), *(p.double() for p in parts), True))

            found.append((f"batch norm, relu {name}", forward, [x, scale, shift, mean, var], peer, exact, 0, 3.0 * nbytes))

            def back(x: Any, g: Any, scale: Any, mean: Any, inverse: Any, shape: Any = shape) -> Any:
                along = (1, shape[1], 1, 1)
                wide, c = (o.Cast(dtype=f32)(self.seen(v)) for v in (x, g))
                mean, inverse, scale = (f.reshape(v, along) for v in (mean, inverse, scale))
                hat = f.mul(f.sub(wide, mean), inverse)
                total, moment = o.ChannelSums()(c, f.mul(c, hat))
                count = 1.0 / (math.prod(shape) // shape[1])
                inner = f.sub(c, f.mul(f.add(f.reshape(total, along), f.mul(hat, f.reshape(moment, along))), count))
                return self.lying(f.cast(f.mul(f.mul(inner, inverse), scale), x.dtype)), moment, total

            stats: list[torch.Tensor] = [mean, var]
            peers, exactly = peer, exact
            if self.device == "cuda":
                wide = x.double()
                stats = [wide.mean((0, 2, 3)).float(), (wide.var((0, 2, 3), correction=0) + 1e-5).rsqrt().float()]

                def peers(x: Any = x, g: Any = g, scale: Any = scale, stats: Any = stats) -> Any:  # the op alone: autograd is not captured
                    return torch.ops.aten.native_batch_norm_backward(g, x, scale, None, None, *stats, True, 1e-5, [True] * 3)[0]

                def exactly(x: Any = x, scale: Any = scale, shift: Any = shift, g: Any = g) -> Any:
                    own = x.double().requires_grad_()
                    with torch.enable_grad():
                        return torch.autograd.grad(F.batch_norm(own, None, None, scale.double(), shift.double(), True), own, g.double())[0]

            found.append((f"batch norm backward {name}", back, [x, g, scale, *stats], peers, exactly, 0, 5.0 * nbytes))
        return found

    def pools(self) -> list[Row]:
        shape = (32, 64, 112, 112)
        x = self.image(*shape)
        attrs = {"kernel": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}

        def forward(x: Any) -> Any:
            return tuple(self.lying(v) for v in o.MaxPoolIndices(**attrs)(self.seen(x)))

        def peer() -> Any:
            return torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[0]

        nbytes = math.prod(shape) * (x.element_size() * 1.25 + 2)
        found: list[Row] = [("max pool 64 at 112x112", forward, [x], peer, peer, 0, nbytes)]
        g = self.image(32, 64, 56, 56)
        places = torch.empty(g.shape, dtype=torch.int64, device=self.device).to(memory_format=torch.channels_last)
        if self.device == "cuda":
            places = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[1]
        if self.first:
            places = places.contiguous()
        self.images.append(places)

        def back(g: Any, i: Any) -> Any:
            return self.lying(o.MaxPoolBackward(**attrs, sizes=shape[2:])(self.seen(g), self.seen(i)))

        def peers() -> Any:
            return torch.ops.aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)

        return [*found, ("max pool backward 64 at 112x112", back, [g, places], peers, peers, 0, nbytes)]


def predicted(build: Build, tensors: list[torch.Tensor], rows: Rows) -> tuple[float, int]:
    from tilewright.ir.graph import Graph, Value
    from tilewright.ir.types import TensorType
    from tilewright.runtime.cuda.report import describe_launches

    g = Graph("bench")
    out = build(*(g.input(TensorType(DTYPES[t.dtype], tuple(t.shape)), f"x{i}") for i, t in enumerate(map(rows.stored, tensors))))
    g.outputs = [out] if isinstance(out, Value) else list(out)
    found = describe_launches(tw.compile(g, target=target_spec("sm_90a", "tf32" if rows.dtype is torch.float32 else None)), {})[0]
    return sum(x["predicted_us"] for x in found), len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--first", action="store_true", help="values lie channels first")
    parser.add_argument("--predict", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    rows, table, wrong = Rows(args), Table(), []
    for name, build, tensors, peer, exact, flops, nbytes in [*rows.convolutions(), *rows.norms(), *rows.pools()]:
        if args.words and not any(word in name for word in args.words):
            continue
        if args.predict:
            us, launches = predicted(build, tensors, rows)
            print(f"{name:42s} {us:9.1f} us predicted in {launches} launches", flush=True)
            continue
        given = [rows.stored(t).contiguous() for t in tensors]
        call, result = ours(session(build, *given, precision="tf32" if args.dtype == "f32" else None), *given)
        got = result[0] if isinstance(result, (list, tuple)) else result
        want = exact()
        got = got.movedim(-1, 1) if not args.first and got.shape != want.shape else got
        err = error(got, want)
        if not err <= BOUND[rows.dtype]:
            wrong.append(name)
        torch.backends.cudnn.allow_tf32 = True
        times = measure({"ours": call, "cuDNN": peer}, 10, 7)
        table.add(("WRONG " if name in wrong else "") + name, times, flops=flops, nbytes=nbytes, err=err)
    if table.rows:
        ratios = sorted(r["ratio"] for r in table.rows)
        print(f"lowest {ratios[0]:.2f}, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, wrong: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
