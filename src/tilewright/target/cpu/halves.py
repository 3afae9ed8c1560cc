"""What a kernel knows about its 32-bit words, so that rounding them to bf16 costs no more than it must.

*Short* words have sixteen zeros at their end: bf16 numbers that were widened, and what is chosen from such, negated or rounded to integers.
They are cut instead of rounded. *Quiet* floats are NaN only in ways that rounding cannot turn into infinity or a zero (bits that carry
over, or that are all cut off): results of arithmetic on widened bf16 numbers, on integers and on constants, not what was loaded as f32.
"""

from __future__ import annotations

import struct

from ...core.dtypes import bf16, f32
from ...tile.ir import BINARY, UNARY, Instr, TileType, Var

MOVES = frozenset(("broadcast", "reshape", "extract", "bitcast", "transpose", "reverse", "shuffle"))
KEEPS = frozenset(("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "max", "min", "or", "xor"))  # short of short operands
BITS = frozenset(("and", "or", "xor", "shl", "shr", "not", "mulhi"))


class Halves:
    def __init__(self) -> None:
        self.short: set[Var] = set()
        self.quiet: set[Var] = set()

    def see(self, instr: Instr) -> None:
        """Note what is known of an instruction's results. Values that loops and branches carry are not looked through."""
        if len(instr.results) != 1 or not isinstance(type_ := instr.results[0].type, TileType) or type_.dtype.itemsize != 4:
            return
        out, op = instr.results[0], instr.op
        tiles = [v for v in instr.operands if isinstance(v, Var) and isinstance(v.type, TileType)]
        chosen = tiles[1:] if op == "select" else tiles
        short, quiet = all(v in self.short for v in chosen), all(v in self.quiet for v in chosen)
        if op == "cast":
            source = tiles[0].type.dtype  # type: ignore[union-attr]
            short, quiet = source is bf16, source is bf16 or not source.is_float
        elif op == "full":
            short, quiet = _low(instr.attrs["value"], type_) == 0, True
        elif op == "and":
            short, quiet = any(v in self.short for v in tiles), False
        elif op in KEEPS or op in MOVES or op == "select":
            quiet = quiet and op not in BITS and op != "bitcast"
        elif op in UNARY or op in BINARY or op in ("fma", "reduce"):
            short, quiet = False, quiet and op not in BITS
        else:
            return
        if short:
            self.short.add(out)
        if type_.dtype is f32 and quiet | short:
            self.quiet.add(out)


def _low(value: float | int | bool, type_: TileType) -> int:
    """The last sixteen bits of a constant's word."""
    if not type_.dtype.is_float:
        return int(value) & 0xFFFF
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) & 0xFFFF
    except OverflowError:  # infinity, in f32
        return 0
