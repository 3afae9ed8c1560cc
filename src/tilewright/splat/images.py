"""Pictures in files: PNG in and out, animated GIF out, other formats in through Pillow where it is installed. Values are from 0 to 1."""
from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import STRANGE, FormatError, InputError
from ..core.files import read_file, write_file
from .cameras import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # channels by a PNG's colour type
MOST, SIDE = 1 << 28, 1 << 16  # bytes of a picture, and pixels along a side: a short file can unpack to anything
LEVELS = (6, 7, 6)  # levels of red, green and blue in a GIF's palette
BAYER = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) / 16 - 15 / 32


def as_bytes(picture: Any) -> Array:
    """A picture [H,W,3] (or [H,W,4], [H,W]) of floats as bytes; NaN is black."""
    x = np.asarray(picture)
    if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[2] not in (1, 3, 4)) or 0 in x.shape:
        raise InputError(f"image: a picture is [H,W], [H,W,3] or [H,W,4], got {list(x.shape)}")
    return x if x.dtype == np.uint8 else (np.clip(np.nan_to_num(x), 0, 1) * 255 + 0.5).astype(np.uint8)


def write_png(path: str | PathLike[str], picture: Any) -> None:
    """Write a picture of 8 bits a channel."""
    x = as_bytes(picture)
    height, width = x.shape[:2]
    kind = {1: 0, 3: 2, 4: 6}[1 if x.ndim == 2 else x.shape[2]]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), x.reshape(height, -1)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    data = SIGNATURE + b"".join(struct.pack(">I", len(b)) + t + b + struct.pack(">I", zlib.crc32(t + b)) for t, b in parts)
    write_file(path, data, subject="image")


def read_image(path: str | PathLike[str]) -> Array:
    """A picture as floats [H,W,3], or [H,W,4] where it has an alpha channel."""
    path = Path(path)
    data = read_file(path, subject="image")
    if data.startswith(SIGNATURE):
        try:
            return _png(data)
        except (struct.error, zlib.error, KeyError, IndexError, ValueError) as e:
            raise FormatError(f"image: {path} is no whole PNG file ({type(e).__name__}: {e})") from e
    try:
        from PIL import Image
    except ImportError:
        raise FormatError(f"image: {path} is no PNG file; install Pillow to read other formats") from None
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as opened:
            warnings.simplefilter("ignore")  # it warns of pictures beyond 89 million pixels; twice as many are an error
            return np.asarray(opened.convert("RGBA" if opened.mode in ("RGBA", "LA", "P") else "RGB"), np.float32) / 255
    except (*STRANGE, OSError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError) as e:
        raise FormatError(f"image: {path} could not be read ({type(e).__name__}: {e!s:.200})") from e


def _png(data: bytes) -> Array:
    at, chunks = 8, dict[bytes, bytes]()
    while at < len(data) and b"IEND" not in chunks:
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        if len(body) != size or zlib.crc32(kind + body) != struct.unpack_from(">I", data, at + 8 + size)[0]:
            raise ValueError("a chunk is cut short or damaged")
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + size
    width, height, depth, kind_, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if interlaced or depth not in (8, 16):
        raise ValueError(f"only 8 or 16 bits without interlacing are read, got {depth} bits, interlaced {interlaced}")
    step = CHANNELS[kind_] * depth // 8
    size = height * (1 + width * step)
    if not 0 < width <= SIDE or not 0 < height <= SIDE or size > MOST:
        raise ValueError(f"a picture has 1 to {SIDE:,} pixels along a side and at most {MOST:,} bytes, got {width}x{height}")
    raw = np.frombuffer(zlib.decompressobj().decompress(chunks[b"IDAT"], size), np.uint8).reshape(height, 1 + width * step)
    pixels = _unfilter(raw[:, 0], raw[:, 1:].reshape(height, width, step))
    values: Array = (pixels if depth == 8 else pixels[..., ::2]).astype(np.float32)
    np.divide(values, np.float32(255), out=values)
    if kind_ == 3:
        palette = np.zeros((256, 3), np.float32)  # indices beyond the palette are black
        named = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[:256]
        palette[: len(named)] = named.astype(np.float32) / 255
        return palette[pixels[..., 0]]
    if kind_ in (0, 4):
        values = np.concatenate([np.repeat(values[..., :1], 3, -1), values[..., 1:]], -1)
    return values


def _unfilter(kinds: Array, rows: Array) -> Array:
    """Pixels [H,W,step] of differences. A pixel needs those to the left, above and above left: one diagonal of all rows after the other."""
    height, width, step = rows.shape
    if kinds.max() > 4:
        raise ValueError(f"unknown filter {kinds.max()}")
    line = rows.reshape(-1, step)
    out = np.empty_like(line)
    before, last = np.zeros((2, height + 1, step), np.int16)  # the two diagonals before, a row of zeros above
    which = [(kinds == k)[:, None] for k in range(5)]
    for d in range(height + width - 1):
        first, end = max(0, d - width + 1), min(height, d + 1)
        part = slice(d + first * (width - 1), d + (end - 1) * (width - 1) + 1, max(width - 1, 1))
        here, above = slice(first + 1, end + 1), slice(first, end)
        a, b, c = last[here], last[above], before[above]
        pa, pb, pc = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
        paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
        guess = np.select([w[first:end] for w in which[1:]], [a, b, (a + b) >> 1, paeth], 0)
        new = (line[part] + guess) & 255
        out[part] = new
        before, last = last, before
        last[here] = new
    return out.reshape(rows.shape)


def write_gif(path: str | PathLike[str], pictures: Sequence[Any], *, seconds: float = 0.05) -> None:
    """An animation that repeats, in 252 fixed colours with an ordered dither."""
    frames = [as_bytes(p)[..., :3] for p in pictures]
    if not frames or any(f.shape != frames[0].shape or f.ndim != 3 for f in frames):
        raise InputError("image: an animation needs pictures [H,W,3] of one size")
    height, width = frames[0].shape[:2]
    grid = np.stack(np.meshgrid(*(np.arange(n) * 255 // (n - 1) for n in LEVELS), indexing="ij"), -1).reshape(-1, 3).astype(np.uint8)
    palette = np.concatenate([grid, np.zeros((256 - len(grid), 3), np.uint8)])
    noise = np.tile(BAYER, (height // 4 + 1, width // 4 + 1))[:height, :width, None]
    out = [b"GIF89a", struct.pack("<HHBBB", width, height, 0xF7, 0, 0), palette.tobytes(), b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"]
    most = np.array(LEVELS) - 1
    for frame in frames:
        level = np.clip(np.rint(frame / 255 * most + noise), 0, most).astype(int)
        index = (level[..., 0] * LEVELS[1] + level[..., 1]) * LEVELS[2] + level[..., 2]
        out.append(b"\x21\xf9\x04\x00" + struct.pack("<H", round(seconds * 100)) + b"\x00\x00")
        out.append(b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x08")
        packed = _lzw(index.reshape(-1).tolist())
        out += [bytes([len(part)]) + part for i in range(0, len(packed), 255) if (part := packed[i : i + 255])]
        out.append(b"\x00")
    write_file(path, b"".join([*out, b"\x3b"]), subject="image")


def _lzw(symbols: list[int]) -> bytes:
    """GIF's variable-length codes for bytes."""
    clear, end = 256, 257
    table: dict[tuple[int, int], int] = {}
    out, held, bits, size, now = bytearray(), 0, 0, 9, -1

    def emit(code: int) -> None:
        nonlocal held, bits
        held |= code << bits
        bits += size
        while bits >= 8:
            out.append(held & 255)
            held >>= 8
            bits -= 8

    emit(clear)
    for s in symbols:
        if now < 0:
            now = s
            continue
        found = table.get((now, s))
        if found is not None:
            now = found
            continue
        emit(now)
        code = 258 + len(table)
        if code < 4096:
            table[now, s] = code
            if code == 1 << size and size < 12:
                size += 1
        else:
            emit(clear)
            table.clear()
            size = 9
        now = s
    if now >= 0:
        emit(now)
    emit(end)
    if bits:
        out.append(held & 255)
    return bytes(out)
