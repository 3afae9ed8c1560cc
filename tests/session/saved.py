"""A small saved session, and files with another header whose checksum is right: what a stranger would write."""
from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from torch import nn

import tilewright as tw
from tilewright.runtime.archive import file as archive_file

Saved = tuple[Path, tw.Session, torch.Tensor]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 40), nn.Linear(40, 7)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.relu(self.a(x))
        return {"y": self.b(h), "h": h}


def header_of(path: Path) -> tuple[bytes, dict[str, object]]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[8:16])
    return raw, json.loads(raw[64 : 64 + length])


def rewritten(raw: bytes, header: dict[str, object], path: Path) -> Path:
    """The file with another header, its checksum right: what an attacker would write."""
    (length,) = struct.unpack("<Q", raw[8:16])
    data = raw[-(-(64 + length) // 4096) * 4096 :]
    text = json.dumps(header, separators=(",", ":")).encode()
    start = -(-(64 + len(text)) // 4096) * 4096
    head = raw[:8] + struct.pack("<Q", len(text)) + raw[16:48] + archive_file.checksum(text) + text
    path.write_bytes(head.ljust(start, b"\0") + data)
    return path
