"""Nested containers: their structure as data (`Spec`) and their leaves as a flat list.

Containers are tuple, list, dict, namedtuple and classes that a frontend knows how to take apart (`Hook`). Everything else is
a leaf, None included. A `Spec` holds plain data only, so it can be saved and read back without the frontend's library.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from .errors import FormatError, InputError
from .records import dataclass


@dataclass(frozen=True)
class Spec:
    """One level of a structure. `type` is "leaf", "tuple", "list", "dict", or "module:Class" for other containers."""

    type: str = "leaf"
    keys: tuple[Any, ...] = ()  # dict: its keys; module:Class: what the class's hook wants back, or () for a namedtuple
    children: tuple[Spec, ...] = ()

    @property
    def size(self) -> int:
        """Number of leaves."""
        return 1 if self.type == "leaf" else sum(c.size for c in self.children)

    def __str__(self) -> str:
        inner = [str(c) for c in self.children]
        if self.type == "leaf":
            return "*"
        if self.type == "tuple":
            return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"
        if self.type == "list":
            return "[" + ", ".join(inner) + "]"
        if self.type == "dict":
            return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(self.keys, inner, strict=True)) + "}"
        return f"{self.type.partition(':')[2]}({', '.join(inner)})"

    def to_data(self) -> Any:
        """Plain lists and scalars, fit for JSON; `from_data` reads them back. TypeError where a key is none."""
        for key in self.keys:
            if not isinstance(key, SCALARS):
                raise TypeError(f"the key {key!r} of a {self.type} is no string, number, boolean or None")
        return "leaf" if self.type == "leaf" else [self.type, list(self.keys), [c.to_data() for c in self.children]]

    @staticmethod
    def from_data(data: Any) -> Spec:
        """Whatever is no structure is a FormatError."""
        if data == "leaf":
            return LEAF
        whole = isinstance(data, list) and [type(x) for x in data] == [str, list, list] and all(isinstance(k, SCALARS) for k in data[1])
        kind, keys, children = data if whole else ("", [], [])
        if kind == "dict":
            whole = len(keys) == len(children) == len(set(keys))
        elif kind in ("tuple", "list"):
            whole = not keys
        if not whole or (":" not in kind and kind not in ("tuple", "list", "dict")):
            raise FormatError(f"pytree: not a structure: {data!r:.60}")
        return Spec(kind, tuple(keys), tuple(map(Spec.from_data, children)))

    def plain(self, *, classes: bool = False) -> Spec:
        """The structure in tuples, lists and dicts. `classes` keeps those whose class is imported already: a file does not decide what is
        imported. The others become dicts where their keys are names, and tuples otherwise."""
        children = tuple(c.plain(classes=classes) for c in self.children)
        if ":" not in self.type or (classes and find_class(self.type) is not None):
            return Spec(self.type, self.keys, children)
        named = len(self.keys) == len(children) > 0 and all(isinstance(k, str) for k in self.keys)
        return Spec("dict", self.keys, children) if named else Spec("tuple", (), children)


SCALARS = (str, int, float, bool, type(None))
LEAF = Spec()


@dataclass(frozen=True)
class Hook:
    """How a frontend takes apart and rebuilds container classes of its library."""

    flatten: Callable[[Any], tuple[list[Any], tuple[Any, ...]] | None]  # object -> children and keys, or None: not mine
    unflatten: Callable[[type[Any], tuple[Any, ...], list[Any]], Any | None]  # class, keys, children -> object, or None: not mine


HOOKS: list[Hook] = []


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """The leaves of `tree`, left to right, and its structure.

    >>> flatten({"a": 1, "b": (2, None)})[0]
    [1, 2, None]
    """
    leaves: list[Any] = []
    try:
        return leaves, _flatten(tree, leaves)
    except RecursionError:
        raise InputError("pytree: an argument holds itself, or too many structures in one another; flatten it first") from None


def _flatten(tree: Any, leaves: list[Any]) -> Spec:
    kind = type(tree)
    if kind is tuple or kind is list:
        return Spec(kind.__name__, (), tuple(_flatten(c, leaves) for c in tree))
    if kind is dict or kind is OrderedDict or kind is defaultdict:  # the last two come back as plain dicts
        return Spec("dict", tuple(tree), tuple(_flatten(c, leaves) for c in tree.values()))
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return Spec(class_name(kind), (), tuple(_flatten(c, leaves) for c in tree))
    for hook in HOOKS:
        found = hook.flatten(tree)
        if found is not None:
            return Spec(class_name(kind), found[1], tuple(_flatten(c, leaves) for c in found[0]))
    leaves.append(tree)
    return LEAF


def unflatten(spec: Spec, leaves: list[Any]) -> Any:
    """Inverse of `flatten`.

    >>> unflatten(flatten({"a": 1, "b": (2, None)})[1], [3, 4, 5])
    {'a': 3, 'b': (4, 5)}
    """
    if spec.size != len(leaves):
        raise InputError(f"pytree: {spec} has {spec.size} leaves, got {len(leaves)}")
    return _unflatten(spec, iter(leaves))


def _unflatten(spec: Spec, leaves: Iterator[Any]) -> Any:
    if spec.type == "leaf":
        return next(leaves)
    children = [_unflatten(c, leaves) for c in spec.children]
    if spec.type == "tuple":
        return tuple(children)
    if spec.type == "list":
        return children
    if spec.type == "dict":
        return dict(zip(spec.keys, children, strict=True))
    return _rebuild(spec, children)


def expression(spec: Spec, leaves: Iterator[str], bind: Callable[[Any], str]) -> str:
    """The text that makes a structure of the texts of its leaves; `bind` gives an object that the text needs a name."""
    if spec.type == "leaf":
        return next(leaves)
    parts = [expression(c, leaves, bind) for c in spec.children]
    if spec.type == "dict":
        return "{" + ", ".join(f"{bind(k)}: {p}" for k, p in zip(spec.keys, parts, strict=True)) + "}"
    every, row = ", ".join(parts), "(" + "".join(f"{p}, " for p in parts) + ")"
    if spec.type in ("tuple", "list"):
        return row if spec.type == "tuple" else f"[{every}]"
    cls = find_class(spec.type)
    if cls is not None and issubclass(cls, tuple):
        if len(getattr(cls, "_fields", ())) == len(parts) > 0:
            return f"{bind(cls)}({every})"
        if getattr(cls, "n_fields", 0) == len(parts) > 0:  # a struct sequence, like the results of torch.max
            return f"{bind(cls)}({row})"
    return f"{bind(partial(_rebuild, spec))}([{every}])"


def _rebuild(spec: Spec, children: list[Any]) -> Any:
    """An object of the class that the spec names; a plain dict or tuple where that class is not imported here."""
    cls = find_class(spec.type)
    try:
        if cls is not None:
            if issubclass(cls, tuple) and hasattr(cls, "_fields"):
                return cls(*children)
            for hook in HOOKS:
                made = hook.unflatten(cls, spec.keys, children)
                if made is not None:
                    return made
    except (TypeError, ValueError, LookupError, AttributeError) as e:
        raise InputError(f"pytree: a {spec.type} cannot be made of {len(children)} parts and the keys {spec.keys!r:.80}: {e}") from e
    named = len(spec.keys) == len(children) and all(isinstance(k, str) for k in spec.keys)
    return dict(zip(spec.keys, children, strict=True)) if named and children else tuple(children)


def class_name(cls: type[Any]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str) -> type[Any] | None:
    """The class `module:Class`, where that module is imported already. Neither a module nor an attribute is made by looking for it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
    return found if isinstance(found, type) else None


def matches(tree: Any, spec: Spec, leaves: list[Any]) -> str | None:
    """Append the leaves of `tree` when it has the structure of `spec` (dicts in any order); else say what differs."""
    if spec.type == "leaf":
        if isinstance(tree, (tuple, list, dict)):
            return f"expected one value, got a {type(tree).__name__}"
        leaves.append(tree)
        return None
    if spec.type == "dict":
        if not isinstance(tree, dict):
            return f"expected a dict with keys {list(spec.keys)}, got a {type(tree).__name__}"
        if len(tree) != len(spec.keys) or any(k not in tree for k in spec.keys):
            return f"expected keys {list(spec.keys)}, got {list(tree)}"
        parts: list[Any] = [tree[k] for k in spec.keys]
    elif spec.type in ("tuple", "list"):
        if not isinstance(tree, (tuple, list)):
            return f"expected a {spec.type} of {len(spec.children)}, got a {type(tree).__name__}"
        parts = list(tree)
    else:
        found = next((f for f in (h.flatten(tree) for h in HOOKS) if f is not None), None)
        if class_name(type(tree)) != spec.type:
            return f"expected a {spec.type.partition(':')[2]}, got a {type(tree).__name__}"
        parts = found[0] if found is not None else list(tree)
    if len(parts) != len(spec.children):
        return f"expected {len(spec.children)} entries, got {len(parts)}"
    for i, (part, child) in enumerate(zip(parts, spec.children, strict=True)):
        problem = matches(part, child, leaves)
        if problem is not None:
            where = spec.keys[i] if spec.type == "dict" else i
            return f"[{where!r}]: {problem}" if not problem.startswith("[") else f"[{where!r}]{problem}"
    return None


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """fn of everything in nested lists, tuples, named tuples and dicts; other containers are leaves."""
    if not isinstance(tree, (list, tuple, dict)):
        return fn(tree)
    if type(tree) in (list, tuple):
        return type(tree)([mapped(fn, x) for x in tree])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(fn, x) for x in tree))
    return {k: mapped(fn, v) for k, v in tree.items()} if type(tree) is dict else fn(tree)
