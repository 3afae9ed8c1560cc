"""Squares of elements that are transposed in registers, as functions in LLVM text beside host code (`host_code.py`)."""
from __future__ import annotations


def transpose_ir(name: str, side: int, size: int, step: int = 1, attributes: str = "") -> str:
    """name(to, from, to's step, from's step): `side` rows of as many elements of `size` bytes, transposed, at any addresses. log2(side)
    rounds where rows i and i + side/2 are zipped into rows 2i and 2i + 1 transpose them. The elements of a row lie `step` apart."""
    word, half, lines = f"i{8 * size}", side // 2, []
    every = ", ".join(f"i32 {step * k}" for k in range(side))
    for k in range(side):
        lines += [f"  %s{k} = mul i64 %ss, {k}", f"  %p{k} = add i64 %from, %s{k}", f"  %q{k} = inttoptr i64 %p{k} to ptr",
                  f"  %w{k} = load <{side * step} x {word}>, ptr %q{k}, align 1",
                  f"  %r0.{k} = shufflevector <{side * step} x {word}> %w{k}, <{side * step} x {word}> poison, <{side} x i32> <{every}>"]
    low, high = (", ".join(f"i32 {k // 2 + start + side * (k % 2)}" for k in range(side)) for start in (0, half))
    rounds = side.bit_length() - 1
    for turn in range(rounds):
        for k in range(half):
            pair = f"<{side} x {word}> %r{turn}.{k}, <{side} x {word}> %r{turn}.{k + half}"
            lines += [f"  %r{turn + 1}.{2 * k} = shufflevector {pair}, <{side} x i32> <{low}>",
                      f"  %r{turn + 1}.{2 * k + 1} = shufflevector {pair}, <{side} x i32> <{high}>"]
    for k in range(side):
        lines += [f"  %d{k} = mul i64 %ds, {k}", f"  %t{k} = add i64 %to, %d{k}", f"  %o{k} = inttoptr i64 %t{k} to ptr",
                  f"  store <{side} x {word}> %r{rounds}.{k}, ptr %o{k}, align 1"]
    body = "\n".join(lines)
    return f"define internal i64 @{name}(i64 %to, i64 %from, i64 %ds, i64 %ss) nounwind {attributes} {{\n{body}\n  ret i64 0\n}}\n"
