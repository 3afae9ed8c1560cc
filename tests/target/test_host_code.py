"""Host code: a subset of Python compiled to machine code computes what Python computes."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tilewright.core.errors import CompileError
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.host_code import compile_host
from tilewright.target.cpu.jit import Library, compile_ir

SOURCE = '''
def gcd(a, b):
    """Euclid's."""
    while b != 0:
        t = a % b
        a = b
        b = t
    return a


def collatz(n, most):
    steps = 0
    while True and n != 1:
        if n & 1 and n > 0:
            n = 3 * n + 1
        else:
            n = n // 2
        steps += 1
        if steps >= most:
            break
    return steps


def truth(a, b, c):
    if not a or (b and not c):
        return (a < b) + (b <= c) * 2 + (a == c or b != c) * 4
    elif a > 10:
        return -1
    return LARGE


def total(words, count):
    sum = 0
    i = 0
    while i < count:
        i += 1
        if ld64(words + 8 * (i - 1)) < 0:
            continue
        sum += ld64(words + 8 * (i - 1))
    return sum


def squares(count):
    words = stack(800)
    i = 0
    while i < count:
        st64(words + 8 * i, i * i)
        i += 1
    st64(address(block) + 8, count)
    return total(words, count)


def odd_ones(words, count, step):
    found = 0
    for i in range(count):
        if words[i] & 1 == 0:
            continue
        found += words[i]
        words[i] -= 1
        if found > 1000:
            break
    for i in range(step, count, 2):
        words[i] = 0 - words[i]
    return found * 100 + min(i, count) * 10 + max(found, -1)


def decided(a, b, c):
    return a and b or c


def chosen(a, b):
    words = [a, b if a < b else a, not a]
    block[2] = words[1]
    return words[0] + 10 * words[1] + 100 * words[2] + 1000 * (a < b and a)


def seconds_of(pair):
    pair.second += 3
    return pair.second * 2 + pair.low


def cleared(words, count):
    clear(words + 8, 8 * (count - 2))
    return words[0] + words[1] + words[count - 1]


def bytes_of(at, value):
    st8(at, value)
    st16(at + 2, value)
    st32(at + 4, value)
    return ld8(at) + ld16(at + 2) + ldi32(at + 4)
'''


@pytest.fixture(scope="module")
def code() -> Any:
    names = {"gcd": 2, "collatz": 2, "truth": 3, "total": 2, "squares": 1, "odd_ones": 3, "decided": 3, "chosen": 2, "seconds_of": 1,
             "cleared": 2, "bytes_of": 2}
    fields = {"second": ("ld64", 8), "low": ("ldi32", 0)}
    text, externals = compile_host(SOURCE, {"LARGE": 1 << 40}, {"block": 4}, [*names], fields=fields)
    assert not externals
    library = Library([compile_ir(text, host_target())], [*names, "block"])
    word: Any = ctypes.c_int64
    return {"library": library, **{n: ctypes.CFUNCTYPE(word, *[word] * k)(library.address(n)) for n, k in names.items()}}


def test_it_computes_what_python_computes(code: Any) -> None:
    names: dict[str, Any] = {"LARGE": 1 << 40, "block": [0] * 4}
    exec(SOURCE, names)
    for a, b in ((48, 36), (17, 5), (0, 9), (1 << 40, 6)):
        assert code["gcd"](a, b) == names["gcd"](a, b)
    for n in (1, 6, 27, 97):
        assert code["collatz"](n, 1000) == names["collatz"](n, 1000)
    for a in (0, 1, 11):
        for b in (0, 2):
            for c in (0, 2, 11):
                assert code["truth"](a, b, c) == names["truth"](a, b, c)
                assert code["decided"](a, b, c) == names["decided"](a, b, c)
    for a, b in ((0, 3), (3, 0), (2, 5), (-4, 0)):
        assert code["chosen"](a, b) == names["chosen"](a, b)
        assert ctypes.c_int64.from_address(code["library"].address("block") + 16).value == names["block"][2]


def test_memory(code: Any) -> None:
    words = (ctypes.c_int64 * 4)(5, -3, 7, 1)
    assert code["total"](ctypes.addressof(words), 4) == 13
    assert code["squares"](10) == 285
    assert ctypes.c_int64.from_address(code["library"].address("block") + 8).value == 10
    odd = (ctypes.c_int64 * 5)(1, 2, 3, 4, 2000)
    assert code["odd_ones"](ctypes.addressof(odd), 5, 1) == 400 + 5 * 10 + 4  # the variable of a loop ends at the first number behind it
    assert list(odd) == [0, -2, 2, -4, 2000]
    pair = (ctypes.c_int64 * 2)(0xFFFFFFFF, 39)
    assert code["seconds_of"](ctypes.addressof(pair)) == 83 and list(pair) == [0xFFFFFFFF, 42]
    row = (ctypes.c_int64 * 4)(5, 6, 7, 8)
    assert code["cleared"](ctypes.addressof(row), 4) == 13 and list(row) == [5, 0, 0, 8]
    assert code["bytes_of"](ctypes.addressof(words), -2) == 254 + 65534 - 2


@pytest.mark.parametrize(("body", "text"), [
    ("return a + missing", "line 3: no name missing"), ("for i in a: pass", "a loop goes over a range"),
    ("return a < 1 < 2", "one comparison at a time"),
    ("return a.size", "no field size"), ("return (a,)", "no expression Tuple"),
    ("return a ** 2", "no operator Pow"), ("return g(a) + g(a, a)", "g takes 1 arguments"),
], ids=range(7))
def test_what_it_does_not_know(body: str, text: str) -> None:
    with pytest.raises(CompileError, match=text):
        compile_host(f"\ndef f(a):\n    {body}\n", {}, {}, ["f"])
