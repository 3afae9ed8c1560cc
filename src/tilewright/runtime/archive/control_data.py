"""Loops, branches and the windows inside them as plain data (for saved sessions), and back."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.errors import FormatError
from ...kernels.launch import Alternating, Branch, Buffer, Item, Launch, Loop, Pointer, Program, Sliding, parts

Data = dict[str, Any]
Number = Mapping[Buffer, int]


def loops_of(block: Sequence[Item]) -> list[Loop]:
    """Every loop, outer ones first."""
    found: list[Loop] = []
    for item in block:
        if not isinstance(item, Launch):
            found += [item] if isinstance(item, Loop) else []
            for part in parts(item):
                found += loops_of(part)
    return found


def windows_of(program: Program) -> list[Buffer]:
    """Every window that an argument names, after the buffers it shows."""
    found: dict[Buffer, None] = {}

    def visit(b: Buffer) -> None:
        for inner in (b.base,) if isinstance(b, Sliding) else (b.even, b.odd) if isinstance(b, Alternating) else ():
            visit(inner)
        if b.kind == "window":
            found[b] = None

    for launch in program.launches:
        for b in (*launch.reads, *launch.writes, *(x for pair in launch.inplace for x in pair)):
            visit(b)
    for item in _controls(program.block):
        if item.predicate is not None:
            visit(item.predicate.buffer)
    return list(found)


def _controls(block: Sequence[Item]) -> list[Loop | Branch]:
    found: list[Loop | Branch] = []
    for item in block:
        if not isinstance(item, Launch):
            found.append(item)
            for part in parts(item):
                found += _controls(part)
    return found


def control_data(program: Program, number: Number, dim: Callable[[Any], Any]) -> Data:
    """`number` counts the buffers that are no windows, then the windows."""
    loops = {x: i for i, x in enumerate(loops_of(program.block))}
    launches = {x: i for i, x in enumerate(program.launches)}

    def window(b: Buffer) -> list[Any]:
        if isinstance(b, Sliding):
            return ["slide", b.name, dim(b.nbytes), number[b.base], dim(b.offset), dim(b.step), loops[b.loop]]
        assert isinstance(b, Alternating)
        return ["turn", b.name, dim(b.nbytes), number[b.even], number[b.odd], loops[b.loop]]

    def pointer(p: Pointer | None) -> list[Any] | None:
        return None if p is None else [number[p.buffer], dim(p.offset), dim(p.extent)]

    def items(block: Sequence[Item]) -> list[Any]:
        return [launches[x] if isinstance(x, Launch) else item(x) for x in block]

    def item(x: Loop | Branch) -> Data:
        both = {"name": x.name, "predicate": pointer(x.predicate), "parts": [items(p) for p in parts(x)]}
        if isinstance(x, Branch):
            return both
        return {**both, "loop": loops[x], "count": None if x.count is None else dim(x.count), "carried": [number[b] for b in x.carried]}

    depths = [x.depth for x in loops]
    return {"depths": depths, "windows": [window(b) for b in number if b.kind == "window"], "block": items(program.block)}


def read_windows(data: Data, buffers: list[Buffer], dim: Callable[[Any], Any]) -> list[Loop]:
    """The loops, still empty; the windows are appended to `buffers`."""
    loops = [Loop("", int(depth), None) for depth in data["depths"]]
    for kind, name, nbytes, *rest in data["windows"]:
        if kind == "slide":
            base, offset, step, loop = rest
            moved = {"offset": dim(offset), "step": dim(step), "loop": loops[loop]}
            buffers.append(Sliding(str(name), "window", dim(nbytes), base=buffers[base], **moved))
        elif kind == "turn":
            even, odd, loop = rest
            buffers.append(Alternating(str(name), "window", dim(nbytes), even=buffers[even], odd=buffers[odd], loop=loops[loop]))
        else:
            raise FormatError(f"archive: a window cannot be {kind!r:.40}")
    return loops


def read_block(data: Data, program: Program, buffers: Sequence[Buffer], loops: Sequence[Loop], dim: Callable[[Any], Any]) -> None:
    """Fill in the loops and the program's block. Every launch must stand in it once, in order."""
    seen: list[int] = []

    def items(rows: Sequence[Any]) -> list[Item]:
        return [launch(x) if isinstance(x, int) else item(x) for x in rows]

    def launch(i: int) -> Launch:
        seen.append(i)
        return program.launches[i]

    def item(x: Data) -> Item:
        p = x["predicate"]
        predicate = None if p is None else Pointer(buffers[p[0]], dim(p[1]), dim(p[2]))
        first, second = x["parts"]
        if "loop" not in x:
            if predicate is None:
                raise FormatError("archive: a branch has no predicate")
            return Branch(str(x["name"]), predicate, items(first), items(second))
        loop = loops[x["loop"]]
        loop.name, loop.predicate, loop.count = str(x["name"]), predicate, None if x["count"] is None else dim(x["count"])
        loop.carried = [buffers[b] for b in x["carried"]]
        loop.test, loop.body = items(first), items(second)
        return loop

    program.block = items(data["block"])
    if program.block and seen != list(range(len(program.launches))):
        raise FormatError("archive: the launches and the control flow differ")
