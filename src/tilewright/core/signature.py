"""How a call's arguments become a graph's inputs, and a graph's outputs the call's result.

A `Signature` is made by a frontend and used by a session. It is plain data: no object of the frontend's library is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .dims import Dim, Expr, evaluate
from .errors import InputError
from .exact import same
from .pytree import Spec, matches, unflatten
from .records import dataclass
from .seeds import draw_seed


@dataclass(frozen=True)
class Fixed:
    """A leaf whose value was fixed when the model was exported: None, a bool, a number or a string."""

    value: Any


@dataclass(frozen=True)
class Slot:
    """A leaf that is graph input or graph output number `index`."""

    index: int


@dataclass(frozen=True)
class Size:
    """An output leaf that is a Python int computed from dims (`x.shape[0] * 2`)."""

    dim: Dim


@dataclass(frozen=True)
class Signature:
    """`params[i]` names positional argument i; `in_spec` is the structure of `(args, kwargs)`, one entry of `inputs` a leaf."""

    params: tuple[str, ...]
    in_spec: Spec
    out_spec: Spec
    inputs: tuple[Slot | Fixed, ...]
    outputs: tuple[Slot | Fixed | Size, ...]
    input_names: tuple[str, ...]
    updates: tuple[tuple[int, int], ...] = ()  # (graph input, graph output): the caller's array holds the output after the call
    seeded: bool = False  # the last graph input is a random seed, which every call draws anew

    @cached_property
    def n_args(self) -> int:
        return len(self.in_spec.children[0].children)

    @cached_property
    def simple(self) -> bool:
        """Every argument is positional and is itself a graph input, in order: a call's args are the graph's inputs."""
        args, kwargs = self.in_spec.children
        return (
            not self.seeded
            and not kwargs.children
            and all(c.type == "leaf" for c in args.children)
            and self.inputs == tuple(Slot(i) for i in range(len(self.inputs)))
        )

    def declaration(self, index: int, what: Any) -> Any:
        """`what` beside graph input number `index`, in the structure of the arguments: what `dynamic=` takes."""
        def beside(tree: Any) -> Any:
            if isinstance(tree, Slot):
                return what if tree.index == index else None
            if isinstance(tree, dict):
                return {k: found for k, v in tree.items() if (found := beside(v)) is not None} or None
            found = [beside(v) for v in tree] if isinstance(tree, (tuple, list)) else []
            return found if any(x is not None for x in found) else None

        args, kwargs = unflatten(self.in_spec, list(self.inputs))
        return beside({**dict(zip(self.params, args, strict=False)), **kwargs})

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The graph's inputs, in order, from a call's arguments; InputError when the structure or a fixed value differs."""
        if self.simple and not kwargs and len(args) == self.n_args:
            return list(args)
        bound, named = self._bind(args, dict(kwargs or {}))
        leaves: list[Any] = []
        for i, (arg, spec) in enumerate(zip(bound, self.in_spec.children[0].children, strict=True)):
            self._match(arg, spec, leaves, self._param(i))
        for key, spec in zip(self.in_spec.children[1].keys, self.in_spec.children[1].children, strict=True):
            self._match(named[key], spec, leaves, key)
        out: list[Any] = [None] * len(self.input_names)
        for i, (leaf, role) in enumerate(zip(leaves, self.inputs, strict=True)):
            if isinstance(role, Slot):
                out[role.index] = leaf
            elif not same(leaf, role.value):
                raise InputError(
                    f"session: argument leaf {i} ({self._owner(i)!r}) was fixed to {role.value!r} when the model was "
                    f"exported, got {_short(leaf)}; compile again for another value"
                )
        if self.seeded:
            out[-1] = draw_seed(out[:-1])
        return out

    def unflatten(self, outputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> Any:
        """The call's result from the graph's outputs; `sizes` gives each symbol's value (needed for `Size` leaves)."""
        if self.out_spec.type == "leaf" and isinstance(self.outputs[0], Slot):
            return outputs[self.outputs[0].index]
        leaves = [
            outputs[o.index] if isinstance(o, Slot) else o.value if isinstance(o, Fixed) else evaluate(o.dim, sizes or {})
            for o in self.outputs
        ]
        return unflatten(self.out_spec, leaves)

    @property
    def dims(self) -> list[Expr]:
        return [o.dim for o in self.outputs if isinstance(o, Size) and isinstance(o.dim, Expr)]

    def _param(self, i: int) -> str:
        return self.params[i] if i < len(self.params) else f"args[{i}]"

    def _owner(self, leaf: int) -> str:
        args, kwargs = self.in_spec.children
        names = [self._param(i) for i in range(self.n_args)] + list(kwargs.keys)
        for name, spec in zip(names, (*args.children, *kwargs.children), strict=True):
            if leaf < spec.size:
                return str(name)
            leaf -= spec.size
        return "?"

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional arguments may be given by name, and named ones by position, as in the Python signature."""
        wanted = [self._param(i) for i in range(self.n_args)]
        keys = self.in_spec.children[1].keys
        takes = ", ".join([*wanted, *(f"{k}=" for k in keys)])
        for value, name in zip(args[len(wanted) :], self.params[len(wanted) :], strict=False):
            if name not in keys or name in kwargs:
                raise InputError(f"session: takes ({takes}), got {len(args)} positional arguments")
            kwargs[name] = value
        if len(args) > max(len(wanted), len(self.params)):
            raise InputError(f"session: takes ({takes}), got {len(args)} positional arguments")
        bound = list(args[: len(wanted)])
        twice = [name for name in wanted[: len(bound)] if name in kwargs]
        if twice:
            raise InputError(f"session: argument {twice[0]!r} is given by position and by name; takes ({takes})")
        unknown = [k for k in kwargs if k not in keys and k not in wanted]
        if unknown:
            raise InputError(f"session: unexpected argument {unknown[0]!r}; takes ({takes})")
        for name in wanted[len(bound) :]:
            if name not in kwargs:
                raise InputError(f"session: argument {name!r} is missing; takes ({takes})")
            bound.append(kwargs.pop(name))
        for name in keys:
            if name not in kwargs:
                raise InputError(f"session: argument {name!r} is missing; takes ({takes})")
        return bound, kwargs

    def _match(self, arg: Any, spec: Spec, leaves: list[Any], name: str) -> None:
        problem = matches(arg, spec, leaves)
        if problem is not None:
            raise InputError(f"session: argument {name!r}{'' if problem.startswith('[') else ': '}{problem}")


def _short(leaf: Any) -> str:
    if isinstance(leaf, (int, float, str, bool, type(None))):
        return repr(leaf)
    return f"a {type(leaf).__name__}"
