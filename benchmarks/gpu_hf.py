"""Architectures of transformers (two layers deep, as wide as configured) and models of torchvision on a GPU beside eager PyTorch.

    python benchmarks/gpu_hf.py                      every architecture of the list below (bf16; some minutes on an H200)
    python benchmarks/gpu_hf.py llama swin --dtype f32
    python benchmarks/gpu_hf.py --vision             models of torchvision instead (16 pictures or 2 clips); or names, as tv:resnet18
    python benchmarks/gpu_hf.py --jobs 5 --seconds 300    compiles side by side, timings one after the other; what is not reached is named

`ratio` is the time of eager PyTorch, of a CUDA graph of it where it can be captured, over ours. Errors are distances from PyTorch in f32,
behind them eager's own. Models behind 1.1 show their slowest launches. Nothing is downloaded: weights are random.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import breadth_hf
import torch
from gpu_tools import alone, slowest

import tilewright as tw

KINDS = """albert audio-spectrogram-transformer bart bert big_bird bigbird_pegasus biogpt bloom camembert canine clip codegen cohere
conditional_detr convbert convnext convnextv2 cvt deberta deberta-v2 decision_transformer deformable_detr deit detr dinov2
dinov2_with_registers distilbert dpr electra ernie esm falcon falcon_mamba flaubert focalnet gemma gemma2 gemma3_text git glm glm4 glpn gpt2
gpt_bigcode gpt_neox gptj granite granitemoe helium hiera hubert ibert ijepa informer layoutlm levit lilt llama longt5 luke mamba mamba2
marian mask2former mbart megatron-bert mgp-str mistral mixtral mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 modernbert mpnet
mpt mt5 nemotron nystromformer olmo olmo2 olmoe openai-gpt opt owlvit patchtsmixer patchtst pegasus perceiver persimmon phi phi3 phimoe
poolformer prophetnet pvt pvt_v2 qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma regnet rembert resnet roberta roformer rt_detr sam
segformer sew siglip smollm3 speech_to_text squeezebert stablelm starcoder2 swiftformer swin swin2sr swinv2 switch_transformers t5
timesformer umt5 univnet vilt visual_bert vit vit_mae vit_msn vitdet vits vivit wav2vec2-bert wav2vec2-conformer whisper xglm xlm
xlm-roberta xlnet xmod yolos yoso exaone4 ernie4_5 seed_oss hunyuan_v1_dense lfm2 olmo3 doge arcee apertus cohere2 diffllama nomic_bert
eurobert videomae vjepa2 encodec dac mimi""".split()  # noqa: SIM905
VISION = """alexnet vgg11_bn vgg16 resnet18 resnet50 resnext50_32x4d wide_resnet50_2 regnet_y_400mf regnet_y_3_2gf regnet_x_1_6gf
mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1
densenet121 googlenet inception_v3 efficientnet_b0 efficientnet_b3 efficientnet_v2_s convnext_tiny convnext_base swin_t swin_v2_t maxvit_t
vit_b_16 vit_b_32 deeplabv3_resnet50 deeplabv3_mobilenet_v3_large fcn_resnet50 lraspp_mobilenet_v3_large r3d_18 mc3_18 r2plus1d_18 mvit_v1_b
mvit_v2_s swin3d_t s3d raft_small""".split()  # noqa: SIM905
CLIPS = {"mvit_v1_b": 224, "mvit_v2_s": 224, "swin3d_t": 224, "s3d": 224, "r3d_18": 112, "mc3_18": 112, "r2plus1d_18": 112}
END, LAST = "end of a model", "end of a model and of its process"


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def where(call: Callable[[], Any], times: int = 10) -> None:
    """What a call costs the host, the device, and both one after the other; what PyTorch's profiler sees of it."""
    from torch.profiler import ProfilerActivity, profile

    host, both = list[float](), list[float]()
    for _ in range(3 * times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        host.append(1e6 * (time.perf_counter() - start))
        torch.cuda.synchronize()
        both.append(1e6 * (time.perf_counter() - start))
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    each = 1e6 * (time.perf_counter() - start) / times
    shown = "  ".join(f"{k} {min(v):.0f} to {max(v):.0f}, median {statistics.median(v):.0f}"
                      for k, v in (("host", host), ("with a wait", both)))
    print(f"    a call, us: {shown}  one of {times} in a row {each:.0f}", flush=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    for e in sorted(found.key_averages(), key=lambda e: -max(e.self_device_time_total, e.self_cpu_time_total))[:24]:
        print(f"    {e.self_device_time_total / times:9.1f} us device {e.self_cpu_time_total / times:9.1f} us host {e.count / times:6.1f} "
              f"times a call {e.key[:90]}", flush=True)


class Leaves(torch.nn.Module):
    """A model whose results are one tensor, several, or a dictionary of them: always a list."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        made = self.model(*inputs)
        return list(made.values()) if isinstance(made, dict) else list(made) if isinstance(made, (list, tuple)) else [made]


def vision(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from torchvision import models

    given: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        given |= {"init_weights": False}
    if name.startswith(("deeplab", "fcn", "lraspp")):
        given |= {"weights_backbone": None}
    module = Leaves(models.get_model(name, **given).eval())
    if name in CLIPS:
        return module, (torch.randn(2, 3, 16, CLIPS[name], CLIPS[name]),)
    if name.startswith("raft"):
        return module, (torch.rand(2, 3, 256, 256), torch.rand(2, 3, 256, 256))
    side = {"inception_v3": 299, "swin_v2_t": 256}.get(name, 224)
    return module, (torch.randn(16, 3, side, side),)


def measure(kind: str, build: Callable[[], Any], dtype: torch.dtype, args: argparse.Namespace) -> bool:
    """Prints a row. False: PyTorch could not capture the model, after which it makes no random numbers in this process."""
    from triton.testing import do_bench

    with torch.device("cuda"):
        module, inputs = build()
    halved = lambda d: tuple(x.to(d) if x.is_floating_point() else x for x in inputs)
    module, given = module.to("cuda", dtype), halved(dtype)
    with torch.no_grad():
        start = time.perf_counter()
        session = tw.compile(module, given)
        ready = time.perf_counter() - start
        with alone(args.after):  # first calls, too: what runs beside a timed call of another process is in its time
            start = time.perf_counter()
            got = session(*given)
            torch.cuda.synchronize()
            ready += time.perf_counter() - start
            own = module(*given)
            exact = module.float()(*halved(torch.float32))
            module.to(dtype)
            far = lambda a: max(float((x.double() - y.double()).norm() / (y.double().norm() + 1e-9)) for x, y in zip(a, exact, strict=True))
            error, wanted = far(got if isinstance(got, (list, tuple)) else [got]), far(own)
            del got, own
            calls: dict[str, Callable[[], Any]] = {"tilewright": lambda: session(*given), "eager": lambda: module(*given)}
            try:
                calls["graph"] = captured(calls["eager"])
            except Exception:  # it copies to the host, or asks for sizes
                torch.cuda.synchronize()
            us = {k: do_bench(c, warmup=5, rep=20, return_mode="median") * 1e3 for k, c in calls.items()}
            ours = us.pop("tilewright")
            ratio = min(us.values()) / ours
            wrong = " WRONG" if not error <= 2.5 * wanted + 2e-3 else ""
            print(f"{kind:28s} {ours:9.1f} us  ratio {ratio:6.2f}  {' '.join(f'{k} {v:.1f}' for k, v in us.items())}  "
                  f"error {error:.1e} ({wanted:.1e}){wrong}  ready {ready:.1f} s", flush=True)
            if ratio < 1.1 or args.why:
                print(*slowest(session.profile(*given), args.why or 5), sep="\n", flush=True)
            if args.why:
                where(calls["tilewright"])
    return "graph" in calls


def worker(dtype: torch.dtype, args: argparse.Namespace) -> None:
    """Rows for the names that come in, one after the other."""
    breadth_hf.at_full_width()
    classes = breadth_hf.names()
    for line in sys.stdin:
        kind, sound = line.strip(), True
        try:
            if not kind.startswith("tv:") and f"hf {kind}" not in classes:
                raise LookupError("this release of transformers has no such architecture")
            build = partial(vision, kind[3:]) if kind.startswith("tv:") else partial(breadth_hf.build, classes[f"hf {kind}"])
            sound = measure(kind, build, dtype, args)
        except Exception as e:
            sound = False
            print(f"{kind:28s} FAILED {type(e).__name__}: {str(e)[:200]} | {traceback.format_exc().splitlines()[-3].strip()[:120]}")
        print(END if sound else LAST, flush=True)
        if not sound:
            return
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--vision", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--why", type=int, default=0, help="so many launches of each model, and where its calls' time goes")
    parser.add_argument("--after", default="", help="timings wait until this file is there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker({"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype], args)
        return
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    for kind in args.kinds or ([f"tv:{x}" for x in VISION] if args.vision else KINDS):
        names.put(kind)
    end, ratios = time.time() + args.seconds, list[float]()

    def serve() -> None:
        process: subprocess.Popen[str] | None = None
        while not names.empty() and time.time() < end:
            kind = names.get()
            if process is None or process.poll() is not None:
                command = [sys.executable, __file__, "--worker", "--dtype", args.dtype, "--why", str(args.why), "--after", args.after]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(kind + "\n")
            process.stdin.flush()
            lines: list[str] = []
            for line in process.stdout:
                if line.rstrip() in (END, LAST):
                    if line.rstrip() == LAST:
                        process.wait()
                    break
                lines.append(line.rstrip())
                if args.after:
                    print(lines[-1], flush=True)
            else:
                lines.append(f"{kind:28s} FAILED: its process died")
                process.wait()
            if not args.after:
                print("\n".join(lines), flush=True)
            ratios.extend(float(x.split("ratio")[1].split()[0]) for x in lines if " ratio " in x)
        if process is not None and process.poll() is None:
            process.kill()

    threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    left = [names.get() for _ in range(names.qsize())]
    if left:
        print("not run:", *left)
    if ratios:
        print(f"{len(ratios)} architectures, lowest {min(ratios):.2f}, geometric mean {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
