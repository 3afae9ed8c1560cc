"""Programs whose kernels are LLVM text written by hand, so that the runtime can be tested without templates or an emitter.

Each kernel runs element by element: program i works on element i.
"""
from __future__ import annotations

from typing import Any

from tilewright.build.code import compile_kernels
from tilewright.build.packing import pack_constants
from tilewright.core.dims import Dim, Symbol, symbols
from tilewright.core.dtypes import f32, i64
from tilewright.core.pytree import LEAF, Spec
from tilewright.core.signature import Signature, Slot
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.launch import Buffer, ConstBuffer, ErrorWord, Launch, Packed, Pointer, Program, Word
from tilewright.ops.structure import ConstantData
from tilewright.runtime.executable import CpuExecutable
from tilewright.runtime.session import Model, Session
from tilewright.target.cpu.host import host_target
from tilewright.tile.ir import INDEX, Kernel, Var

LOOP = """
define void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %head, label %out
head:
{head}
  br label %loop
loop:
  %i = phi i64 [ %begin, %head ], [ %i1, %latch ]
{body}
  br label %latch
latch:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


def words(*names: str) -> str:
    """Load argument words 0, 1, … as pointers (names in lower case) or integers (names in upper case)."""
    lines = []
    for k, name in enumerate(names):
        lines.append(f"  %p{k} = getelementptr i64, ptr %args, i64 {k}")
        lines.append(f"  %{name} = load {'i64' if name.isupper() else 'ptr'}, ptr %p{k}")
    return "\n".join(lines)


def at(result: str, base: str, index: str, kind: str = "float") -> str:
    return f"  %{result}.p = getelementptr {kind}, ptr %{base}, i64 {index}\n  %{result} = load {kind}, ptr %{result}.p\n"


def put(base: str, index: str, value: str, kind: str = "float") -> str:
    return f"  %{base}.o = getelementptr {kind}, ptr %{base}, i64 {index}\n  store {kind} {value}, ptr %{base}.o\n"


BODIES = {
    "copy": (words("x", "y"), at("a", "x", "%i") + put("y", "%i", "%a")),
    "double": (words("x", "y"), at("a", "x", "%i") + "  %b = fadd float %a, %a\n" + put("y", "%i", "%b")),
    "add": (words("x", "c", "y"), at("a", "x", "%i") + at("b", "c", "%i") + "  %s = fadd float %a, %b\n" + put("y", "%i", "%s")),
    # y[i] = x[n-1-i]: every element crosses threads, so a missing barrier shows
    "reverse": (words("x", "y", "N"), "  %j0 = sub i64 %N, %i\n  %j = sub i64 %j0, 1\n" + at("a", "x", "%j") + put("y", "%i", "%a")),
    # y[i] = table[ids[i]]; a bad index is reported and clamped
    "gather": (
        words("ids", "t", "y", "ROWS", "e"),
        at("k", "ids", "%i", "i64")
        + """  %bad = icmp uge i64 %k, %ROWS
  br i1 %bad, label %report, label %fine
report:
  %e2 = getelementptr i64, ptr %e, i64 2
  %e3 = getelementptr i64, ptr %e, i64 3
  store i64 %i, ptr %e2
  store i64 %k, ptr %e3
  store i64 1, ptr %e
  br label %fine
fine:
  %r = phi i64 [ %k, %loop ], [ 0, %report ]
"""
        + at("v", "t", "%r")
        + put("y", "%i", "%v"),
    ),
}


def emit(kernel: Kernel, target: TargetSpec) -> str:
    head, body = BODIES[kernel.params[0].name]
    return LOOP.format(name=kernel.name, head=head, body=body)


def kernel(kind: str) -> Kernel:
    return Kernel(kind, params=[Var(INDEX, kind)])


def launch(kind: str, reads: list[Buffer], y: Buffer, n: Dim, *, extra: tuple[Any, ...] = (), flops: Dim = 10**9,
           inplace: bool = False) -> Launch:
    arguments = (*(Pointer(b, 0, b.nbytes) for b in [*reads, y]), *extra)
    pairs = ((reads[0], y),) if inplace else ()
    return Launch(kind, kernel(kind), arguments, n, tuple(reads), (y,), inplace=pairs, flops=flops, bytes=n * 8)


def signature(*names: str) -> Signature:
    spec = Spec("tuple", (), (Spec("tuple", (), (LEAF,) * len(names)), Spec("dict")))
    return Signature(names, spec, LEAF, tuple(Slot(i) for i in range(len(names))), (Slot(0),), names)


def make_session(program: Program, inputs: list[tuple[str, TensorType]], output: TensorType, **options: Any) -> Session:
    graph = Graph("handmade")
    values = [graph.input(t, name) for name, t in inputs]
    graph.outputs = [values[0] if output == values[0].type else graph.input(output, "result")]
    graph.inputs = values
    target = host_target()
    model = Model("handmade", graph, signature(*(n for n, _ in inputs)), target, "strict")
    code = compile_kernels([k for x in program.launches for k in x.kernels], target, emit)
    return Session(model, CpuExecutable(program, model.interface, code, pack_constants(program.constants)), **options)


def chain_program(
    kinds: str, n: Dim, *, flops: Dim = 10**9, inplace: bool = False
) -> tuple[Program, list[tuple[str, TensorType]], TensorType]:
    """x -> kernel -> kernel -> … -> y, all of n elements; `kinds` is names with spaces between."""
    names = kinds.split()
    size = n * 4
    temps = [Buffer(f"t{k}", "temp", size) for k in range(len(names) - 1)]
    buffers = [Buffer("x", "input", size, 0), *temps, Buffer("y", "output", size, 0)]
    launches = []
    for k, kind in enumerate(names):
        extra = (Word(n),) if kind == "reverse" else ()
        launches.append(launch(kind, [buffers[k]], buffers[k + 1], n, extra=extra, flops=flops, inplace=inplace and kind == "double"))
    return Program([buffers[0]], [buffers[-1]], [], temps, launches), [("x", TensorType(f32, (n,)))], TensorType(f32, (n,))


def chain(kinds: str, n: Dim, *, flops: Dim = 10**9, inplace: bool = False, **options: Any) -> Session:
    return make_session(*chain_program(kinds, n, flops=flops, inplace=inplace), **options)


def embedding(table: Any, n: Dim, **options: Any) -> Session:
    """y[i] = table[ids[i]], with the bounds checked."""
    ids, y = Buffer("ids", "input", n * 8, 0), Buffer("y", "output", n * 4, 0)
    t = Buffer("t", "const", table.nbytes, 0)
    one = launch("gather", [ids, t], y, n, extra=(Word(len(table)), ErrorWord()))
    program = Program([ids], [y], [ConstBuffer(ConstantData(table, "table"), t, Packed())], [], [one])
    return make_session(program, [("ids", TensorType(i64, (n,)))], TensorType(f32, (n,)), **options)


def symbol_of(dim: Dim) -> Symbol:
    (found,) = symbols(dim)
    return found
