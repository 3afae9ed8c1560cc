"""A model of the Hopper product and convolution kernels in NumPy: what TMA reads through their tensor maps, the product, and
what it writes. It knows the documented meaning of the maps, nothing of the PTX; epilogues other than a cast are not modelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.cuda.emulator import Array, Fault, Heap
from tilewright.core.dims import evaluate
from tilewright.kernels.conv.cuda.kernels import ConvKernel, WindowGradientKernel
from tilewright.kernels.cuda.kernel import GemmKernel, TensorMap


def tensor(heap: Heap, m: TensorMap, words: Sequence[int], env: dict[str, int]) -> tuple[Array, Array]:
    """The buffer behind a map, and the index of every element of the tensor in it, outermost axis first."""
    sizes = [evaluate(d, env) for d in m.sizes]
    steps = [m.dtype.itemsize, *(evaluate(d, env) for d in m.strides)]
    address = words[m.argument]
    if address % 16 or any(s % 16 for s in steps[1:]):
        raise Fault(f"a tensor map needs 16-byte steps, got address {address:#x} and steps {steps[1:]}")
    if m.box[0] * m.dtype.itemsize > m.swizzle:
        raise Fault(f"a box of {m.box[0]} elements is wider than the swizzle of {m.swizzle} bytes")
    index: Any = 0
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        index = index + (np.arange(size) * (step // m.dtype.itemsize)).reshape(-1, *(1,) * axis)
    data, at = heap.find(address, (int(index.max()) + 1) * m.dtype.itemsize)
    return data[at : at + (int(index.max()) + 1) * m.dtype.itemsize].view(m.dtype.np), index


def windows(image: Array, m: TensorMap, kernel: ConvKernel) -> Array:
    """[taps, pixels, channels]: for every tap, what the engine gathers over all images; places outside are zeros."""
    assert m.windows is not None
    lower, upper, steps = (x[::-1] for x in (m.windows.lower, m.windows.upper, m.windows.steps))
    sizes = image.shape[1:-1]
    count = tuple(-(-(size + up - low) // step) for size, up, low, step in zip(sizes, upper, lower, steps, strict=True))
    assert count == kernel.image, (count, kernel.image)
    most = 15 if len(sizes) == 3 else 127
    assert all(-most - 1 <= n <= most for n in (*lower, *upper)) and all(1 <= s <= 8 for s in steps), m.windows
    taps = []
    for tap in np.ndindex(*kernel.taps):
        found = image
        for axis, (n, step, low, t, hop) in enumerate(zip(count, steps, lower, tap, kernel.dilation, strict=True), 1):
            at = np.arange(n) * step + low + t * hop
            inside = ((at >= 0) & (at < image.shape[axis])).reshape(-1, *(1,) * (image.ndim - 1 - axis))
            found = np.where(inside, found.take(at.clip(0, image.shape[axis] - 1), axis), 0)
        taps.append(found.reshape(-1, image.shape[-1]))
    return np.stack(taps)


def run_gradient(kernel: WindowGradientKernel, heap: Heap, words: Sequence[int], env: dict[str, int]) -> None:
    """The gradient of weights: parts of the pixels, 64 at a time; a tap's channels begin at multiples of 64."""
    left, right, result = kernel.maps
    g, x = ((data.astype(np.float64))[index] for data, index in (tensor(heap, m, words, env) for m in (left, right)))
    whole, wide = windows(x, right, kernel), -(-kernel.channels // 64) * 64
    whole = np.pad(whole, ((0, 0), (0, 0), (0, 64)))  # places behind the last channel are zeros
    if kernel.apart:  # three products of halves, each in whole steps
        one, more = kernel.apart, -kernel.apart % 64
        firsts, seconds = ((np.pad(v, ((0, 0), (0, more), (0, 0)))) for v in (whole[:, :one], whole[:, one:]))
        whole = np.concatenate([firsts, seconds, firsts], 1)
        large, small = (np.pad(v, ((0, more), (0, 0))) for v in g)
        g = np.concatenate([large, large, small])[None]
    assert kernel.transposed_a and not kernel.transposed_b and g.shape[:2] == (1, whole.shape[1])
    assert kernel.parts * kernel.blocks == result.sizes[2]
    data, index = tensor(heap, result, words, env)
    steps = -(-whole.shape[1] // 64)
    each = -(-steps // kernel.parts) * 64
    for p, b in np.ndindex(kernel.parts, kernel.blocks):
        at, first, low = slice(p * each, (p + 1) * each), b * kernel.channels, b * kernel.each
        held = [t[:, first : first + wide] for t in whole[:, at]]
        seen = np.concatenate([np.pad(t, ((0, 0), (0, wide - t.shape[1]))) for t in held], 1)
        rows = g[0, at, low : low + result.sizes[1]].T
        data[index[p * kernel.blocks + b]] = rows @ seen


def run_product(kernel: GemmKernel, heap: Heap, words: Sequence[int], env: dict[str, int]) -> None:
    if isinstance(kernel, WindowGradientKernel):
        run_gradient(kernel, heap, words, env)
        return
    if any(i.op == "load" for i in kernel.walk()) or kernel.transposed_a or len(kernel.maps) != 3:
        raise NotImplementedError(f"{kernel.name}: the model knows rows along K and no epilogue")
    left, right, result = kernel.maps
    a, b = ((data.astype(np.float64))[index] for data, index in (tensor(heap, m, words, env) for m in (left, right)))
    if isinstance(kernel, ConvKernel):
        seen = windows(a, left, kernel)
        each = kernel.each or b.shape[1]
        parts = seen.reshape(*seen.shape[:2], -1, kernel.channels), b.reshape(b.shape[0], -1, each, b.shape[2])
        total = np.einsum("tmgc,tgnc->mgn", *parts, optimize=True).reshape(1, seen.shape[1], -1)
    else:
        b = b if kernel.transposed_b else b.swapaxes(1, 2)
        deep = max(a.shape[2], b.shape[2])  # TMA gives zeros behind the end of either
        many = evaluate(result.sizes[2], env)
        a, b = (np.resize(np.pad(x, ((0, 0), (0, 0), (0, deep - x.shape[2]))), (many, x.shape[1], deep)) for x in (a, b))
        total = np.einsum("bmk,bnk->bmn", a, b)
    data, index = tensor(heap, result, words, env)
    assert index.shape == total.shape, (index.shape, total.shape)
    data[index] = total.astype(result.dtype.np)
