"""All configuration, in one place: every setting with its environment variable, its default and its help text.

`load()` reads the environment (or any mapping) and checks each value; a value that makes no sense is a `ConfigError` that names the
variable and says what would be valid. `table()` gives the rows of the table in the documentation.

>>> load({"TILEWRIGHT_THREADS": "2"}).threads
2
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from .errors import ConfigError
from .records import dataclass, field, fields

if TYPE_CHECKING:
    from dataclasses import Field

Validation = Literal["strict", "normal", "none"]
CpuLevel = Literal["native", "baseline", "avx2", "avx512"]
Precision = Literal["auto", "exact", "tf32"]
Switch = Literal["on", "off"]

MAX_THREADS = 1024
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _integer(low: int, high: int) -> tuple[str, Callable[[str], int]]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return f"an integer from {low} to {high}", parse


def _size() -> tuple[str, Callable[[str], int]]:
    def parse(text: str) -> int:
        text = text.strip().upper().removesuffix("IB").removesuffix("B")
        factor = _SUFFIXES.get(text[-1:], 1)
        value = int(text[:-1] if factor > 1 else text) * factor
        if value < 0:
            raise ValueError(text)
        return value

    return "a number of bytes, 0 or more, perhaps with K, M or G behind it", parse


def _choice(*names: str) -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(text)
        return text.lower()

    return "one of " + ", ".join(names), parse


def _switch() -> tuple[str, Callable[[str], bool]]:
    def parse(text: str) -> bool:
        if text.lower() not in ("0", "1", "false", "true"):
            raise ValueError(text)
        return text.lower() in ("1", "true")

    return "0 or 1", parse


def _folder() -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        if "\0" in text or not text.strip():
            raise ValueError(text)
        found = os.path.expanduser(text)
        if found.startswith("~"):  # the user has no home folder
            raise ValueError(text)
        return os.path.abspath(found)

    return "a folder", parse


def _file() -> tuple[str, Callable[[str], str]]:
    return "a file", _folder()[1]


def _setting(default: Any, name: str, kind: tuple[str, Callable[[str], Any]], shown: str, text: str) -> Any:
    meta = {"name": "TILEWRIGHT_" + name, "valid": kind[0], "parse": kind[1], "shown": shown, "help": text}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Config:
    """The settings in force. `None` means: decide from the machine."""

    threads: int | None = _setting(
        None, "THREADS", _integer(1, MAX_THREADS), "all cores", "Threads that run one model, the caller's own included.")
    cpu: CpuLevel = _setting(
        "native", "CPU", _choice("native", "baseline", "avx2", "avx512"), "native",
        "Instruction set to generate code for; lower than the machine's own to test or to compare.")
    precision: Precision = _setting(
        "auto", "PRECISION", _choice("auto", "exact", "tf32"), "auto",
        "What products and convolutions of f32 may do with their operands on a GPU: nothing (exact), or round them to 11 bits (tf32). "
        "auto follows PyTorch's own switches for PyTorch modules (convolutions and recurrent layers round unless "
        "torch.backends.cudnn.allow_tf32 is off, products do not unless torch.backends.cuda.matmul.allow_tf32 is on) and is exact for "
        "everything else.")
    winograd: Switch = _setting(
        "on", "WINOGRAD", _choice("on", "off"), "on",
        "Whether convolutions of 3×3 at step 1 in f32, f16 and bf16 on a CPU go through Winograd's transforms, which are computed in f32: "
        "faster, with about twice the rounding error of the direct sum in f32 (2.5 times in bf16 where the CPU multiplies pairs of such "
        "numbers), and an infinity or NaN in the input reaches up to 36 results instead of 9.")
    validation: Validation = _setting(
        "normal", "VALIDATION", _choice("strict", "normal", "none"), "normal", "Which findings of the validators stop a compile.")
    checks: bool = _setting(
        False, "CHECKS", _switch(), "0",
        "1 builds CPU kernels that check every access to memory: one outside its buffer is an error that names kernel and launch.")
    cache_dir: str | None = _setting(
        None, "CACHE_DIR", _folder(), "the user's cache folder", "Folder of the object-code cache; it must belong to the user.")
    key_file: str | None = _setting(
        None, "KEY_FILE", _file(), "tilewright/archive.key in the user's data folder",
        "The secret key (mode 0600, made by the first save) that authenticates machine code in saved sessions; without it `tw.load` "
        "compiles again from the stored graph. A key named here may also belong to root and be readable for others (a container's secret).")
    cache_bytes: int = _setting(
        256 << 20, "CACHE_BYTES", _size(), "256M",
        "Bound on the cache folder; the least recently used entries go first. 0 switches the cache off.")
    compile_threads: int | None = _setting(
        None, "COMPILE_THREADS", _integer(1, MAX_THREADS), "all cores, at most 8", "Threads that turn kernels into machine code.")
    idle_spin_us: int = _setting(
        100, "IDLE_SPIN_US", _integer(0, 1_000_000), "100", "Microseconds a worker thread stays awake after a call before it sleeps.")
    barrier_spin_us: int = _setting(
        300, "BARRIER_SPIN_US", _integer(0, 1_000_000), "300", "Microseconds a thread spins at a barrier before it sleeps.")


def user_folder(variable: str, below_home: str) -> str | None:
    """A folder of the user's by the XDG rule: what the variable says, where it is absolute, or one below the home folder. None without a
    home folder: no HOME, and a user that the system does not know."""
    base = os.environ.get(variable, "")
    if os.path.isabs(base):
        return base
    home = os.path.expanduser("~")
    return os.path.join(home, below_home) if os.path.isabs(home) else None


def _settings() -> tuple[Field[Any], ...]:
    return fields(Config)


def load(environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
    """The settings from the environment; keyword arguments that are not None win over it."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for item in _settings():
        name, given = item.metadata["name"], overrides.pop(item.name, None)
        if given is not None:
            values[item.name] = _parse(item, item.name, str(given))
        elif environ.get(name, "") != "":
            values[item.name] = _parse(item, name, environ[name])
    if overrides:
        known = ", ".join(item.name for item in _settings())
        raise ConfigError(f"config: no setting named {', '.join(map(repr, overrides))}; known: {known}")
    return Config(**values)


def _parse(item: Field[Any], name: str, text: str) -> Any:
    try:
        return cast(Callable[[str], Any], item.metadata["parse"])(text)
    except ValueError:
        raise ConfigError(f"config: {name} must be {item.metadata['valid']}, got {text!r}") from None


def table() -> Iterator[str]:
    """Markdown rows: variable, valid values, default, meaning."""
    yield "| variable | valid values | default | meaning |"
    yield "|---|---|---|---|"
    for item in _settings():
        m = item.metadata
        yield f"| `{m['name']}` | {m['valid']} | {m['shown']} | {m['help']} |"
