"""`import_torch`: a module, callable or ExportedProgram becomes a graph and the signature of its calls."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ...core.dims import Expr, sym
from ...core.dynamic import Axis, Tensor, declared, linear, named
from ...core.errors import CompileError, ConfigError, UnsupportedError
from ...core.extras import need
from ...core.pytree import HOOKS, LEAF, Hook, Spec, class_name
from ...core.signature import Fixed, Signature, Size, Slot
from ...core.torch_context import surroundings
from ...ir.graph import Graph, Value
from ...ir.rewrite import sort_nodes
from ...ir.types import TensorType
from .aten.registry import SEED
from .constants import Constants
from .convert import Converter, Lazy, Missing, Poison
from .export import complete, grown_sizes, parameters, read_program, refuse, run_export, tracing_lock, translate
from .mutation import Aliases, needs_functional
from .place import place_of
from .symbols import Symbols
from .tensors import dtype_of
from .versions import check


# State: programs that write to the module's buffers or to the caller's tensors, made functional.
# torch makes such a program functional: every tensor that it writes to becomes a further output. Norms in training mode write their running
# statistics without saying so in their schema; batch norm has a functional form, instance norm is given one here. What a program writes is
# named in its `updates`; `import_torch` decides what becomes of them.
def functional(program: Any) -> Any:
    """The program itself, or its functional form when it writes to inputs, or in-place writes are seen through views."""
    if not needs_functional(program.graph_module) and not Aliases(program.graph).written_inputs():
        return program
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions({torch.ops.aten.instance_norm.default: _instance_norm})
    except Exception as e:
        raise CompileError(f"torch.export: the model writes to tensors in place and torch could not make that functional: {e}") from e


def _instance_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, momentum: float, eps: float,
                   cudnn_enabled: bool) -> Any:
    """Instance norm with its writes spelled out: running statistics move towards the mean over the batch of each case's own."""
    import torch

    if not use_input_stats:
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
    if mean is not None and var is not None:
        axes = list(range(2, x.ndim))
        mean.copy_((1 - momentum) * mean + momentum * x.mean(axes).mean(0).to(mean.dtype))
        var.copy_((1 - momentum) * var + momentum * x.var(axes).mean(0).to(var.dtype))
    return torch.nn.functional.group_norm(x, x.shape[1], weight, bias, eps)


def updates(program: Any, *, buffers: bool, inputs: bool) -> dict[int, str]:
    """Number of each output that is a new value of something -> the placeholder that it is a new value of.

    `buffers` and `inputs` say whether the caller can do anything with new values of the module's buffers and of its own tensors.
    """
    holes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = dict(zip(holes, program.graph_signature.input_specs, strict=True))
    by_target = {s.target or n.name: n.name for n, s in specs.items()}
    told = [f"{specs[hole].target or hole.name}" + (f" ({where})" if (where := place_of(node)) else "")
            for hole, node in Aliases(program.graph).written_inputs()]
    found: dict[int, str] = {}
    for i, spec in enumerate(program.graph_signature.output_specs):
        kind = spec.kind.name
        if not kind.endswith("_MUTATION"):
            continue
        if {"BUFFER_MUTATION": buffers, "USER_INPUT_MUTATION": inputs}.get(kind, False):
            found[i] = by_target[spec.target]
        else:
            told.append(spec.target or spec.arg.name)
    if told:
        ask = "call module.eval(), or train it with tw.from_torch, which gives the new values" if inputs else "return the new value instead"
        names = ", ".join(dict.fromkeys(told))
        raise UnsupportedError(f"torch: the model writes to {names} in place, which is not supported here; {ask}")
    return found


_PLAIN = (str, int, float, bool, type(None))


def spec_of(tree: Any) -> Spec:
    """Our Spec for a torch TreeSpec."""
    if tree.is_leaf():
        return LEAF
    kind, context = tree.type, tree.context
    children = tuple(spec_of(c) for c in tree.children())
    if kind in (tuple, list):
        return Spec(kind.__name__, (), children)
    if kind is dict:
        return Spec("dict", tuple(context), children)
    if isinstance(context, type) and issubclass(context, tuple):
        return Spec(class_name(context), (), children)  # a namedtuple: its class is the context
    if kind.__name__ == "OrderedDict":
        return Spec(class_name(kind), tuple(context), children)
    return Spec(class_name(kind), _keys(context, kind), children)


def _keys(context: Any, kind: Any) -> tuple[Any, ...]:
    keys = tuple(context) if isinstance(context, (list, tuple)) else (context,)
    if not all(isinstance(k, _PLAIN) for k in keys):
        raise UnsupportedError(f"torch: a {kind.__name__} cannot be an argument or a result here; use tuples, lists and dicts of tensors")
    return keys


def _flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]] | None:
    from torch.utils import _pytree

    found = _pytree.SUPPORTED_NODES.get(type(tree))
    if found is None or type(tree) in (tuple, list, dict):
        return None
    children, context = found.flatten_fn(tree)
    return list(children), _keys(context, type(tree))


def _unflatten(cls: type[Any], keys: tuple[Any, ...], children: list[Any]) -> Any | None:
    from torch.utils import _pytree

    found = _pytree.SUPPORTED_NODES.get(cls)
    return None if found is None else found.unflatten_fn(children, list(keys))


_HOOK = Hook(_flatten, _unflatten)


def install() -> None:
    """Let core.pytree take apart what torch's registry knows. Called by the importer: core itself never imports torch."""
    if _HOOK not in HOOKS:
        HOOKS.append(_HOOK)


@dataclass(frozen=True)
class Imported:
    """What a frontend hands to the compiler."""

    graph: Graph
    signature: Signature
    weights: tuple[str, ...] = ()  # parameters that became the graph's first inputs
    buffers: tuple[tuple[str, int], ...] = ()  # buffers that the module writes, the graph's next inputs, each with the output it becomes

    @property
    def in_spec(self) -> Spec:
        return self.signature.in_spec

    @property
    def out_spec(self) -> Spec:
        return self.signature.out_spec

    @property
    def input_names(self) -> list[str]:
        return list(self.signature.input_names)


def import_torch(target: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, *,
                 dynamic: Mapping[str, Any] | None = None, dynamic_shapes: Any = None, name: str | None = None,
                 weights: Mapping[str, str] | None = None) -> Imported:
    """Import a torch.nn.Module, a callable, an ExportedProgram or the .pt2 file of one.

    `dynamic` maps parameter names to `{axis: Dim}` (nested as the argument is); `dynamic_shapes` is torch.export's own form. `weights`
    (name -> name of the parameter it is tied to, or its own) makes those parameters inputs instead of constants, and buffers that the
    module writes too. Without it, a module that writes to its buffers is an error; one that writes to its arguments has it done.

    Any number of threads may import at once; torch's part of it is done by one at a time.
    """
    refuse(target)
    need("torch", "compile")
    if what := surroundings():
        raise CompileError(f"import_torch: a model cannot be compiled inside {what}; compile it outside, and call the session there")
    with tracing_lock():
        return _import(target, args, kwargs, dynamic, dynamic_shapes, name, weights)


def _import(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic: Mapping[str, Any] | None, dynamic_shapes: Any,
            name: str | None, weights: Mapping[str, str] | None) -> Imported:
    import torch

    check(torch.__version__)
    kwargs = dict(kwargs or {})
    if not isinstance(args, tuple):
        args = tuple(args) if isinstance(args, list) else (args,)
    install()
    if isinstance(target, (str, PathLike)):
        name, target = name or Path(target).stem, read_program(target)
    if isinstance(target, torch.export.ExportedProgram):
        if dynamic is not None or dynamic_shapes is not None:
            raise CompileError("import_torch: an ExportedProgram already has its dynamic dims; give them to torch.export instead")
        return from_program(target, name=name or "program")
    if dynamic is not None and dynamic_shapes is not None:
        raise CompileError("import_torch: give dynamic or dynamic_shapes, not both")
    params = parameters(target)
    kwargs = {k: kwargs[k] for k in (*(p for p in params if p in kwargs), *(k for k in kwargs if k not in params))}
    tree = named(dynamic) if dynamic is not None else dynamic_shapes
    found: list[Axis] = []
    if tree is not None:
        tree, found = _declare(tree, params, args, kwargs)
        args, kwargs = _grow(found, args, kwargs)
    program = run_export(target, args, kwargs, translate(tree) if tree is not None else None)
    label = str(name or getattr(target, "__name__", type(target).__name__))
    return from_program(program, found=found, params=params, name=label, weights=weights)


def _declare(tree: Any, params: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, list[Axis]]:
    """The declaration completed for torch (which wants every argument named), and the axes that it names."""
    import torch
    from torch.utils import _pytree

    counter = itertools.count()
    numbered_args, numbered_kwargs = _pytree.tree_map(
        lambda t: Tensor(next(counter), tuple(t.shape)) if isinstance(t, torch.Tensor) else t, (args, dict(kwargs))
    )
    values = {**dict(zip(params, numbered_args, strict=False)), **numbered_kwargs}
    if isinstance(tree, Mapping):
        unknown = [k for k in tree if k not in values]
        if unknown and len(numbered_args) <= len(params):
            raise ConfigError(f"dynamic: there is no argument {unknown[0]!r}; the arguments are {', '.join(values) or 'none'}")
        found = [a for k, v in values.items() for a in declared(tree.get(k), v, k)]
        return (tree if unknown else complete(tree, values)), found
    return tree, [a for k, t in zip(values, tree, strict=False) for a in declared(t, values[k], k)]


def _grow(found: list[Axis], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with dynamic axes of size 0 or 1 made larger, so that export does not fix them."""
    import torch
    from torch.utils import _pytree

    sizes = grown_sizes(found)
    if not sizes:
        return args, kwargs
    wanted: dict[int, dict[int, int]] = {}
    for a in found:
        if isinstance(a.dim, Expr) and (root := next(iter(a.dim.symbols))) in sizes:
            factor, offset = linear(a.dim)
            wanted.setdefault(a.tensor.index, {})[a.axis] = factor * sizes[root] + offset
    counter = itertools.count()

    def larger(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        for axis, n in wanted.get(next(counter), {}).items():
            shape = [n if i == axis else s for i, s in enumerate(t.shape)]
            t = t.narrow(axis, 0, 1).expand(shape).contiguous() if t.shape[axis] else t.new_zeros(shape)
        return t

    return _pytree.tree_map(larger, (args, kwargs))  # type: ignore[no-any-return]


def from_program(program: Any, *, found: list[Axis] | None = None, params: tuple[str, ...] = (), name: str,
                 weights: Mapping[str, str] | None = None) -> Imported:
    """Convert an ExportedProgram. `found` lists the axes that the user declared dynamic, in the order of the arguments."""
    program = functional(program)
    written = updates(program, buffers=weights is not None, inputs=weights is None)
    graph = Graph(name)
    symbols = Symbols(dict(program.range_constraints))
    constants = Constants(graph)
    in_spec = spec_of(program.call_spec.in_spec)
    module = program.graph_module
    env: dict[Any, Any] = {}
    leaves: list[Slot | Fixed] = []
    names: list[str] = []
    holes = [n for n in module.graph.nodes if n.op == "placeholder"]
    users = [(n, s) for n, s in zip(holes, program.graph_signature.input_specs, strict=True) if s.kind.name == "USER_INPUT"]
    _bind(symbols, users, found or [])
    _name_sizes(symbols, users)
    given: dict[str, Value] = {}
    buffers: dict[str, str] = {}
    for node, spec in zip(holes, program.graph_signature.input_specs, strict=True):
        if spec.kind.name == "PARAMETER" and weights is not None and spec.target in weights:
            own = weights[spec.target]
            if own not in given:
                tensor = _tensor(program, spec)
                shape = tuple(int(n) for n in tensor.shape)
                given[own] = graph.input(TensorType(dtype_of(tensor.dtype), shape), own.replace(".", "_"))
            env[node] = given[own]
        elif spec.kind.name == "BUFFER" and node.name in written.values():
            tensor = _tensor(program, spec)
            buffers[node.name] = spec.target
            env[node] = graph.input(TensorType(dtype_of(tensor.dtype), tuple(map(int, tensor.shape))), node.name)
        elif spec.kind.name == "USER_INPUT":
            env[node] = _input(graph, symbols, node, leaves, names)
        elif spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            env[node] = Lazy(constants, _tensor(program, spec), spec.target or spec.arg.name)
        else:
            raise UnsupportedError(f"torch: input {node.name!r} is a {spec.kind.name.lower()}, which is not supported")
    converter = Converter(graph, symbols, constants)
    converter.context.differentiable = weights is not None
    results = converter.run(module, env)
    converter.problems.check()
    outputs = _outputs(graph, [r for i, r in enumerate(results) if i not in written])
    new = {hole: _new_value(graph, hole, results[i]) for i, hole in written.items()}
    seeded = _seeded(graph, converter.context.seed)
    if seeded:
        label = SEED
        while label in names:
            label += "_"
        names.append(label)
    if not params:
        count = len(in_spec.children[0].children)
        params = tuple(names[:count]) if len(names) >= count and all(c.type == "leaf" for c in in_spec.children[0].children) else ()
    signature = Signature(
        params=params,
        in_spec=in_spec,
        out_spec=spec_of(program.call_spec.out_spec),
        inputs=tuple(leaves),
        outputs=outputs,
        input_names=tuple(names),
        updates=tuple((names.index(k), i) for k, i in new.items() if k not in buffers),
        seeded=seeded,
    )
    return Imported(graph, signature, tuple(given), tuple((name, new[hole]) for hole, name in buffers.items()))


def _seeded(graph: Graph, seed: Value | None) -> bool:
    """Whether a result depends on random numbers. A seed that nothing needs is no input."""
    if seed is None:
        return False
    sort_nodes(graph)
    if graph.users()[seed]:
        return True
    graph.inputs.remove(seed)
    graph.nodes.remove(seed.node)
    return False


def _new_value(graph: Graph, hole: str, value: Any) -> int:
    """The graph output that is the new value of an input or buffer."""
    if not isinstance(value, Value):
        raise UnsupportedError(f"torch: the new value of {hole} depends on what is not supported")
    if value not in graph.outputs:
        graph.outputs.append(value)
    return graph.outputs.index(value)


def _bind(symbols: Symbols, users: list[tuple[Any, Any]], found: list[Axis]) -> None:
    """Give torch's symbols the names and ranges that the user declared."""
    import torch

    tensors = [n.meta["val"] for n, _ in users if isinstance(n.meta.get("val"), torch.Tensor)]
    for a in found:
        size = tensors[a.tensor.index].shape[a.axis]
        ours = a.dim if isinstance(a.dim, Expr) else _from_torch(a.dim)
        if ours is not None:
            symbols.bind(size.node.expr if isinstance(size, torch.SymInt) else size, ours, a.where)


def _name_sizes(symbols: Symbols, users: list[tuple[Any, Any]]) -> None:
    """torch calls sizes s77 and the like. Users see the name of their Dim where torch still knows it, else their input's name and axis."""
    import torch

    sizes = [(n.name, axis, s.node) for n, _ in users if isinstance(n.meta.get("val"), torch.Tensor)
             for axis, s in enumerate(n.meta["val"].shape) if isinstance(s, torch.SymInt)]
    for alone in (True, False):  # sizes that are a symbol first, then symbols that only occur inside expressions
        for name, axis, node in sizes:
            known = getattr(node.shape_env, "source_name_to_debug_name", {}).get(f"L['{name}'].size()[{axis}]", "")
            wanted = known if known.isidentifier() else f"{name}_{axis}"
            if node.expr.is_Symbol or not alone:
                for symbol in sorted(node.expr.free_symbols, key=str):
                    symbols.name(symbol, wanted, f"{name}.shape[{axis}]")


def _from_torch(dim: Any) -> Expr | None:
    """Our symbol for a named torch.export.Dim; None for AUTO, STATIC, ints and derived dims (they keep torch's names)."""
    label = getattr(dim, "__name__", None)
    if not isinstance(label, str) or not label.isidentifier() or not hasattr(dim, "min") or type(dim).__name__ == "_DerivedDim":
        return None
    return sym(label, int(dim.min), min(int(dim.max), 1 << 62))


def _input(graph: Graph, symbols: Symbols, node: Any, leaves: list[Slot | Fixed], names: list[str]) -> Any:
    import torch

    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor):
        leaves.append(Slot(len(names)))
        names.append(node.name)
        return graph.input(TensorType(dtype_of(fake.dtype), symbols.shape(fake.shape)), node.name)
    if fake is None or isinstance(fake, (bool, int, float, str)):
        leaves.append(Fixed(fake))
        return fake
    raise UnsupportedError(
        f"torch: input {node.name!r} is a dynamic {type(fake).__name__}; only tensors can vary: pass it as a tensor, or make it static"
    )


def _tensor(program: Any, spec: Any) -> Any:
    found = program.state_dict.get(spec.target)
    return program.constants[spec.target] if found is None else found


def _outputs(graph: Graph, results: list[Any]) -> tuple[Slot | Fixed | Size, ...]:
    seen: dict[Value, int] = {}
    out: list[Slot | Fixed | Size] = []
    for r in results:
        if isinstance(r, Value):
            if r not in seen:
                seen[r] = len(graph.outputs)
                graph.outputs.append(r)
            out.append(Slot(seen[r]))
        elif isinstance(r, Expr):
            out.append(Size(r))
        elif r is None or isinstance(r, (bool, int, float, str)):
            out.append(Fixed(r))
        else:
            if isinstance(r, Missing):
                raise UnsupportedError(f"torch: {r.what}")
            kind = "size or flag that depends on the data" if isinstance(r, Poison) else type(r).__name__
            raise UnsupportedError(f"torch: the model returns a {kind}, which is not supported")
    return tuple(out)
