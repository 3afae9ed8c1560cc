"""Compile the kernels of eager functions ahead, into the cache on disk: elementwise functions, conversions and reductions.

A kernel that is there already takes no time. Later processes load them in a fraction of a millisecond each.
"""

from __future__ import annotations

import argparse
import time


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="functions, such as exp add sum; all of them where none is named")
    parser.add_argument("--dtypes", default="f32,f64,i64,i32,bool", help="dtypes of operands, by commas")


def run(args: argparse.Namespace) -> int:
    from ..array import warm
    from ..core import dtypes as dt

    start = time.perf_counter()
    made, without = warm.warm(args.names, [dt.dtype(name) for name in args.dtypes.split(",")])
    print(f"{made} kernels are in the cache ({time.perf_counter() - start:.1f} s); {without} pairs of function and dtype are NumPy's")
    return 0
