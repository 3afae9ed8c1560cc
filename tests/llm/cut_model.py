"""Cuts a GGUF file down to its first layers: a valid file with the same tokenizer, small enough to travel.

    python -m tests.llm.cut_model MODEL.gguf CUT.gguf --layers 11

Metadata is copied byte by byte but for the number of layers; of the tensors those of later layers are left out.
"""

from __future__ import annotations

import argparse
import re
import struct
from pathlib import Path

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value by its type
U32, STRING, ARRAY = 4, 8, 9


class Bytes:
    """A file's bytes and a place in them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: str) -> int:
        value = struct.unpack_from("<" + kind, self.data, self.at)[0]
        self.at += struct.calcsize(kind)
        return int(value)

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind: int) -> int:
        """Go past a value; how many it holds."""
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
            return count
        else:
            self.at += SIZES[kind]
        return 1


def cut(source: Path, target: Path, layers: int) -> None:
    """Write the first `layers` layers of `source`."""
    file = Bytes(source.read_bytes())
    assert file.number("I") == 0x46554747, f"{source} is no GGUF file"
    version, tensors, pairs = file.number("I"), file.number("Q"), file.number("Q")
    head, alignment = bytearray(), 32
    per_layer: list[tuple[str, int]] = []
    count = 0
    for _ in range(pairs):
        start = file.at
        key, kind = file.text(), file.number("I")
        value_at = file.at
        held = file.skip(kind)
        pair = bytearray(file.data[start : file.at])
        if key.endswith(".block_count"):
            count = int.from_bytes(file.data[value_at : file.at], "little")
            assert kind == U32 and 1 <= layers <= count, f"{layers} layers of {count}"
            pair[-4:] = struct.pack("<I", layers)
        elif key == "general.alignment":
            alignment = int.from_bytes(file.data[value_at : file.at], "little")
        elif kind == ARRAY and not key.startswith("tokenizer."):
            per_layer.append((key, held))
        head += pair
    bad = [key for key, held in per_layer if held == count]
    assert not bad, f"{bad[0]} has a value for every layer, which is not cut here"
    found = []  # name, the bytes between it and its offset, offset
    for _ in range(tensors):
        name, start = file.text(), file.at
        axes = file.number("I")
        file.at += 8 * axes + 4  # sizes, then the type
        between = file.data[start : file.at]
        found.append((name, between, file.number("Q")))
    data = -(-file.at // alignment) * alignment
    ends = dict(zip(order := sorted(x for _, _, x in found), [*order[1:], len(file.data) - data], strict=True))
    layer = re.compile(r"blk\.(\d+)\.")
    kept = [x for x in found if not (m := layer.match(x[0])) or int(m[1]) < layers]
    infos, body = bytearray(), bytearray()
    for name, between, offset in kept:
        infos += struct.pack("<Q", len(name.encode())) + name.encode() + between + struct.pack("<Q", len(body))
        body += file.data[data + offset : data + ends[offset]]
        body += bytes(-len(body) % alignment)
    out = struct.pack("<IIQQ", 0x46554747, version, len(kept), pairs) + head + infos
    target.write_bytes(out + bytes(-len(out) % alignment) + body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int, default=11)
    args = parser.parse_args()
    args.target.parent.mkdir(parents=True, exist_ok=True)
    cut(args.source, args.target, args.layers)
    print(f"{args.target}: {args.target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
