"""Programs as plain data: everything a launch has survives JSON."""
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.session.handmade import chain_program, kernel, launch
from tilewright.core.dims import floordiv, sym, symbols
from tilewright.core.errors import FormatError
from tilewright.kernels.launch import Buffer, ConstBuffer, ErrorWord, Packed, Program, Variant, Word
from tilewright.ops.structure import ConstantData
from tilewright.runtime.archive.program_data import Reader, Stored, program_data, read_packed, read_program

S = sym("S", 1, 100)


def program() -> Program:
    made, _, _ = chain_program("double reverse copy", floordiv(S + 3, 4) * 8, inplace=True)
    data = ConstantData(np.ones((5, 3), np.float32), "w")
    buffer = Buffer("w", "const", 4 * 16 * 3, 0)
    made.constants.append(ConstBuffer(data, buffer, Packed("panels", 16)))
    last = made.launches[-1]
    made.launches.append(launch("gather", [made.inputs[0], buffer], made.outputs[0], S, extra=(Word(5), ErrorWord())))
    last.variants = (Variant(S * 2, 3, 9, kernel("other"), (*last.arguments, Word(S - 1)), S + 1, 64),)
    last.serial, last.note, last.scratch = True, "a note", S * 16
    return made


def test_round_trip() -> None:
    made = program()
    names = [f"k{i}" for i in range(sum(len(x.kernels) for x in made.launches))]
    data = json.loads(json.dumps(program_data(made, names)))
    constant = made.constants[0]
    stored = Stored("w", constant.data.type, constant.packed, np.zeros(3))
    read, found = read_program(data, [stored], Reader(sorted(symbols(S), key=str)))
    assert found == names
    assert program_data(read, found) == data
    assert [w.kernel.name for x in read.launches for w in x.ways] == names
    assert read.launches[2].variants[0].value == S * 2
    assert read.launches[1].inplace == ()
    assert read.launches[0].arguments[0] != made.launches[0].arguments[0]  # buffers are new objects


@pytest.mark.parametrize("spoil", [
    lambda d: d["launches"][0].pop("args"),
    lambda d: d["launches"][0].update(args=[["p", 99, 0, 0]]),
    lambda d: d["launches"][0].update(grid="S*"),
    lambda d: d["launches"][0].update(grid="__import__('os')"),
    lambda d: d["launches"][0].update(grid=1.5),
    lambda d: d["launches"][2]["variants"][0].update(when=[1]),
    lambda d: d["buffers"][0].__setitem__(1, "secret"),
    lambda d: d["buffers"].pop(),
    lambda d: d["launches"].append(3),
])
def test_damaged_data(spoil: Any) -> None:
    made = program()
    data = json.loads(json.dumps(program_data(made, [f"k{i}" for i in range(5)])))
    spoil(data)
    constant = made.constants[0]
    with pytest.raises(FormatError, match="archive: "):
        read_program(data, [Stored("w", constant.data.type, constant.packed, np.zeros(3))], Reader(sorted(symbols(S), key=str)))


@pytest.mark.parametrize("bad", [None, [], ["panels", 16], ["odd", 1, False], ["panels", "16", False], ["panels", 16, 1]])
def test_forms_of_constants(bad: Any) -> None:
    with pytest.raises(FormatError, match="archive: not a form of a constant"):
        read_packed(bad)
