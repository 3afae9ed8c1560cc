"""Native code that turns weights of a convolution into panels of Winograd's transformed weights, from one memory to the other.

Sums are in f64 and rounded once, as in core/winograd.py, which serves whatever does not fit here. A lane is a result channel: the nine taps
of as many channels as a register holds are transformed together.
"""
from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..core.target_spec import TargetSpec
from ..core.winograd import TAPS, matrices
from ..kernels.launch import Packed
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library
from .panels import once

Array = np.ndarray[Any, Any]


def winograd_packer(weights: Array, tile: int, packed: Packed) -> Callable[[Array, int, int], None] | None:
    """A function that fills panels `first` … `last`-1 of its argument from weights [O, C/g, outer taps…, 3, 3]; None where none fits."""
    target = host_target()
    lanes = target.vector_bits // 64
    taps = weights.strides[-2:] == (TAPS * 4, 4)
    if packed.form != "panels" or not packed.transposed or packed.width % lanes or weights.dtype != np.float32 or not taps:
        return None
    library = once(_library, target, tile, packed.width)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(library.address("tw_winograd"))
    results, channels, *outer = weights.shape[:-2]
    places = [sum(i * s for i, s in zip(at, weights.strides[2:-2], strict=True)) for at in np.ndindex(*outer)]
    line = channels * packed.width * 4  # bytes of one outer tap in a panel

    def fill(out: Array, first: int, last: int, _keep: Library = library) -> None:
        for p in range(first, last):
            have = min(packed.width, results - p * packed.width)
            for i, place in enumerate(places):
                call(weights.ctypes.data + p * packed.width * weights.strides[0] + place, out[p].ctypes.data + i * line, have, channels,
                     weights.strides[0], weights.strides[1], line * math.prod(outer))

    return fill


SOURCE = """
def tw_winograd(source, out, have, channels, line, step, plane):
    for c in range(channels):
        for j in range(0, WIDTH, LANES):
            transform(out + (c * WIDTH + j) * 4, source + c * step, j, have, line, plane)
"""


@cache
def _library(target: TargetSpec, tile: int, width: int) -> Library:
    constants = {"WIDTH": width, "LANES": target.vector_bits // 64}

    def text() -> str:
        from ..target.cpu.host_code import compile_host

        loops, _ = compile_host(SOURCE, constants, {}, ["tw_winograd"], ["transform"], attributes=target.attributes)
        return loops + _transform(target, tile)

    (code,), _ = CodeCache().build([(f"winograd {tile} {constants} {SOURCE}", text)], target)
    return Library([code], ["tw_winograd"])


def _transform(target: TargetSpec, tile: int) -> str:
    """transform(to, from, j, have, line, plane) as LLVM text: to[row, column, j] = (G w[j] Gᵀ)[row, column] for as many results from j on
    as a register has lanes, those from `have` on zero. `plane`: bytes from one element of the transformed tile to the next."""
    lanes = target.vector_bits // 64
    f64, f32, i1 = f"<{lanes} x double>", f"<{lanes} x float>", f"<{lanes} x i1>"
    lines: list[str] = []

    def emit(text: str) -> str:
        name = f"%v{len(lines)}"
        lines.append(f"  {name} = {text}")
        return name

    def combined(row: Any, values: list[str]) -> str:
        """The sum of values by the coefficients of a row, of which some are zero."""
        total = ""
        for factor, value in zip(map(float, row), values, strict=True):
            if factor:
                by = f"splat (double 0x{struct.pack('>d', factor).hex()})"
                total = emit(f"call {f64} @llvm.fmuladd.v{lanes}f64({f64} {value}, {f64} {by}, {f64} {total})" if total
                             else f"fmul {f64} {value}, {by}")
        return total

    places = []
    for lane in range(lanes):  # lanes behind the last result read that one
        at = emit(f"add i64 %j, {lane}")
        near = emit(f"call i64 @llvm.smin.i64(i64 {at}, i64 %end)")
        offset = emit(f"mul i64 {near}, %line")
        places.append(emit(f"getelementptr i8, ptr %s, i64 {offset}"))
    mask, rest = f"{i1} poison", emit("sub i64 %have, %j")
    for lane in range(lanes):
        mask = f"{i1} " + emit(f"insertelement {mask}, i1 {emit(f'icmp sgt i64 {rest}, {lane}')}, i64 {lane}")
    taps = []
    for t in range(TAPS * TAPS):
        vector = "poison"
        for lane, place in enumerate(places):
            one = emit(f"load float, ptr {emit(f'getelementptr i8, ptr {place}, i64 {4 * t}')}, align 1")
            vector = emit(f"insertelement {f32} {vector}, float {one}, i64 {lane}")
        known = emit(f"select {mask}, {f32} {vector}, {f32} zeroinitializer")
        taps.append(emit(f"fpext {f32} {known} to {f64}"))
    _, g, _ = matrices(tile)
    halves = [[combined(row, taps[x::TAPS]) for x in range(TAPS)] for row in g]
    for i, half in enumerate(halves):
        for k, row in enumerate(g):
            value = emit(f"fptrunc {f64} {combined(row, half)} to {f32}")
            offset = emit(f"mul i64 %plane, {i * len(g) + k}")
            lines.append(f"  store {f32} {value}, ptr {emit(f'getelementptr i8, ptr %d, i64 {offset}')}, align 4")
    body = "\n".join(lines)
    return f"""
declare i64 @llvm.smin.i64(i64, i64)
declare {f64} @llvm.fmuladd.v{lanes}f64({f64}, {f64}, {f64})
define internal i64 @transform(i64 %to, i64 %from, i64 %j, i64 %have, i64 %line, i64 %plane) nounwind {target.attributes} {{
  %s = inttoptr i64 %from to ptr
  %d = inttoptr i64 %to to ptr
  %end = sub i64 %have, 1
{body}
  ret i64 0
}}
"""
