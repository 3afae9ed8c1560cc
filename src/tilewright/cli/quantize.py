"""Write a GGUF model with its matrices in another format; prints a line a tensor.

    tilewright quantize model-f16.gguf model-q4_k.gguf Q4_K --set "*.ffn_down.weight=Q6_K" --set "output.weight=keep"
"""
from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import InputError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="MODEL",
                        help="a GGUF file, best in F32, F16 or BF16; smollm2, or owner/name:file.gguf of the Hugging Face Hub")
    parser.add_argument("target", metavar="NEW", help="the file to write")
    parser.add_argument("format", metavar="FORMAT", nargs="?", default="Q4_K",
                        help="Q2_K … Q6_K, Q4_0 … Q8_0, IQ4_XS, TQ2_0, MXFP4, F16 … (default Q4_K)")
    parser.add_argument("--set", action="append", default=[], metavar="TENSOR=FORMAT",
                        help="another format by name of tensor; `keep` copies it")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads (default: 2)")
    parser.add_argument("--quiet", action="store_true", help="no line a tensor")


def run(args: argparse.Namespace) -> int:
    from ..frontend.gguf.writer import quantize_gguf
    from ..llm.names import find_model

    pairs = [p.rpartition("=") for p in args.set]
    if any(not name for name, _, _ in pairs):
        raise InputError(f"quantize: --set needs TENSOR=FORMAT, got {args.set}")
    source = find_model(args.source)
    quantize_gguf(source, args.target, args.format, formats={n: f for n, _, f in pairs}, threads=args.threads,
                  progress=None if args.quiet else print)
    before, after = (Path(p).stat().st_size for p in (source, args.target))
    print(f"{args.target}: {after / 1e6:.1f} MB, {after / before:.0%} of {before / 1e6:.1f} MB")
    return 0
