#!/usr/bin/env python3
"""`torch.compile(backend="tilewright")` beside eager PyTorch, inductor and `tw.compile`: inference and training steps, interleaved.

    python benchmarks/torch_compile.py                       inference of the models below
    python benchmarks/torch_compile.py --train               training steps (forward, backward; the optimizer is not timed)
    python benchmarks/torch_compile.py --zoo bert unet       models of zoo.py whose name contains one of the words
    python benchmarks/torch_compile.py --full --train        BERT-base, GPT-2, ViT-S and ResNet-18 as they are
    python benchmarks/torch_compile.py --layers --both conv  some 200 layers and functions of gpu_lint.py
    python benchmarks/torch_compile.py --device cuda --zoo vgg --train --why 10    its slowest launches, beside predictions
    python benchmarks/torch_compile.py --device cuda --both --jobs 12    inference and a training step under autocast in bf16, in processes
    python benchmarks/torch_compile.py --cold --zoo          seconds to the first result, every contender in a process with empty caches
    python benchmarks/torch_compile.py --overhead            what calls of small layers cost beyond their graphs' own (--device cuda)

`error` is the distance from eager PyTorch in f32 (on a GPU without TF32), behind it eager's own under autocast. `ratio` is a peer's time
over ours: above 1 we are faster. `splits` are parts that PyTorch runs. In a training step dropout is off and batch norms are in training
mode (--mode eval: as in inference). inductor needs a C++ compiler; without one leave it out with --peers eager.
"""
from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from gpu_tools import alone, slowest

import tilewright as tw
from tilewright.dynamo import tilewright as backend
from tilewright.dynamo.backend import SplitWarning, watching


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, d: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Text(nn.Module):
    def __init__(self, d: int, heads: int, layers: int, words: int = 1000, causal: bool = False) -> None:
        super().__init__()
        self.e, self.blocks = nn.Embedding(words, d), nn.Sequential(*(Block(d, heads, causal) for _ in range(layers)))
        self.n, self.o = nn.LayerNorm(d), nn.Linear(d, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.o(self.n(self.blocks(self.e(ids))))
        return out


class Residual(nn.Module):
    def __init__(self, i: int, o: int, step: int) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, step, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.s = nn.Sequential(nn.Conv2d(i, o, 1, step, bias=False), nn.BatchNorm2d(o)) if i != o or step > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.s(x))


def resnet() -> nn.Module:
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                         *(Residual(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def own_models() -> dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]]:
    ids = lambda b, s: (torch.randint(0, 1000, (b, s)),)
    return {
        "bert-like 8x128": lambda: (Text(768, 12, 4), ids(8, 128)),
        "gpt-like 4x256": lambda: (Text(768, 12, 4, causal=True), ids(4, 256)),
        "vit-like 16": lambda: (nn.Sequential(nn.Conv2d(3, 384, 16, 16), nn.Flatten(2), Turned(), *(Block(384, 6, False) for _ in range(4)),
                                              nn.LayerNorm(384)), (torch.randn(16, 3, 224, 224),)),
        "resnet-18 16": lambda: (resnet(), (torch.randn(16, 3, 112, 112),)),
        "mlp 64": lambda: (nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)), (torch.randn(64, 256),)),
    }


def full_models() -> dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]]:
    """What the training step is to be measured on."""
    import transformers as T
    from zoo import First

    ids = lambda b, s: (torch.randint(0, 30000, (b, s)),)
    vit = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return {
        "bert-base 8x128": lambda: (First(T.BertModel(T.BertConfig(), add_pooling_layer=False)), ids(8, 128)),
        "gpt-2 4x256": lambda: (First(T.GPT2LMHeadModel(T.GPT2Config()), use_cache=False), ids(4, 256)),
        "vit-s 16": lambda: (First(T.ViTModel(T.ViTConfig(**vit), add_pooling_layer=False)), (torch.randn(16, 3, 224, 224),)),
        "resnet-18 16": lambda: (resnet(), (torch.randn(16, 3, 224, 224),)),
    }


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: Any) -> Any:
        return self.call(*inputs)


def layer_models() -> dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]]:
    from gpu_lint import layers

    def built(build: Any) -> tuple[nn.Module, tuple[Any, ...]]:
        call, inputs = build()
        return call if isinstance(call, nn.Module) else Called(call), inputs

    return {name: partial(built, build) for name, build in layers().items()}


def step(call: Callable[..., Any], module: nn.Module, inputs: tuple[Any, ...], train: bool, half: bool) -> Callable[[], Any]:
    """The result of a call, or loss and gradients of a training step."""
    weights: list[torch.Tensor] = []
    device = inputs[0].device.type

    def run() -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            out = call(*inputs)
        if not train or not out.requires_grad:
            return out
        if not weights:  # the mean of squares behind a norm has no gradient
            weights.append(torch.cos(torch.arange(out.numel(), device=device)).reshape(out.shape))
        loss = (out.float() * weights[0]).mean()
        loss.backward()
        leaves = [*module.parameters(), *(x for x in inputs if x.requires_grad)]
        found = [p.grad for p in leaves]
        for p in leaves:
            p.grad = None
        return loss.detach(), found

    return run


def in_training(module: nn.Module) -> nn.Module:
    """Without dropout, so that results can be compared. (LeViT keeps what it computes from its biases outside of training.)"""
    for m in module.eval().modules():
        m.training = isinstance(m, (nn.modules.batchnorm._BatchNorm, nn.RNNBase)) or hasattr(m, "attention_bias_cache")
    return module


def distance(a: Any, b: Any) -> float:
    """The largest relative distance of two results; gradients that vanish count against the largest."""
    if isinstance(a, torch.Tensor):
        a, b = a.float(), b.float()
        return float((a - b).norm() / (b.norm() + 1e-12)) if b.norm() else float((a - b).norm())
    if isinstance(a, tuple) and len(a) == 2 and isinstance(a[1], list):
        every = float(torch.stack([y.norm() for y in b[1] if y is not None]).norm())  # small gradients count as a part of all
        apart = torch.stack([(x.float() - y.float()).norm() for x, y in zip(a[1], b[1], strict=True) if y is not None])
        return float(apart.norm()) / every
    return max(distance(x, y) for x, y in zip(a, b, strict=True))


def interleaved(calls: dict[str, Callable[[], Any]], seconds: float, batch: int = 1,
                clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Seconds a call: the least of many, all contenders in turn; on a GPU of `batch` calls and a wait."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 5 or (time.perf_counter() < end and rounds < 2000):
        for name, call in calls.items():
            start = clock()
            for _ in range(batch):
                call()
            if batch > 1 and torch.cuda.is_available():
                torch.cuda.synchronize()
            best[name] = min(best[name], (clock() - start) / batch)
        rounds += 1
    return best


def measure(name: str, module: nn.Module, inputs: tuple[Any, ...], train: bool, args: argparse.Namespace) -> dict[str, Any]:
    on_gpu = args.device == "cuda"
    module = module.to(args.device)
    inputs = tuple(x.to(args.device).detach().requires_grad_(train and args.layers and x.is_floating_point()) for x in inputs)
    (in_training if train and args.mode == "train" else nn.Module.eval)(module)
    torch._dynamo.reset()
    make = lambda call, half=on_gpu: step(call, module, inputs, train, half)
    torch.backends.cudnn.allow_tf32 = not on_gpu
    exact, eager = make(module, False)(), make(module)
    torch.backends.cudnn.allow_tf32 = True
    start = time.perf_counter()
    ours = torch.compile(module, backend=backend, options={"freeze": args.freeze})
    calls: dict[str, Callable[[], Any]] = {"tilewright": make(ours)}
    with watching() as found:
        got = calls["tilewright"]()
        if on_gpu:
            torch.cuda.synchronize()
    ready = {"tilewright": time.perf_counter() - start}
    again = calls["tilewright"]()
    row: dict[str, Any] = {"name": name, "error": max(distance(got, exact), distance(again, exact))}
    row |= {"eager error": distance(eager(), exact), "graphs": len(found), "splits": sum(c.splits for c in found)}
    row["refused"] = sorted({f"{n.target} ({r.reason[:120]})" for c in found for n, r in c.refusals.items()})
    if "eager" in args.peers:
        calls["eager"] = eager
    if "tw.compile" in args.peers and not train and not on_gpu:
        session = tw.compile(module, inputs)
        calls["tw.compile"] = lambda: session(*inputs)
    if "nothing" in args.peers and not train:
        calls["nothing"] = dynamo_alone(module, inputs)
    if "inductor" in args.peers:
        start = time.perf_counter()
        calls["inductor"] = make(torch.compile(module, options={"freezing": True} if args.freeze else None))
        calls["inductor"]()
        ready["inductor"] = time.perf_counter() - start
    with alone():
        row["seconds"] = interleaved(calls, args.seconds, 5 if on_gpu else 1, time.thread_time if args.one_thread else time.perf_counter)
        row["why"] = [line for c in found for line in launches(c, args.why)] if args.why and on_gpu else []
    row["ready"] = ready
    return row


def launches(compiled: Any, count: int) -> list[str]:
    """The launches of a graph that take most time. They run on the memory of the last call, whatever lies there now."""
    from tilewright.runtime.cuda.profile import measure as measured

    lines = []
    for session in (s.session for s in compiled.steps if s.session is not None):
        profile = measured(session, 8)
        lines += [f"  {compiled.kind}:", *slowest(profile, count)]
    return lines


def small_layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Layers whose time is the host's."""
    return {
        "gelu": (nn.GELU(), (64, 64)), "linear": (nn.Linear(64, 64), (16, 64)), "layer norm": (nn.LayerNorm(64), (16, 64)),
        "dropout": (nn.Dropout(0.1), (64, 64)), "batch norm": (nn.BatchNorm1d(64), (16, 64)),
        "mlp": (nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)), (16, 64)),
        "40 linears": (nn.Sequential(*(nn.Linear(8, 8) for _ in range(40))), (4, 8)),
    }


def overhead(args: argparse.Namespace) -> None:
    """Microseconds of inference, a forward pass and a step (forward and backward) of small layers, beside peers; and what is beyond the
    generated function of a graph, called by itself: dynamo, autograd and what is between."""
    on_gpu = args.device == "cuda"
    torch.set_num_threads(1)
    batch, peers = 20 if on_gpu else 1, [p for p in ("eager", "inductor") if p in args.peers]
    for name, (module, shape) in small_layers().items():
        if not any(w in name for w in args.words or [""]):
            continue
        torch._dynamo.reset()
        kinds: dict[str, dict[str, Callable[[], Any]]] = {"infer": {}, "forward": {}, "step": {}}
        alone_: dict[str, Callable[[], Any]] = {}
        for peer in ("tilewright", *peers):
            module = copy.deepcopy(module).to(args.device)
            with watching() as found:
                call = module if peer == "eager" else torch.compile(module, backend=backend if peer == "tilewright" else "inductor")
                for kind in kinds:
                    kinds[kind][peer] = small_call(call, module, torch.randn(shape, device=args.device, requires_grad=True), kind)
                    for _ in range(3):
                        kinds[kind][peer]()
            alone_ |= {c.kind: graph_alone(c, args.device) for c in found if c.splits == 0}
        with alone():
            bare = {k: 1e6 * t for k, t in interleaved(alone_, 0.3, batch).items()}
            for kind, calls in kinds.items():
                times = {k: 1e6 * t for k, t in interleaved(calls, 0.5, batch).items()}
                inside = {"infer": ["inference"], "forward": ["forward"], "step": ["forward", "backward"]}[kind]
                ours = times.pop("tilewright")
                beyond = ours - sum(bare.get(k, float("nan")) for k in inside)
                print(f"{name:12s} {kind:8s} tilewright {ours:7.1f} us, beyond the graphs' own calls {beyond:6.1f}"
                      + "".join(f"  {k} {t:7.1f}" for k, t in times.items()), flush=True)
            idle = interleaved({"call": dynamo_alone(module, (torch.randn(shape, device=args.device),))}, 0.3, batch)["call"]
            print(f"{name:12s} a call of a graph that does nothing, which is dynamo's own part: {1e6 * idle:.1f} us", flush=True)
    if not on_gpu:
        module = small_layers()["40 linears"][0].eval()
        torch._dynamo.reset()
        with torch.no_grad(), watching() as found:
            held, x = torch.compile(module, backend=backend, options={"freeze": True}), torch.randn(4, 8)
            held(x)
            times = interleaved({"call": lambda: held(x), "graph": graph_alone(found[0], "cpu")}, 0.5)
        call, graph = 1e6 * times["call"], 1e6 * times["graph"]
        print(f"40 linears, frozen: a call {call:.1f} us, beyond the graph's own {call - graph:.1f}")


def dynamo_alone(module: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """A compiled call whose graphs give their first results again: guards and wrappers are dynamo's own part of every call."""
    def nothing(graph: Any, given: Any) -> Any:
        results = graph(*given)
        return lambda *_: results

    call = torch.compile(lambda *given: module(*given), backend=nothing)

    def run() -> Any:
        with torch.no_grad():
            return call(*inputs)

    run()
    return run


def small_call(call: Any, module: nn.Module, x: torch.Tensor, kind: str) -> Callable[[], Any]:
    leaves, gradient = [x, *module.parameters()], torch.randn_like(module(x))

    def infer() -> None:
        with torch.no_grad():
            call(x)

    def step() -> None:
        call(x).backward(gradient)
        for p in leaves:
            p.grad = None

    return {"infer": infer, "forward": lambda: call(x), "step": step}[kind]


def graph_alone(compiled: Any, device: str) -> Callable[[], Any]:
    """The generated function of a graph, over memory of its own."""
    step = compiled.steps[0]
    args: list[Any] = [None] * step.fragment.arity
    for s, t in zip(step.fragment.sources, step.session.interface.inputs, strict=False):
        dtype = getattr(torch, TORCH.get(t.dtype.name, "float32"))
        args[s.arg] = torch.empty_strided(s.shape, s.strides, dtype=dtype, device=device).zero_()
    return lambda: compiled.call(args)


TORCH = {"i64": "int64", "bool": "bool", "u8": "uint8", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i32": "int32"}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", nargs="*")
    ap.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    ap.add_argument("--train", action="store_true")
    ap.add_argument("--both", action="store_true", help="inference, then a training step")
    ap.add_argument("--mode", choices=("eval", "train"), default="train", help="of batch norms in a training step")
    ap.add_argument("--freeze", action="store_const", const=True, default=False, help="weights as constants, for ours and for inductor")
    ap.add_argument("--watch", dest="freeze", action="store_const", const="watch", help="the same, packed again after a write to them")
    ap.add_argument("--zoo", action="store_true", help="the models of zoo.py whose name contains one of the words")
    ap.add_argument("--layers", action="store_true", help="the layers of gpu_lint.py whose name contains one of the words")
    ap.add_argument("--why", type=int, default=0, help="so many of the slowest launches of every graph, on a GPU")
    ap.add_argument("--full", action="store_true", help="BERT-base, GPT-2, ViT-S, ResNet-18")
    ap.add_argument("--peers", default="eager,inductor,tw.compile", help="or nothing: a graph that does nothing, so dynamo's own part")
    ap.add_argument("--seconds", type=float, default=1.0)
    ap.add_argument("--one-thread", action="store_true", help="processor time of one thread: what a busy machine can say")
    ap.add_argument("--jobs", type=int, default=0, help="every model in a process of its own, so many at a time")
    ap.add_argument("--only", help="the model of this name")
    ap.add_argument("--limit", type=float, default=600, help="seconds of such a process")
    ap.add_argument("--overhead", action="store_true")
    ap.add_argument("--cold", choices=("all", "tilewright", "inductor"), nargs="?", const="all", help="seconds to the first result")
    args = ap.parse_args()
    if args.one_thread:
        torch.set_num_threads(1)
        os.environ["TILEWRIGHT_THREADS"] = "1"
    if args.overhead:
        overhead(args)
        return
    models: dict[str, Any] = {}
    if args.full:
        models |= full_models()
    if args.zoo:
        import zoo

        models |= zoo.models(args.device == "cuda")
    if args.layers:
        models |= layer_models()
    models = {k: v for k, v in (models or own_models()).items() if (args.only or k) == k and any(w in k for w in args.words or [""])}
    if args.cold:
        for name, build in models.items():
            first_result(name, build, args)
        return
    if args.jobs:
        in_processes(list(models), args)
        return
    args.peers = args.peers.split(",")
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", SplitWarning)
    ratios: dict[str, list[float]] = {}
    for name, build in models.items():
        for train in (False, True) if args.both else (args.train,):
            torch.manual_seed(0)
            gc.collect()
            try:
                with torch.enable_grad() if train else torch.no_grad():
                    row = measure(name, *build(), train, args)
            except Exception:  # the others are measured
                last = " | ".join(traceback.format_exc().splitlines()[-6:])[:900]
                print(f"{name:20s} {'train' if train else 'infer'} FAILED {last}", flush=True)
                continue
            show(row, train, ratios)
    for k, found in ratios.items():
        print(f"{k}: geometric mean {statistics.geometric_mean(found):.2f}, lowest {min(found):.2f}, {sum(r < 1 for r in found)} behind")


def first_result(name: str, build: Callable[[], Any], args: argparse.Namespace) -> None:
    """Seconds from `torch.compile` to the first result (imports of the compiler included), and processor seconds of it and its children.
    inductor's cache is kept where TORCHINDUCTOR_CACHE_DIR says, so that later runs find it; a kept one is not cold."""
    if args.cold != "all":
        module, inputs = build()
        (in_training if args.train else nn.Module.eval)(module)
        start, cpu = time.perf_counter(), os.times()
        run = step(torch.compile(module, backend=args.cold), module, inputs, args.train, False)
        with torch.enable_grad() if args.train else torch.no_grad():
            run()
        end = os.times()
        print(f"{time.perf_counter() - start:.2f} {sum(end[:4]) - sum(cpu[:4]):.2f}")
        return
    found: dict[str, list[float]] = {}
    for peer in ("tilewright", "inductor"):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
            env["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR", folder), name.replace(" ", "_"))
            again = [x for x in sys.argv if x not in ("--cold", "all")]
            done = subprocess.run([sys.executable, *again, "--cold", peer, "--only", name], capture_output=True, text=True, env=env)
            if done.returncode:
                print(f"{name:20s} {peer} FAILED {done.stderr.strip().splitlines()[-1]}", flush=True)
                return
            found[peer] = [float(x) for x in done.stdout.splitlines()[-1].split()]
    (ours, cpu), (theirs, their_cpu) = found["tilewright"], found["inductor"]
    print(f"{name:20s} first result {ours:6.1f} s ({cpu:.1f} of processors)  inductor {theirs:6.1f} s ({their_cpu:.1f})  "
          f"ratio {theirs / ours:.2f} ({their_cpu / cpu:.2f})", flush=True)


def show(row: dict[str, Any], train: bool, ratios: dict[str, list[float]]) -> None:
    ours = row["seconds"].pop("tilewright")
    shown = "  ".join(f"{k} {t / ours:5.2f}" for k, t in row["seconds"].items())
    for k, t in row["seconds"].items():
        ratios.setdefault(k, []).append(t / ours)
    ready = " ".join(f"{k} {s:.1f}" for k, s in row["ready"].items())
    print(f"{row['name']:20s} {'train' if train else 'infer'} {ours * 1e3:9.3f} ms  ratio to {shown}  error {row['error']:.1e} "
          f"({row['eager error']:.1e})  graphs {row['graphs']} splits {row['splits']} {' '.join(row['refused'])} first call s: {ready}",
          *row["why"], sep="\n", flush=True)


def in_processes(names: list[str], args: argparse.Namespace) -> None:
    """Compiles run side by side, timings one after the other."""

    def one(name: str) -> None:
        try:
            command = [sys.executable, *sys.argv, "--jobs", "0", "--only", name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
            lines = [x for x in done.stdout.splitlines() if " ms " in x or "FAILED" in x or x.startswith("  ")]
            print("\n".join(lines) or f"{name:20s} FAILED {done.stderr[-700:]}", flush=True)
        except subprocess.TimeoutExpired as e:
            out = (e.stdout or b"").decode(errors="replace")
            print(f"{out}{name:20s} FAILED within {args.limit} s", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, names))


if __name__ == "__main__":
    main()
