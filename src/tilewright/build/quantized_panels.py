"""Runs the kernels of `kernels/quant/panel_packer.py` over any number of matrices at once, on the process's worker threads."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.config import load
from ..core.target_spec import TargetSpec
from ..kernels.quant.panels import LANES, pack_panels, unit_bytes
from ..runtime.native.job import Job, patches, thunks
from ..runtime.native.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID
from ..target.cpu.host import available_cores, host_target
from .code import Code

Array = np.ndarray[Any, Any]
Matrix = tuple[Array, str, Array]  # rows of the file u8[n, row bytes], format, panels u8[panels, blocks, bytes]
WORDS = 9  # argument words of a kernel


def packing_code(formats: Sequence[str], target: TargetSpec) -> Code:
    """The kernels for these formats, in their order."""
    from ..kernels.quant.panel_packer import pack_kernel  # a program from the cache brings its own: nothing of this is loaded then
    from ..target.cpu.emit import emit_kernel
    from .code import compile_kernels

    return compile_kernels([pack_kernel(name) for name in formats], replace(target, checks=False), emit_kernel)  # its jobs tell no bounds


def pack_all(matrices: Sequence[Matrix], packers: Mapping[str, int] | None = None, *, threads: int | None = None) -> None:
    """Fill the panels of every matrix. `packers` gives the addresses of linked kernels by format, where they are there already."""
    jobs = [m for m in matrices if len(m[0]) >= LANES and m[0].size and _readable(m[0], m[1])]
    if jobs:
        code, address = None, packers or {}
        if not packers:
            formats = sorted({name for _, name, _ in jobs})
            code = packing_code(formats, host_target())  # must live until the job is done
            address = {name: code.address(symbol) for name, symbol in zip(formats, code.symbols, strict=True)}
        table, words = thunks(len(jobs)), np.zeros((len(jobs), WORDS), np.int64)
        for i, (rows, name, out) in enumerate(jobs):
            panel = out.strides[0]
            to = out.ctypes.data
            words[i] = (rows.ctypes.data, rows.strides[0] // unit_bytes(name), to, panel // 4, to, panel // 2, to, panel, out.shape[1])
            table[i, THUNK_FN], table[i, THUNK_ARGS], table[i, THUNK_GRID] = address[name], words[i].ctypes.data, len(rows) // LANES
        Job(table, patches([]), threads=threads or load().threads or available_cores(), io_count=1, keep=(words, code)).run()
    done = {id(m[2]) for m in jobs}
    for rows, name, out in matrices:
        first = len(rows) // LANES if id(out) in done else 0
        if first < len(out):
            pack_panels(rows, name, out, first, len(out))


def _readable(rows: Array, name: str) -> bool:
    """Rows of contiguous bytes, at addresses that the kernel can read as its units."""
    unit = unit_bytes(name)
    return rows.strides[1] == 1 and rows.strides[0] % unit == 0 and rows.ctypes.data % unit == 0
