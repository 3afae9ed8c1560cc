"""Small launches of this target's kernels for `async_safety`: every ring is gone around more than twice, with several tiles a block."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ....kernels.attention.cuda.flash_kernels import FlashGradKernel, FlashStatsKernel, MmaGradKernel
from ....kernels.conv.cuda.kernels import HaloKernel, PatchKernel
from ....kernels.cuda.kernel import DecodeKernel, FlashKernel, GemmKernel, QFewKernel, QGemmKernel, TensorMap
from ....tile.ir import Kernel, ViewType
from ..attention import flash, flash_finish, flash_grad, flash_stats
from ..attention import mma_grad as attention_mma_grad
from ..conv import halo as conv_halo
from ..conv import patch as conv_patch
from ..matmul import gemm
from ..quant import qfew, qgemm
from .token_state import Launch

_WARPGROUP = ((0, 1), (1, 1), (127, 126))  # threads that are followed, and how many each stands for
FAR = 1 << 40  # pointers: far from one another


def small_launch(kernel: Kernel, text: str) -> Launch | None:
    """A launch that shows everything, or None for a kernel without asynchronous work."""
    if isinstance(kernel, PatchKernel):
        tiles = 2 * conv_patch.BOXES + 1
        words = _words(text, gemm.WORDS, tiles_m=tiles, tiles=tiles)
        return Launch(words, _specialised(kernel.consumers), _boxes(kernel.maps))
    if isinstance(kernel, GemmKernel):
        return _gemm(kernel, text)
    if isinstance(kernel, FlashKernel):
        return _flash(kernel, text)
    if isinstance(kernel, FlashStatsKernel):
        keys = (2 * kernel.stages + 2) * flash_stats.TILE
        words = _words(text, flash_stats.WORDS, sq=kernel.rows, sk=keys, offset=keys, padded=2 * kernel.rows)
        return Launch(words, _specialised(kernel.consumers), _boxes(kernel.maps))
    if isinstance(kernel, FlashGradKernel) and kernel.mode == "grad":
        return _grad(kernel, text)
    if isinstance(kernel, HaloKernel):
        return Launch(_words(text, ()), _same(kernel.block), cells=conv_halo.places(kernel))
    if isinstance(kernel, MmaGradKernel):
        rows = 6 * kernel.tile
        words = _words(text, attention_mma_grad.WORDS, sq=rows, sk=rows, offset=0, window=rows, padded=rows)
        own = 2 * attention_mma_grad.OWN * attention_mma_grad.pitch(kernel)
        return Launch(words, _same(kernel.block), cells=((0, own), (own, 2 * kernel.tile * attention_mma_grad.pitch(kernel))))
    if isinstance(kernel, QGemmKernel):
        words, many = _words(text, qgemm.WORDS, panels=kernel.panels, rows=kernel.rows), kernel.splits
        return Launch(words, _same(kernel.block), blocks=many, cluster=many, grid=many, cells=tuple(sorted(qgemm.places(kernel))))
    if isinstance(kernel, QFewKernel):
        words, many = _words(text, qfew.WORDS, panels=kernel.per, rows=8 * kernel.tiles), kernel.cluster
        return Launch(words, _same(kernel.block), blocks=many, cluster=many, grid=many, cells=qfew.places(kernel))
    if isinstance(kernel, DecodeKernel) and kernel.cluster > 1:
        return _decode(kernel)
    return None


def _decode(g: DecodeKernel) -> Launch:
    """One head with more keys than its blocks take at once, all threads of all blocks."""
    words: list[int] = []
    for p in g.params:
        if isinstance(p.type, ViewType):
            words += [FAR + (len(words) << 34), *(1 for s in p.type.strides if s is None)]
        else:
            words.append({"first": 0, "last": 10 * g.groups}.get(p.name, 1))
    return Launch(tuple(words), tuple((t, 1) for t in range(g.block)), blocks=g.cluster, cluster=g.cluster, grid=g.cluster)


def _words(text: str, names: Sequence[str], **values: int) -> tuple[int, ...]:
    """Pointers and strides far apart, then the words that the kernel's author added (1 where nothing is said)."""
    count = len(re.findall(r"\.param \.u64 p\d+", text)) - len(names)
    assert set(values) <= set(names), values
    return (*(FAR + (i << 34) for i in range(count)), *(values.get(n, 1) for n in names))


def _boxes(maps: tuple[TensorMap, ...]) -> tuple[int, ...]:
    return tuple(math.prod(m.box) * m.dtype.itemsize for m in maps)


def _specialised(consumers: int) -> tuple[tuple[int, int], ...]:
    """Every warp of the first warpgroup, then of each other one its first two threads and one for the rest."""
    first = [(32 * w + lane, weight) for w in range(4) for lane, weight in ((0, 1), (1, 31))]
    return (*first, *((128 * (c + 1) + t, weight) for c in range(consumers) for t, weight in _WARPGROUP))


def _same(block: int) -> tuple[tuple[int, int], ...]:
    return (0, 1), (1, 1), (2, 1), (block - 1, block - 3)


def _gemm(g: GemmKernel, text: str) -> Launch:
    together = max(g.cluster, g.splits)
    steps = g.kept or (2 * g.stages + 3) * g.splits
    tiles = 1 if g.splits > 1 else max(3, -(-(2 * g.stages + 3) // steps))
    words = _words(text, gemm.WORDS, tiles_m=together, tiles_n=tiles, steps=steps, tiles=tiles)
    return Launch(words, _specialised(g.consumers), _boxes(g.maps), together, together, together, min(64, g.rows or 64))


def _flash(g: FlashKernel, text: str) -> Launch:
    """Pieces of work for one block: more than twice as many as there are buffers of Q."""
    works = 2 * flash.QUERIES + 1
    keys = (2 * g.plan.stages + 2) * g.keys
    rows = works * g.rows
    words = _words(text, flash.WORDS, sq=rows, sk=keys, offset=keys - rows, window=keys, q_tiles=works, works=works)
    return Launch(words, _specialised(g.plan.consumers), _boxes(g.maps))


def _grad(g: FlashGradKernel, text: str) -> Launch:
    """Two blocks of keys that add to the same queries in turns."""
    tiles = 2 * g.stages + 4
    rows, keys = tiles * g.queries, 2 * flash_grad.KEYS
    words = _words(text, flash_finish.WORDS, sq=rows, sk=keys, offset=keys, window=rows + 2 * keys, q_tiles=tiles, k_tiles=2, padded=rows)
    return Launch(words, _specialised(2), _boxes(g.maps), 2, 1, 2)
