"""Machine code of a program's kernels: equal kernels once, object code from the cache where it is there, linked together."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import CompileError
from ..core.hashing import blake2b
from ..core.records import dataclass, field, replace
from ..core.target_spec import TargetSpec
from ..target.cpu.cache import CodeCache
from ..target.cpu.jit import Library

if TYPE_CHECKING:
    from ..tile.ir import Kernel

Emit = Callable[["Kernel", TargetSpec], str]


@dataclass(eq=False)
class Code:
    """Linked kernels. `symbols[i]` serves the i-th kernel asked for; `objects` are what a saved session stores."""

    symbols: list[str]
    objects: dict[str, bytes]
    library: Library
    compiled: int = 0  # objects that were not in the cache
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # symbol -> LLVM text of what was emitted now; cached code was not
    tiles: Mapping[str, str] = field(default_factory=dict)  # symbol -> tile IR text
    checked: bool = False  # kernels check their accesses, and want to know where their buffers begin and end

    def address(self, symbol: str) -> int:
        return self.library.address(symbol)


def symbol_of(kernel: Kernel) -> str:
    """A name that depends on the kernel's structure only, so that equal kernels of any model share code and cache entry."""
    from ..tile.text import to_text

    text = to_text(replace(kernel, name="k"))
    return "tw_" + blake2b(text.encode(), digest_size=10).hexdigest()


def compile_kernels(kernels: Sequence[Kernel], target: TargetSpec, emit: Emit | None = None, *, cache: CodeCache | None = None,
                    threads: int | None = None) -> Code:
    """Emit, compile and link the distinct kernels of a program. What the cache holds under the kernel's own text is not even emitted,
    and when all of it is there the emitter is not even imported."""
    from ..tile.text import to_text

    cache = CodeCache() if cache is None else cache
    by_identity: dict[int, str] = {}
    distinct: dict[str, Kernel] = {}
    texts: dict[str, str] = {}
    for kernel in kernels:
        if id(kernel) not in by_identity:
            symbol = by_identity[id(kernel)] = symbol_of(kernel)
            distinct.setdefault(symbol, replace(kernel, name=symbol))

    def write(symbol: str) -> str:
        if symbol not in texts:
            texts[symbol] = (emit or _emitter())(distinct[symbol], target)
        return texts[symbol]

    # Another emitter than ours is not part of the cache's keys: then the key is what it writes.
    ours = emit is None or emit.__module__ == "tilewright.target.cpu.emit"
    tiles = {symbol: to_text(kernel) for symbol, kernel in distinct.items()}
    sources = [(tiles[symbol] if ours else write(symbol), partial(write, symbol)) for symbol in distinct]
    objects, compiled = cache.build(sources, target, threads=threads)
    found = dict(zip(distinct, objects, strict=True))
    code = link([by_identity[id(k)] for k in kernels], found)
    code.compiled, code.notes, code.texts, code.tiles, code.checked = compiled, list(cache.notes), texts, tiles, target.checks
    return code


def _emitter() -> Emit:
    from ..target.cpu.emit import emit_kernel

    return emit_kernel


def link(symbols: list[str], objects: Mapping[str, bytes]) -> Code:
    """Objects that already exist, made callable."""
    missing = sorted(set(symbols) - objects.keys())
    if missing:
        raise CompileError(f"code: no object for kernel {missing[0]}")
    return Code(symbols, dict(objects), Library(objects.values(), objects.keys()))
