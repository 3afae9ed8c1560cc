"""Shared by the parts of `acceptance.py`: one check, the models at full and at small size, child processes, comparison."""
from __future__ import annotations

import atexit
import compileall
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = Path(__file__).resolve().parent.parent / "src"


@dataclass(frozen=True)
class Check:
    """One line of the table. `at_least` turns the limit round; without a limit the line only informs."""

    name: str
    measured: float
    limit: float | None = None
    unit: str = ""
    at_least: bool = False
    detail: str = ""

    @property
    def ok(self) -> bool | None:
        if self.limit is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def line(self) -> str:
        verdict = {True: "PASS", False: "FAIL", None: "    "}[self.ok]
        limit = "" if self.limit is None else f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}"
        return f"{self.name:46s} {_number(self.measured)} {self.unit:4s} {limit:>14s}  {verdict}  {self.detail}".rstrip()

    def data(self) -> dict[str, Any]:
        return {"name": self.name, "measured": self.measured, "limit": self.limit, "unit": self.unit, "at_least": self.at_least,
                "ok": self.ok, "detail": self.detail}


def _number(value: float) -> str:
    return f"{value:12.2e}" if value and abs(value) < 1e-3 else f"{value:12.3f}"


@dataclass(frozen=True)
class Setup:
    """`small`: tiny models and few repeats. `cache` is a code cache that only this run uses."""

    small: bool
    cache: Path

    def pick(self, full: Any, small: Any) -> Any:
        return small if self.small else full


class MLP(nn.Module):
    """Three linear layers with ReLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """The pre-norm transformer block of the yardstick."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.h = max(2, d // 64)
        self.l1, self.l2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        y = self.l1(x)
        q, k, v = (f(y).view(b, s, self.h, d // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, d))
        return x + self.f2(F.relu(self.f1(self.l2(x))))  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A language model's logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits  # type: ignore[no-any-return]


class Hidden(nn.Module):
    """An encoder's last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]


VOCAB = 50257
SMALL_VOCAB = 997


def gpt2(small: bool) -> nn.Module:
    """GPT-2 124M (or two thin layers of it) with the weights its configuration draws."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": SMALL_VOCAB, "bos_token_id": 0, "eos_token_id": 0} if small else {}
    return Logits(GPT2LMHeadModel(GPT2Config(use_cache=False, **size))).eval()


def minilm(small: bool) -> nn.Module:
    """A BERT of MiniLM's size."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=384, num_hidden_layers=2 if small else 6, num_attention_heads=12, intermediate_size=1536,
                        vocab_size=SMALL_VOCAB if small else 30522, attn_implementation="sdpa")
    return Hidden(BertModel(config)).eval()


def tokens(small: bool, *shape: int) -> torch.Tensor:
    return torch.randint(0, SMALL_VOCAB if small else VOCAB, shape)


def export(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any = None) -> Any:
    with torch.no_grad():
        return torch.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)


@functools.cache
def installed() -> str:
    """A folder with the package as pip would install it: a copy with byte code, whatever PYTHONDONTWRITEBYTECODE says."""
    folder = tempfile.mkdtemp(prefix="tilewright-installed-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(SOURCE / "tilewright", Path(folder) / "tilewright", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder, quiet=1, workers=2)
    return folder


def child(code: str, *argv: str, bytecode: bool = True, **env: str) -> list[str]:
    """The words that a fresh Python process prints. It imports the package as installed, or (`bytecode=False`) its source alone."""
    path = os.pathsep.join([str(Path(__file__).resolve().parent), installed() if bytecode else str(SOURCE)])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *argv], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path, **env})
    if done.returncode:
        raise RuntimeError(f"child process failed:\n{done.stderr[-3000:]}")
    return done.stdout.split()


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value, as the yardstick counts it."""
    return float((got.double() - want.double()).abs().max()) / max(1.0, float(want.abs().max()))
