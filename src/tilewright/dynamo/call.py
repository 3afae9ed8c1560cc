"""The call of a fragment: one generated function from a list of arguments to a list of results.

torch's guards have checked what comes from the caller, so the function reads pointers and sizes, allocates, runs and returns. Tensors that
torch's own kernels made between two fragments may have other strides than their fakes; those are checked. On a GPU the function gives the
addresses to the session, which starts its work on torch's current stream.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from ..core.dims import Dim, evaluate, symbols
from ..core.errors import ExecutionError, UnsupportedError
from ..core.seeds import draw_seed
from ..core.tensors import from_dtype
from ..core.torch_context import allocator
from ..plan.values import dim_source
from ..runtime.arguments import solve
from ..runtime.fastcall import GENERATED
from ..runtime.outputs import is_recycled, recycler
from ..runtime.session import FREE, Session
from . import release
from .fragment import COMPARED, Argument, Fetched, Fixed, Fragment, Laid, Result, Size, Slot, Source, ViewOf, contiguous

Call = Callable[[list[Any]], list[Any]]
_HOLDS = {text: fn for fn, text in COMPARED.items()}


def _tuple(dims: Sequence[Dim], names: dict[str, str]) -> str:
    return "(" + "".join(dim_source(d, names) + ", " for d in dims) + ")"


class Writer:
    """The text of the function, and the names that it uses."""

    def __init__(self, fragment: Fragment, session: Any) -> None:
        self.fragment, self.session, self.on_gpu = fragment, session, fragment.device == "cuda"
        self.names = {name: f"s{k}" for k, name in enumerate(sorted({s.name for s in (*session.interface.symbols, *fragment.shown())}))}
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        plain = all(s.trusted and s.layout is not None for s in fragment.sources) and not self.names
        # the arguments are the graph's inputs, in order, as they are: their addresses are read in one go
        self.parts = [] if self.on_gpu else release.parts(fragment, session)
        fragment.released = frozenset(i for _, dropped in self.parts for i in dropped)
        self.together = plain and [s.arg for s in fragment.sources] == list(range(fragment.arity)) and fragment.arity > 2

    def arguments(self) -> None:
        f = self.fragment
        used = set(f.sizes.values()) | {i for i, _ in f.copies} | {f.sources[t.donor].arg for t in f.targets if t.donor is not None}
        used |= set() if self.together else {s.arg for s in f.sources}
        for r in f.results:
            base = r.base if isinstance(r, ViewOf) else r
            used |= {base.arg} if isinstance(base, Argument) else set()
        if len(used) == self.fragment.arity and used:
            self.lines.append("".join(f"a{i}, " for i in range(self.fragment.arity)) + "= args")
        else:
            self.lines += [f"a{i} = args[{i}]" for i in sorted(used)]

    def symbols(self) -> None:
        """One variable a symbol: an argument, or the size of a tensor."""
        for name, variable in self.names.items():
            if name in self.fragment.counts:
                continue
            if name in self.fragment.sizes:
                self.lines.append(f"{variable} = a{self.fragment.sizes[name]}")
                continue
            for source in self.fragment.sources:
                for axis, d in enumerate(source.shape):
                    found = solve(d, 0) if not isinstance(d, int) else None
                    if found is not None and found[0].name == name and not isinstance(d, int):
                        terms = dict(d.terms)
                        offset, (slope,) = terms.pop((), 0), terms.values()
                        size = f"a{source.arg}.shape[{axis}]"
                        plain = (offset, slope) == (0, 1)
                        self.lines.append(f"{variable} = {size}" if plain else f"{variable} = ({size} - {offset}) // {slope}")
                        break
                else:
                    continue
                break
            else:
                raise UnsupportedError(f"torch.compile: no argument shows the value of {name}")

    def asserts(self, *, early: bool) -> None:
        """What must hold of sizes: of arguments before the program runs, of counts that it finds behind it."""
        for a, kind, b, message in self.fragment.asserts:
            if early is all(s.name not in self.fragment.counts for d in (a, b) for s in symbols(d)):
                self.lines.append(f"if not {dim_source(a, self.names)} {kind} {dim_source(b, self.names)}: raise RuntimeError({message!r})")

    def inputs(self) -> None:
        for k, s in enumerate(self.fragment.sources):
            a = f"a{s.arg}"
            if s.layout is None:
                self.lines.append(f"c{s.arg} = {a}.contiguous()" + (".to(device)" if s.away else ""))
                self.signs(k, s.arg)
            elif s.trusted:
                continue
            elif s.layout.plain:
                self.lines.append(f"c{s.arg} = {a} if {a}.is_contiguous() else {a}.contiguous()")
                self.signs(k, s.arg)
            else:
                shape, strides = _tuple(s.shape, self.names), _tuple(s.strides, self.names)
                self.lines.append(f"c{s.arg} = {a} if {a}.stride() == {strides} else laid({a}, {shape}, {strides})")
                self.signs(k, s.arg)

    def views(self) -> None:
        """Arguments that results are views of, as the views expect them."""
        for arg, (shape, strides) in self.fragment.loose.items():
            a, steps = f"a{arg}", _tuple(strides, self.names)
            self.lines.append(f"v{arg} = {a} if {a}.stride() == {steps} else laid({a}, {_tuple(shape, self.names)}, {steps})")

    def signs(self, k: int, arg: int) -> None:
        """Signs that are not in the memory of input `k`: torch's own ops give conjugate and negative views."""
        odd = f"c{arg}.is_neg()" + (f" or c{arg}.is_conj()" if self.session.interface.inputs[k].dtype.kind == "c" else "")
        self.lines.append(f"if {odd}: c{arg} = c{arg}.resolve_conj().resolve_neg()")

    def outputs(self) -> list[str]:
        """Allocations; the expressions of the outputs' addresses."""
        found = []
        for k, (t, type_) in enumerate(zip(self.fragment.targets, self.session.interface.outputs, strict=True)):
            if t.donor is not None:
                found.append(f"p[{t.donor}]" if self.on_gpu else f"a{self.fragment.sources[t.donor].arg}.data_ptr()")
                continue
            static = all(isinstance(d, int) for d in (*t.shape, *t.strides))
            shape = f"Y{k}" if static else _tuple(t.shape, self.names)
            strides = f"S{k}" if static else _tuple(t.strides, self.names)
            self.scope |= {f"Y{k}": t.shape, f"S{k}": t.strides, f"E{k}": from_dtype()[type_.dtype]}
            if is_recycled(type_) and not self.on_gpu:
                stored = tuple(d for d in type_.shape if isinstance(d, int))
                self.scope[f"R{k}"] = recycler(type_, stored, True)
                plain = stored == t.shape and contiguous(stored) == t.strides  # a square's transpose has its shape, too
                self.lines.append(f"y{k} = R{k}()" + ("" if plain else f".as_strided(Y{k}, S{k})"))
            else:
                self.lines.append(f"y{k} = alloc({shape}, {strides}, E{k})")
            found.append(f"y{k}.data_ptr()")
        return found

    def result(self, r: Result) -> str:
        if isinstance(r, Slot):
            donor = self.fragment.targets[r.index].donor
            return f"y{r.index}" if donor is None else f"a{self.fragment.sources[donor].arg}"
        if isinstance(r, Argument):
            return f"a{r.arg}"
        if isinstance(r, Size):
            return dim_source(r.dim, self.names)
        if isinstance(r, Fixed):
            key = f"F{len(self.scope)}"
            self.scope[key] = r.value
            return key
        base = f"v{r.base.arg}" if isinstance(r.base, Argument) and r.base.arg in self.fragment.loose else self.result(r.base)
        if isinstance(r, Fetched):
            return f"{base}.cpu()"
        if isinstance(r, Laid):
            return f"laid({base}, {r.shape!r}, {r.strides!r})"
        start = f"{base}.storage_offset() + " if isinstance(r.base, Argument) else ""
        shape, strides = _tuple(r.shape, self.names), _tuple(r.strides, self.names)
        return f"{base}.as_strided({shape}, {strides}, {start}{dim_source(r.offset, self.names)})"

    def run_on_cpu(self, pointers: list[str]) -> None:
        f, session, add = self.fragment, self.session, self.lines.append
        if session.shared:
            add("stale()")
        count = len(f.sources) + f.seeded + len(f.targets)
        pointers = pointers + (["seed.ctypes.data"] if f.seeded else []) + self.outputs()
        if not pointers:
            return
        add("try: w = take()")
        add("except IndexError: w = grow()")
        add(f"w.io[:{count}] = ({', '.join(pointers)},)")
        key = self.key()
        add(f"if todo: check(w, {key})")
        job = f"w.job({key})" if session.interface.symbols else "w.fixed"
        if self.parts:
            add("if type(args) is list: args.clear()")  # the list is the call's own
            self.lines += [job] if session.interface.symbols else []
        begin = 0
        for end, dropped in self.parts or [(0, [])]:
            add(f"status = run({f'w.part({begin}, {end})' if end else job})")
            add("if status: settle(status, w)")
            self.lines += [f"a{arg} = c{arg} = None" for arg in dropped]
            begin = end
        if session.executable.error_launches:
            add(f"if {' or '.join(f'w.errors.item({4 * e})' for e in range(len(session.executable.error_launches)))}: fail(w)")
        add("if len(free) < most: give(w)")

    def run_on_gpu(self, pointers: list[str]) -> None:
        """Kernels read 16 bytes at a time: what lies between is copied first, and what the program wrote there copied back."""
        f, add = self.fragment, self.lines.append
        add(f"p = [{', '.join(pointers)}]")
        if pointers:
            tensors = "args" if self.together else f"({''.join(f'{self.holder(s)}, ' for s in f.sources)})"
            add(f"moved = aligned(p, {tensors}) if joined(either, p) & 15 else ()")
        if f.seeded:
            add("p.append(seed.data_ptr())")
        outputs = self.outputs()
        if self.session.interface.symbols:
            add(f"start([*p, {', '.join(outputs)}], dict(zip(symbols, {self.key()})), stream(0))")
        else:
            add(f"launch(*p, {''.join(f'{y}, ' for y in outputs)}stream(0))")
        for donor in [t.donor for t in f.targets if t.donor is not None]:
            add(f"if moved and {donor} in moved: put_back({self.holder(f.sources[donor])}, moved[{donor}])")

    def key(self) -> str:
        return "(" + "".join(f"{self.names[s.name]}, " for s in self.session.interface.symbols) + ")"

    @staticmethod
    def holder(source: Source) -> str:
        """The variable of the tensor whose memory a graph input is."""
        return f"{'a' if source.trusted and source.layout is not None else 'c'}{source.arg}"

    def text(self) -> str:
        f, add = self.fragment, self.lines.append
        if self.on_gpu:
            add("if current(): return elsewhere(call, args)")  # the thread has turned to another GPU, where new memory would lie
        self.arguments()
        self.symbols()
        self.asserts(early=True)
        self.inputs()
        self.views()
        if f.seeded:
            add("seed = alloc((), (), int64).random_()" if self.on_gpu else "seed = draw(())")
        pointers = ["*map(address, args)"] if self.together else [f"{self.holder(s)}.data_ptr()" for s in f.sources]
        (self.run_on_gpu if self.on_gpu else self.run_on_cpu)(pointers)
        for name, (k, most) in f.counts.items():
            known = self.names.setdefault(name, f"s{len(self.names)}")
            add(f"{known} = y{k}.item()")
            add(f"if {known} > {dim_source(most, self.names)}: exceeded({known}, {dim_source(most, self.names)})")
        self.asserts(early=False)
        self.lines += [f"store(a{arg}, y{k})" for arg, k in f.copies]
        add(f"return [{', '.join(map(self.result, f.results))}]")
        return "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)


def make_call(fragment: Fragment, session: Any) -> Call:
    """The function for a session of `fragment.graph`."""
    if session.executable is None:
        return Plain(fragment, session)
    import torch

    writer = Writer(fragment, session)
    text = writer.text()
    names = writer.scope | {"laid": laid, "store": store, "exceeded": exceeded, "draw": draw_seed, "int64": torch.int64,
                            "address": torch._C.TensorBase.data_ptr}
    names |= _gpu_scope(session) if writer.on_gpu else _cpu_scope(session)
    names |= {"elsewhere": _elsewhere, "joined": reduce, "either": operator.or_, "aligned": _aligned, "put_back": _put_back,
              "symbols": [s.name for s in session.interface.symbols]} if writer.on_gpu else {}
    if writer.on_gpu:
        names["launch"] = _first_launch(session, names)
    exec(compile(text, GENERATED, "exec"), names)
    found: Call = names["call"] if writer.on_gpu else names.pop("call")
    return found


def _first_launch(session: Any, names: dict[str, Any]) -> Any:
    """`launch(*addresses, stream)` of a graph of known sizes. The first call loads the program; machine code serves those behind it."""

    def plain(*words: int) -> None:
        names["start"](list(words[:-1]), {}, words[-1])

    def launch(*words: int) -> None:
        plain(*words)
        names["launch"] = names["faster"](session, plain) or plain

    return launch


def _cpu_scope(session: Session) -> dict[str, Any]:
    todo = [True]

    def check(workspace: Any, key: tuple[int, ...]) -> None:
        session._check(workspace, key)
        todo.clear()

    free = session._free
    return {"free": free, "take": free.pop, "give": free.append, "most": FREE, "run": session.pool.run, "grow": session.grow,
            "settle": session.settle, "fail": session.fail, "stale": session._check_weights, "alloc": allocator()[0], "todo": todo,
            "check": check, "device": None}


def _gpu_scope(session: Any) -> dict[str, Any]:
    import torch
    from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]

    return {"alloc": _empty_strided_cuda, "start": session.start, "faster": _faster, "stream": torch._C._cuda_getCurrentRawStream,
            "current": torch._C._cuda_getDevice, "device": torch.device("cuda", 0)}


def _faster(session: Any, plain: Any) -> Any:
    from ..runtime.cuda.native import native_start

    return None if session.model.validation == "strict" else native_start(session, plain)


def _elsewhere(call: Call, args: list[Any]) -> list[Any]:
    import torch

    with torch.cuda.device(0):
        return call(args)


def _memory(x: Any) -> Any:
    """All elements that a tensor spans, as they lie in memory."""
    return x.as_strided((1 + sum(s * (n - 1) for n, s in zip(x.shape, x.stride(), strict=True)),), (1,))


def _aligned(addresses: list[int], tensors: Sequence[Any]) -> dict[int, Any]:
    """Copies of what is not aligned, by its number; `addresses` has theirs then."""
    moved = {}
    for i, x in enumerate(tensors):
        if addresses[i] & 15:
            moved[i] = _memory(x.detach()).clone()
            addresses[i] = moved[i].data_ptr()
    return moved


def _put_back(x: Any, memory: Any) -> None:
    store(_memory(x), memory)


def laid(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The tensor in memory of these strides."""
    import torch

    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def exceeded(count: int, most: int) -> None:
    raise ExecutionError(f"torch.compile: {count} rows were found where the graph has room for {most}, the bound that torch._check or the "
                         "traced sizes gave; raise the bound")


def store(target: Any, value: Any) -> None:
    import torch

    with torch.no_grad():
        target.copy_(value)


class Plain:
    """The same for sessions without a program: through their own calls."""

    def __init__(self, fragment: Fragment, session: Any) -> None:
        self.fragment, self.session = fragment, session

    def given(self, args: list[Any]) -> list[Any]:
        """The session's inputs: what lies in the arguments' memory."""
        inputs = []
        for s in self.fragment.sources:
            x = args[s.arg].detach().resolve_conj().resolve_neg()
            if s.layout is not None:
                for a in s.layout.broadcast:
                    x = x.narrow(a, 0, 1)
                x = x.permute(s.layout.order)
            inputs.append(x.contiguous())
        return inputs

    def __call__(self, args: list[Any]) -> list[Any]:
        import torch

        f, interface = self.fragment, self.session.interface
        env = {name: int(args[i]) for name, i in f.sizes.items()}
        inputs = self.given(args)
        if f.seeded:
            inputs.append(draw_seed(inputs[:1]))
        for type_, x in zip(interface.inputs, inputs, strict=True):
            for d, n in zip(type_.shape, x.shape, strict=True):
                found = None if isinstance(d, int) else solve(d, int(n))
                if found is not None and found[1] is not None:
                    env.setdefault(found[0].name, found[1])
        needed = {s.name: env[s.name] for s in interface.symbols}
        outs = self.session.run_with(needed, *inputs)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        made: list[Any] = []
        for t, y in zip(f.targets, outs, strict=True):
            shape, strides = (tuple(evaluate(d, env) for d in dims) for dims in (t.shape, t.strides))
            y = y.as_strided(shape, strides)
            if t.donor is not None:
                store(args[f.sources[t.donor].arg], y)
            made.append(y)
        for name, (k, most) in f.counts.items():
            env[name] = int(made[k])
            if env[name] > evaluate(most, env):
                exceeded(env[name], evaluate(most, env))
        for left, kind, right, message in f.asserts:
            if not _HOLDS[kind](evaluate(left, env), evaluate(right, env)):
                raise RuntimeError(message)
        for arg, k in f.copies:
            store(args[arg], made[k])

        def result(r: Result) -> Any:
            if isinstance(r, Slot):
                donor = f.targets[r.index].donor
                return made[r.index] if donor is None else args[f.sources[donor].arg]
            if isinstance(r, Argument):
                return args[r.arg]
            if isinstance(r, Fixed):
                return r.value
            if isinstance(r, Size):
                return evaluate(r.dim, env)
            base = result(r.base)
            if isinstance(r.base, Argument) and r.base.arg in f.loose:
                shape, strides = (tuple(evaluate(d, env) for d in dims) for dims in f.loose[r.base.arg])
                base = base if base.stride() == strides else laid(base, shape, strides)
            if isinstance(r, Fetched):
                return base
            if isinstance(r, Laid):
                return laid(base, r.shape, r.strides)
            start = base.storage_offset() if isinstance(r.base, Argument) else 0
            shape, strides = (tuple(evaluate(d, env) for d in dims) for dims in (r.shape, r.strides))
            return torch.as_strided(base, shape, strides, start + evaluate(r.offset, env))

        return [result(r) for r in f.results]
