"""Host code in a small subset of Python, compiled to LLVM text: functions of 64-bit words that call each other and C functions.

Every value is an i64; addresses are numbers. Statements: assignments, `if`, `while`, `for` over a `range` of positive step
(its variable ends at the first number that is not in the range, as in C), `break`, `continue`, `return`. Expressions: integers,
names of locals and of integer constants, arithmetic (`//` and `%` are C's), comparisons (signed), `and`, `or`, `not`, `a if c else b`,
`x[i]` for the i-th word behind the address x (assigned to as well; the name of a block of words is its address), `[a, b]` for the
address of memory of this call that holds these words, `x.f` for the field of a structure at the address x (`fields` says how it is
loaded and from which byte on; fields of 64 bits are assigned to as well), and calls of
    ld8 ld16 ld32 ld64 (address)       loads, zero-extended; ldi32 sign-extends
    st8 st16 st32 st64 (address, v)    stores
    stack(bytes)                       memory of this call, aligned to 64
    call(function, ...)                a call through an address
    min(a, b), max(a, b)
    f64_of_int(v), f32_of_f64(v), f32_of_int(v)   conversions of bit patterns
    copy(to, from, bytes)              memcpy; clear(to, bytes) writes zeros
    address(name)                      of a global block of words or a function
    load64_acquire(address)            atomic accesses: load, store, add, exchange, swap (compare and exchange: whether it did) of 32 or 64
                                       bits, relaxed, acquire, release, both (acquire and release) or ordered; volatile loads and stores
Other names are functions of the module or external C functions. A decorator `inline`, `noinline` or `cold` is an attribute for LLVM.
"""
from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ...core.errors import CompileError
from ...core.syntax import parse_python

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem", ast.BitAnd: "and", ast.BitOr: "or",
           ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}
_LOADS = {"ld8": ("i8", "zext"), "ld16": ("i16", "zext"), "ld32": ("i32", "zext"), "ldi32": ("i32", "sext"), "ld64": ("i64", "")}
_ATOMIC = re.compile("(load|store|add|exchange|swap)(32|64)_(relaxed|acquire|release|both|ordered|volatile)")
_ORDERS = {"relaxed": " monotonic", "acquire": " acquire", "release": " release", "both": " acq_rel", "ordered": " seq_cst", "volatile": ""}
_ATTRIBUTES = {"inline": " alwaysinline", "noinline": " noinline", "cold": " noinline cold"}
_STORES = {"st8": "i8", "st16": "i16", "st32": "i32", "st64": "i64"}
Fields = Mapping[str, tuple[str, int]]


class _Function:
    def __init__(self, node: ast.FunctionDef, functions: Mapping[str, int], constants: Mapping[str, int], blocks: Mapping[str, int],
                 fields: Fields, externals: dict[str, int], exported: bool, attributes: str) -> None:
        self.functions, self.constants, self.blocks, self.fields, self.externals = functions, constants, blocks, fields, externals
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.count = 0
        self.locals: dict[str, str] = {}
        self.loops: list[tuple[str, str]] = []
        self.name = node.name
        names = [a.arg for a in node.args.args]
        for name in names:
            self.entry.append(f"store i64 %a.{name}, ptr {self.slot(name)}")
        self.open = True
        self.body(node.body)
        if self.open:
            self.lines.append("ret i64 0")
        linkage = "" if exported else "internal "
        own = "".join(_ATTRIBUTES[d.id] for d in node.decorator_list if isinstance(d, ast.Name))
        head = f"define {linkage}i64 @{node.name}({', '.join(f'i64 %a.{n}' for n in names)}) nounwind{own} {attributes} {{\nentry:\n"
        self.text = head + "".join(f"  {line}\n" for line in self.entry) + "".join(
            f"{line}\n" if line.endswith(":") else f"  {line}\n" for line in self.lines) + "}\n"

    def slot(self, name: str) -> str:
        if name not in self.locals:
            self.locals[name] = f"%v.{name}"
            self.entry.insert(0, f"%v.{name} = alloca i64, align 8")
        return self.locals[name]

    def fresh(self) -> str:
        self.count += 1
        return f"%t{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def put(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def at(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.open = True

    def jump(self, text: str) -> None:
        if self.open:
            self.lines.append(text)
        self.open = False

    def problem(self, node: ast.AST, what: str) -> CompileError:
        return CompileError(f"host code: {self.name}, line {getattr(node, 'lineno', 0)}: {what}")

    # ---- statements

    def body(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if not self.open:
                break
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.lines.append(f"store i64 {self.value(node.value)}, ptr {self.slot(node.targets[0].id)}")
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = self.binary(node.op, self.value(ast.Name(node.target.id)), self.value(node.value), node)
            self.lines.append(f"store i64 {value}, ptr {self.slot(node.target.id)}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute):
            value = self.value(node.value)
            self.lines.append(f"store i64 {value}, ptr {self.word(node.targets[0])}, align 1")
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript | ast.Attribute):
            at = self.word(node.target)
            value = self.binary(node.op, self.put(f"load i64, ptr {at}, align 1"), self.value(node.value), node)
            self.lines.append(f"store i64 {value}, ptr {at}, align 1")
        elif isinstance(node, ast.If):
            then, other, end = self.label(), self.label(), self.label()
            self.branch(node.test, then, other if node.orelse else end)
            self.at(then)
            self.body(node.body)
            self.jump(f"br label %{end}")
            if node.orelse:
                self.at(other)
                self.body(node.orelse)
                self.jump(f"br label %{end}")
            self.at(end)
        elif isinstance(node, ast.While):
            test, inside, end = self.label(), self.label(), self.label()
            self.jump(f"br label %{test}")
            self.at(test)
            self.branch(node.test, inside, end)
            self.at(inside)
            self.loops.append((test, end))
            self.body(node.body)
            self.loops.pop()
            self.jump(f"br label %{test}")
            self.at(end)
        elif isinstance(node, ast.For):
            self.counted(node)
        elif isinstance(node, ast.Return):
            value = "0" if node.value is None else self.value(node.value)
            self.jump(f"ret i64 {value}")
        elif isinstance(node, ast.Break | ast.Continue):
            self.jump(f"br label %{self.loops[-1][isinstance(node, ast.Break)]}")
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self.value(node.value)
        elif not isinstance(node, ast.Pass):
            raise self.problem(node, f"no statement {type(node).__name__}")

    def counted(self, node: ast.For) -> None:
        if not (isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name)
                and node.iter.func.id == "range"):
            raise self.problem(node, "a loop goes over a range")
        test, inside, following, end = self.label(), self.label(), self.label(), self.label()
        bounds = [self.value(a) for a in node.iter.args]
        start, stop, step = ["0", *bounds, "1"] if len(bounds) == 1 else [*bounds, "1"][:3]
        at = self.slot(node.target.id)
        self.lines.append(f"store i64 {start}, ptr {at}")
        self.jump(f"br label %{test}")
        self.at(test)
        more = self.put(f"icmp slt i64 {self.put(f'load i64, ptr {at}')}, {stop}")
        self.jump(f"br i1 {more}, label %{inside}, label %{end}")
        self.at(inside)
        self.loops.append((following, end))
        self.body(node.body)
        self.loops.pop()
        self.jump(f"br label %{following}")
        self.at(following)
        further = self.put(f"add i64 {self.put(f'load i64, ptr {at}')}, {step}")
        self.lines.append(f"store i64 {further}, ptr {at}")
        self.jump(f"br label %{test}")
        self.at(end)

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        if isinstance(test, ast.BoolOp):
            for part in test.values[:-1]:
                on = self.label()
                if isinstance(test.op, ast.And):
                    self.branch(part, on, no)
                else:
                    self.branch(part, yes, on)
                self.at(on)
            self.branch(test.values[-1], yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.branch(test.operand, no, yes)
        else:
            bit = self.compare(test) if isinstance(test, ast.Compare) else self.put(f"icmp ne i64 {self.value(test)}, 0")
            self.jump(f"br i1 {bit}, label %{yes}, label %{no}")

    # ---- expressions

    def compare(self, node: ast.Compare) -> str:
        if len(node.ops) != 1:
            raise self.problem(node, "one comparison at a time")
        left, right = self.value(node.left), self.value(node.comparators[0])
        return self.put(f"icmp {_COMPARE[type(node.ops[0])]} i64 {left}, {right}")

    def binary(self, op: ast.operator, a: str, b: str, node: ast.AST) -> str:
        if type(op) not in _BINARY:
            raise self.problem(node, f"no operator {type(op).__name__}")
        return self.put(f"{_BINARY[type(op)]} i64 {a}, {b}")

    def value(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return str(int(node.value))
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                return self.put(f"load i64, ptr {self.locals[node.id]}")
            if node.id in self.constants:
                return str(self.constants[node.id])
            if node.id in self.blocks:
                return self.put(f"ptrtoint ptr @{node.id} to i64")
            raise self.problem(node, f"no name {node.id}")
        if isinstance(node, ast.BinOp):
            return self.binary(node.op, self.value(node.left), self.value(node.right), node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.put(f"sub i64 0, {self.value(node.operand)}")
        if isinstance(node, ast.Compare):
            return self.put(f"zext i1 {self.compare(node)} to i64")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.put(f"zext i1 {self.put(f'icmp eq i64 {self.value(node.operand)}, 0')} to i64")
        if isinstance(node, ast.BoolOp | ast.IfExp):
            return self.chosen(node)
        if isinstance(node, ast.Attribute):
            load, offset = self.field(node)
            return self.loaded(load, self.put(f"add i64 {self.value(node.value)}, {offset}"))
        if isinstance(node, ast.Subscript):
            return self.put(f"load i64, ptr {self.word(node)}, align 1")
        if isinstance(node, ast.List):
            at = self.memory(8 * len(node.elts))
            for k, element in enumerate(node.elts):
                value = self.value(element)
                self.lines.append(f"store i64 {value}, ptr {self.pointer(self.put(f'add i64 {at}, {8 * k}'))}, align 8")
            return at
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.called(node.func.id, node)
        raise self.problem(node, f"no expression {type(node).__name__}")

    def chosen(self, node: ast.BoolOp | ast.IfExp) -> str:
        """A value that depends on a condition; of `and` and `or` it is that of the operand that decides, as in Python."""
        slot, end = self.fresh() + ".b", self.label()
        self.entry.insert(0, f"{slot} = alloca i64, align 8")
        if isinstance(node, ast.IfExp):
            yes, no = self.label(), self.label()
            self.branch(node.test, yes, no)
            for label, part in ((yes, node.body), (no, node.orelse)):
                self.at(label)
                self.lines.append(f"store i64 {self.value(part)}, ptr {slot}")
                self.jump(f"br label %{end}")
        else:
            for part in node.values:
                value, following = self.value(part), self.label()
                self.lines.append(f"store i64 {value}, ptr {slot}")
                yes, no = (following, end) if isinstance(node.op, ast.And) else (end, following)
                self.jump(f"br i1 {self.put(f'icmp ne i64 {value}, 0')}, label %{yes}, label %{no}")
                self.at(following)
            self.jump(f"br label %{end}")
        self.at(end)
        return self.put(f"load i64, ptr {slot}")

    def memory(self, size: int) -> str:
        slot = self.fresh() + ".s"
        self.entry.insert(0, f"{slot} = alloca [{size} x i8], align 64")
        return self.put(f"ptrtoint ptr {slot} to i64")

    def field(self, node: ast.Attribute) -> tuple[str, int]:
        if node.attr not in self.fields:
            raise self.problem(node, f"no field {node.attr}")
        return self.fields[node.attr]

    def word(self, node: ast.Subscript | ast.Attribute) -> str:
        """The pointer to a word behind an address."""
        base = self.value(node.value)
        if isinstance(node, ast.Attribute):
            load, at = self.field(node)
            if load != "ld64":
                raise self.problem(node, f"{node.attr} is not a word")
            return self.pointer(self.put(f"add i64 {base}, {at}"))
        index = self.value(node.slice)
        offset = str(8 * int(index)) if index.lstrip("-").isdigit() else self.put(f"mul i64 {index}, 8")
        return self.pointer(self.put(f"add i64 {base}, {offset}"))

    def loaded(self, load: str, address: str) -> str:
        type_, widen = _LOADS[load]
        found = self.put(f"load {type_}, ptr {self.pointer(address)}, align 1")
        return self.put(f"{widen} {type_} {found} to i64") if widen else found

    def pointer(self, value: str) -> str:
        return self.put(f"inttoptr i64 {value} to ptr")

    def atomic(self, what: str, bits: str, order: str, args: Sequence[str]) -> str:
        at, type_, end = self.pointer(args[0]), f"i{bits}", f"{_ORDERS[order]}, align {int(bits) // 8}"
        kind = "volatile" if order == "volatile" else "atomic"
        given = [f"{type_} {a if bits == '64' else self.put(f'trunc i64 {a} to i32')}" for a in args[1:]]
        if what == "store":
            self.lines.append(f"store {kind} {given[0]}, ptr {at}{end}")
            return "0"
        if what == "swap":
            pair = self.put(f"cmpxchg ptr {at}, {given[0]}, {given[1]}{_ORDERS[order]} monotonic, align {int(bits) // 8}")
            return self.put(f"zext i1 {self.put(f'extractvalue {{ {type_}, i1 }} {pair}, 1')} to i64")
        change = "xchg" if what == "exchange" else "add"
        found = self.put((f"load {kind} {type_}, ptr {at}" if what == "load" else f"atomicrmw {change} ptr {at}, {given[0]}") + end)
        return found if bits == "64" else self.put(f"zext i32 {found} to i64")

    def called(self, name: str, node: ast.Call) -> str:
        if name == "stack":
            return self.memory(int(self.value(node.args[0])))
        if name == "address":
            assert isinstance(node.args[0], ast.Name)
            return self.put(f"ptrtoint ptr @{node.args[0].id} to i64")
        args = [self.value(a) for a in node.args]
        if name in _LOADS:
            return self.loaded(name, args[0])
        if name in _STORES:
            type_ = _STORES[name]
            value = args[1] if type_ == "i64" else self.put(f"trunc i64 {args[1]} to {type_}")
            self.lines.append(f"store {type_} {value}, ptr {self.pointer(args[0])}, align 1")
            return "0"
        if (atomic := _ATOMIC.fullmatch(name)) is not None:
            return self.atomic(atomic[1], atomic[2], atomic[3], args)
        if name == "copy":
            to, source = self.pointer(args[0]), self.pointer(args[1])
            self.lines.append(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {args[2]}, i1 false)")
            return "0"
        if name == "clear":
            self.lines.append(f"call void @llvm.memset.p0.i64(ptr {self.pointer(args[0])}, i8 0, i64 {args[1]}, i1 false)")
            return "0"
        if name in ("min", "max"):
            bit = self.put(f"icmp {'slt' if name == 'min' else 'sgt'} i64 {args[0]}, {args[1]}")
            return self.put(f"select i1 {bit}, i64 {args[0]}, i64 {args[1]}")
        if name in ("f64_of_int", "f32_of_int"):
            wide = name[:3] == "f64"
            real = self.put(f"sitofp i64 {args[0]} to {'double' if wide else 'float'}")
            bits = self.put(f"bitcast {'double' if wide else 'float'} {real} to {'i64' if wide else 'i32'}")
            return bits if wide else self.put(f"zext i32 {bits} to i64")
        if name == "f32_of_f64":
            real = self.put(f"fptrunc double {self.put(f'bitcast i64 {args[0]} to double')} to float")
            return self.put(f"zext i32 {self.put(f'bitcast float {real} to i32')} to i64")
        given = ", ".join(f"i64 {a}" for a in args)
        if name == "call":
            given = ", ".join(f"i64 {a}" for a in args[1:])
            return self.put(f"call i64 {self.pointer(args[0])}({given})")
        if name not in self.functions and self.externals.setdefault(name, len(args)) != len(args):
            raise self.problem(node, f"{name} takes {self.externals[name]} arguments")
        return self.put(f"call i64 @{name}({given})")


def compile_host(source: str, constants: Mapping[str, int], blocks: Mapping[str, int], exports: Sequence[str],
                 given: Collection[str] = (), fields: Fields = MappingProxyType({}), attributes: str = "") -> tuple[str, list[str]]:
    """The LLVM text of all functions in a source, and the external functions it calls. `blocks` are exported words, zero at first; `given`
    names functions that the caller writes as LLVM text; `fields` are those of structures: a load and a byte offset; `attributes` stand at
    every function."""
    tree = parse_python(textwrap.dedent(source))
    nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    functions = {n.name: len(n.args.args) for n in nodes}
    externals: dict[str, int] = {}
    texts = [_Function(n, functions, constants, blocks, fields, externals, n.name in exports, attributes).text for n in nodes]
    head = [f"@{name} = global [{count} x i64] zeroinitializer, align 64\n" for name, count in blocks.items()]
    head += [f"declare i64 @{name}({', '.join(['i64'] * n)})\n" for name, n in externals.items() if name not in given]
    head += ["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"]
    return "".join([*head, *texts]), [name for name in externals if name not in given]


