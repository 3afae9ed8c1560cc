"""Kernels as text: the printer. The text is complete and canonical, so it is also the key for caching and deduplication.

Values are renumbered in order of definition (`%0`, `%1`, …; tokens apart as `!0`, …), parameters keep their names, attributes are
sorted. Two kernels of the same structure have the same text; `parse.py` reads it back.

    kernel @copy(%x: view<f32[1] global>, %n: index) pid %pid {
      %0 = index.mul %pid, 16 : index
      %1 = load %x, %0, %n {axes=(0,), limits=(0,), other=0} : tile<16xf32>
      store %x, %0, %1 {axes=(0,)}
    }
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ..core.dtypes import DType
from ..core.errors import VerifyError
from .ir import Block, Instr, Kernel, Operand, Type, Var

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def to_text(kernel: Kernel) -> str:
    """The canonical text of a kernel."""
    return _Printer(kernel).text()


def instr_text(kernel: Kernel, instr: Instr) -> str:
    """The first line of one instruction as `to_text` shows it (undefined values as `%?name`): for error messages."""
    printer = _Printer(kernel)
    printer.text()
    return printer.head(instr)


def format_attr(value: Any) -> str:
    """An attribute value as text: int, float, bool, str, dtype, None or a tuple of these."""
    cls = value.__class__  # the common cases first: this runs for every attribute of every kernel
    if cls is int or cls is float:
        return repr(value)
    if cls is tuple:
        for v in value:
            if v.__class__ is not int:
                break
        else:
            return repr(value)
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(format_attr, value)) + ("," if len(value) == 1 else "") + ")"
    raise VerifyError(f"tile: an attribute must be an int, float, bool, str, dtype, None or a tuple, got {value!r}")


class _Names(dict[Var, str]):
    """Printed names; a value that is not defined yet shows as `%?name`, so that a broken kernel can still be printed."""

    def __missing__(self, var: Var) -> str:
        return f"%?{var.name}"


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = _Names()
        self.types: dict[int, str] = {}  # by id: types are shared, and hashing a frozen dataclass costs more than printing it once
        self.count = self.tokens = 0
        self.lines: list[str] = []

    def text(self) -> str:
        k = self.kernel
        for var in [*k.params, k.pid]:
            if not NAME.fullmatch(var.name):
                raise VerifyError(f"kernel {k.name}: a parameter name must be an identifier, got {var.name!r}")
            self.names[var] = "%" + var.name
        if len(set(self.names.values())) != len(k.params) + 1:
            raise VerifyError(f"kernel {k.name}: parameter names must differ, got {', '.join(v.name for v in [*k.params, k.pid])}")
        if not NAME.fullmatch(k.name):
            raise VerifyError(f"kernel: a name must be an identifier, got {k.name!r}")
        params = ", ".join(f"%{v.name}: {v.type}" for v in k.params)
        self.lines.append(f"kernel @{k.name}({params}) pid %{k.pid.name} {{")
        self.block(k.body, "  ")
        self.lines.append("}\n")
        return "\n".join(self.lines)

    def define(self, var: Var) -> str:
        name = self.names[var] = f"%{self.count}"
        self.count += 1
        return name

    def define_token(self, var: Var) -> str:
        name = self.names[var] = f"!{self.tokens}"
        self.tokens += 1
        return name

    def type(self, t: Type) -> str:
        found = self.types.get(id(t))
        if found is None:
            found = self.types[id(t)] = str(t)
        return found

    def operand(self, o: Operand) -> str:
        return self.names[o] if o.__class__ is Var else str(int(o))  # type: ignore[arg-type]

    def block(self, block: Block, pad: str) -> None:
        lines, names, types, count = self.lines, self.names, self.types, self.count
        for instr in block.body:
            results = instr.results
            if len(results) == 1 and not instr.blocks and not instr.tokens and not instr.tokens_out:  # the common case, without calls
                var = results[0]
                t = var.type
                type_text = types.get(id(t)) or self.type(t)
                ops = ", ".join([names[o] if o.__class__ is Var else str(int(o)) for o in instr.operands])  # type: ignore[arg-type]
                name = names[var] = f"%{count}"
                count += 1
                lines.append(f"{pad}{name} = {instr.op}{' ' if ops else ''}{ops}{_attrs(instr.attrs) if instr.attrs else ''} : {type_text}")
                continue
            self.count = count
            operands = self.tail(instr)
            head = ", ".join([self.define(r) for r in results])
            tokens = ", ".join([self.define_token(t) for t in instr.tokens_out])
            text = f"{pad}{head}{' = ' if head else ''}{instr.op}{operands}"
            if tokens:
                text += f" -> {tokens}"
            if results:
                text += " : " + ", ".join([self.type(r.type) for r in results])
            if instr.blocks:
                lines.append(text + " {")
                for inner in instr.blocks:
                    params = ", ".join([f"{self.define(p)}: {self.type(p.type)}" for p in inner.params])
                    entering = ", ".join([self.define_token(t) for t in inner.token_params])
                    lines.append(f"{pad}^({params}{'; ' + entering if entering else ''})")
                    self.block(inner, pad + "  ")
                lines.append(pad + "}")
            else:
                lines.append(text)
            count = self.count
        self.count = count
        if block.yields or block.token_yields:
            leaving = ", ".join([self.names[t] for t in block.token_yields])
            values = ", ".join([self.operand(y) for y in block.yields])
            lines.append(f"{pad}yield{' ' if values else ''}{values}{'; ' + leaving if leaving else ''}")

    def tail(self, instr: Instr) -> str:
        """Operands, attributes and incoming tokens."""
        out = ", ".join([self.operand(o) for o in instr.operands])
        if out:
            out = " " + out
        if instr.attrs:
            out += _attrs(instr.attrs)
        if instr.tokens:
            out += " after " + ", ".join([self.names[t] for t in instr.tokens])
        return out

    def head(self, instr: Instr) -> str:
        results = ", ".join(self.names[r] for r in instr.results)
        types = ", ".join(str(r.type) for r in instr.results)
        return f"{results}{' = ' if results else ''}{instr.op}{self.tail(instr)}{' : ' if types else ''}{types}"


def _attrs(attrs: dict[str, Any]) -> str:
    if len(attrs) == 1:
        for k, v in attrs.items():
            return f" {{{k}={format_attr(v)}}}"
    return " {" + ", ".join([f"{k}={format_attr(attrs[k])}" for k in sorted(attrs)]) + "}"
