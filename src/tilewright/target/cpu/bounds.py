"""Bounds checks on every access of a kernel to memory, for `TILEWRIGHT_CHECKS=1`.

A checked kernel has further argument words behind its own: for each of its views where the buffer behind it begins and ends, then the
address of an error block. A tile access touches a box of elements, whose first and last address are computed and compared; the lanes of
a gather are compared each. An access that would leave its buffer is not made: the program that finds it fills the error block, and the
call of the kernel ends. Local memory is checked against its own size.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .llvm_text import FunctionText, mangle, vector

OUT_OF_BOUNDS = 6  # code in the error block; site: the number of the view, position: the byte in its buffer, value: the program
LOCAL = -1  # the number of local memory
CLAIMED = 1 << 62  # as in kernels/launch.py
_REPORT = f"""define internal void @out_of_bounds(ptr %block, i64 %view, i64 %byte, i64 %program) noinline cold nounwind {{
  %old = atomicrmw or ptr %block, i64 {CLAIMED} monotonic, align 8
  %first = icmp eq i64 %old, 0
  br i1 %first, label %fill, label %out
fill:
  %p1 = getelementptr i64, ptr %block, i64 1
  store i64 %view, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %block, i64 2
  store i64 %byte, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %block, i64 3
  store i64 %program, ptr %p3, align 8
  store atomic i64 {OUT_OF_BOUNDS}, ptr %block release, align 8
  br label %out
out:
  ret void
}}"""


@dataclass(frozen=True)
class Bounds:
    """Where a view's buffer begins and ends (texts of i64), and which of the kernel's views it is."""

    low: str
    high: str
    view: int


@dataclass
class Guard:
    """The checks of one function: its error block and the program that runs."""

    f: FunctionText
    block: str
    program: str = "0"

    def box(self, bounds: Bounds, pointer: str, spans: Sequence[tuple[str, int | str]], itemsize: int) -> None:
        """Elements from `pointer` on along axes of (stride, count): nothing where a count is not positive."""
        f, some = self.f, "true"
        first = last = f.value(f"ptrtoint ptr {pointer} to i64")
        for stride, count in spans:
            if isinstance(count, str):
                some = f.op("and", "i1", some, f.icmp("sgt", "i64", count, "0"))
                steps = f.op("sub", "i64", count, "1")
            else:
                steps = str(count - 1)
            if steps == "0" or stride == "0":
                continue
            span = f.op("mul", "i64", f.op("mul", "i64", steps, stride), str(itemsize))
            first = f.op("add", "i64", first, f.intrinsic("llvm.smin.i64", "i64", [("i64", span), ("i64", "0")]))
            last = f.op("add", "i64", last, f.intrinsic("llvm.smax.i64", "i64", [("i64", span), ("i64", "0")]))
        before = f.icmp("ult", "i64", first, bounds.low)
        behind = f.icmp("ugt", "i64", f.op("add", "i64", last, str(itemsize)), bounds.high)
        outside = f.op("and", "i1", some, f.op("or", "i1", before, behind))
        self._report(outside, bounds, f.select("i64", before, first, last))

    def lanes(self, bounds: Bounds, pointer: str, offsets: str, n: int, itemsize: int) -> None:
        """Single elements at `offsets` (a vector of n elements, or one i64 for n = 0) from `pointer`."""
        f, ty = self.f, vector(n, "i64")
        base = f.broadcast(ty, f.value(f"ptrtoint ptr {pointer} to i64"))
        at = f.op("add", ty, base, f.op("mul", ty, offsets, f.splat(ty, itemsize)))
        before = f.icmp("ult", ty, at, f.broadcast(ty, bounds.low))
        behind = f.icmp("ugt", ty, f.op("add", ty, at, f.splat(ty, itemsize)), f.broadcast(ty, bounds.high))
        outside = f.op("or", vector(n, "i1"), before, behind)
        if n:
            worst = f.select(ty, outside, at, "zeroinitializer")
            at = f.intrinsic(f"llvm.vector.reduce.umax.{mangle(ty)}", "i64", [(ty, worst)])
            outside = f.intrinsic(f"llvm.vector.reduce.or.v{n}i1", "i1", [(vector(n, "i1"), outside)])
        self._report(outside, bounds, at)

    def _report(self, outside: str, bounds: Bounds, address: str) -> None:
        f = self.f
        wrong, fine = f.fresh_label("outside"), f.fresh_label("inside")
        f.branch(outside, wrong, fine)
        f.label(wrong)
        byte = f.op("sub", "i64", address, bounds.low)
        f.declarations["out_of_bounds"] = _REPORT
        f.emit(f"call void @out_of_bounds(ptr {self.block}, i64 {bounds.view}, i64 {byte}, i64 {self.program})")
        f.ret()
        f.label(fine)


def checked_entry(name: str, checked: str, count: int, views: Sequence[tuple[int, Sequence[tuple[int | None, int]], int]]) -> str:
    """A function with the arguments of an unchecked kernel (`count` words) that calls the checked one, for callers that tell no bounds:
    `views` has each view's word, for each of its axes the words of its stride (None: 1) and of its size, and its element's size. An access
    outside of them traps."""
    lines = [f"define void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) nounwind {{",
             f"  %words = alloca [{count + 2 * len(views) + 1} x i64], align 8", "  %block = alloca [4 x i64], align 8",
             "  store [4 x i64] zeroinitializer, ptr %block, align 8"]
    for k in range(count):
        lines += [f"  %at{k} = getelementptr i64, ptr %args, i64 {k}", f"  %w{k} = load i64, ptr %at{k}, align 8"]
    values = [f"%w{k}" for k in range(count)]
    for k, (word, axes, itemsize) in enumerate(views):
        low, high = f"%w{word}", f"%w{word}"
        for j, (stride, size) in enumerate(axes):  # an axis of a negative stride reaches down
            x = f"{k}_{j}"
            lines += [f"  %last{x} = sub i64 %w{size}, 1", f"  %span{x} = mul i64 %last{x}, {'1' if stride is None else f'%w{stride}'}",
                      f"  %bytes{x} = mul i64 %span{x}, {itemsize}",
                      f"  %below{x} = icmp slt i64 %bytes{x}, 0",
                      f"  %down{x} = select i1 %below{x}, i64 %bytes{x}, i64 0", f"  %low{x} = add i64 {low}, %down{x}",
                      f"  %up{x} = select i1 %below{x}, i64 0, i64 %bytes{x}", f"  %high{x} = add i64 {high}, %up{x}"]
            low, high = f"%low{x}", f"%high{x}"
        lines.append(f"  %end{k} = add i64 {high}, {itemsize}")
        values += [low, f"%end{k}"]
    lines.append("  %error = ptrtoint ptr %block to i64")
    for k, value in enumerate([*values, "%error"]):
        lines += [f"  %to{k} = getelementptr i64, ptr %words, i64 {k}", f"  store i64 {value}, ptr %to{k}, align 8"]
    lines += [f"  call void @{checked}(ptr %words, i64 %begin, i64 %end, ptr %scratch)", "  %code = load i64, ptr %block, align 8",
              "  %fine = icmp eq i64 %code, 0", "  br i1 %fine, label %done, label %wrong", "wrong:", "  call void @llvm.trap()",
              "  unreachable", "done:", "  ret void", "}", "declare void @llvm.trap()", ""]
    return "\n".join(lines)
