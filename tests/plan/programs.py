"""Small hand-made programs: chains and diamonds of launches over buffers."""
from __future__ import annotations

from tilewright.core.dims import Dim
from tilewright.kernels.launch import Buffer, Launch, Pointer, Program
from tilewright.tile.ir import Kernel


def launch(name: str, reads: list[Buffer], writes: list[Buffer], *, grid: Dim = 64, flops: Dim = 10**7, inplace: bool = False) -> Launch:
    pairs = ((reads[0], writes[0]),) if inplace else ()
    pointers = tuple(Pointer(b, 0, b.nbytes) for b in dict.fromkeys([*reads, *writes]))
    return Launch(name, Kernel(name), pointers, grid, tuple(reads), tuple(writes), inplace=pairs, flops=flops)


def chain(size: Dim, length: int, *, inplace: bool = False, flops: Dim = 10**7) -> Program:
    """input -> temp -> temp -> ... -> output."""
    buffers = [Buffer("x", "input", size, 0), *(Buffer(f"t{k}", "temp", size) for k in range(length - 1)), Buffer("y", "output", size, 0)]
    launches = [launch(f"k{k}", [buffers[k]], [buffers[k + 1]], inplace=inplace, flops=flops) for k in range(length)]
    return Program([buffers[0]], [buffers[-1]], [], buffers[1:-1], launches)
