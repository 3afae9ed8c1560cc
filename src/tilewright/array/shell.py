"""The generated ends of a jitted call: taking arguments apart and putting the result together, for one structure and set of types."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..core.dims import Expr
from ..core.exact import same
from ..core.pytree import Spec, expression, find_class
from ..plan.values import dim_source
from ..transform.trace import Leaf

MISS = "return slow(args, kwargs, out)"


class Ends:
    """`prologue`: lines that set x0, x1, ... from args and kwargs, None for arguments of unknown classes; `result`: the expression of the
    result in y0, y1, ...; `names`: the objects that both refer to."""

    def __init__(self, in_spec: Spec, leaves: Sequence[Any], out_spec: Spec, n_leaves: int, statics: Mapping[int, Any],
                 sizes: Mapping[str, str] | None = None) -> None:
        """`leaves`: a `Leaf` for each array argument, the value itself for a static one; `sizes`: the variable of each dynamic size."""
        self.names: dict[str, Any] = {"array": np.array}
        self.lines: list[str] = []
        self._count = 0
        self._leaf = iter(range(len(leaves)))
        args, kwargs = in_spec.children
        ok = self._apart(args, "args") and self._apart(kwargs, "kwargs")
        arrays = 0
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Leaf):
                if leaf.weak:
                    kind = {"b": bool, "i": int, "f": float, "c": complex}[leaf.type.dtype.kind]
                    self.names[f"D{i}_"] = leaf.type.dtype.np
                    self.lines += [f"if type(l{i}) is not {self._bound(kind)}: {MISS}", f"try: x{arrays} = array(l{i}, D{i}_)",
                                   f"except OverflowError: {MISS}"]
                elif leaf.type.shape == ():  # a NumPy scalar is no array, but as good as one
                    self.lines.append(f"x{arrays} = array(l{i}) if type(l{i}) is {self._bound(leaf.type.dtype.np.type)} else l{i}")
                else:
                    self.lines.append(f"x{arrays} = l{i}")
                arrays += 1
            else:
                value = self._bound(leaf)
                plain = isinstance(leaf, (int, str, bytes)) or (type(leaf) is float and leaf != 0 and leaf == leaf)  # equal is the same
                differs = f"type(l{i}) is not type({value}) or l{i} != {value}" if plain else f"not {self._bound(same)}(l{i}, {value})"
                self.lines.append(f"if l{i} is not {value} and ({differs}): {MISS}")
        results = (f"y{k}" for k in range(n_leaves))
        texts = (next(results) if i not in statics else f"({dim_source(statics[i], sizes or {})})" if isinstance(statics[i], Expr)
                 else self._bound(statics[i]) for i in range(n_leaves))
        self.result = expression(out_spec, texts, self._bound)
        self.prologue = self.lines if ok else None

    def _bound(self, value: Any) -> str:
        self._count += 1
        self.names[f"K{self._count}"] = value
        return f"K{self._count}"

    def _apart(self, spec: Spec, source: str) -> bool:
        """Lines that set l0, l1, ... from the tree named `source`."""
        if spec.type == "leaf":
            self.lines.append(f"l{next(self._leaf)} = {source}")
            return True
        kind = {"tuple": tuple, "list": list, "dict": dict}.get(spec.type) or _named_tuple(spec)
        if kind is None:
            return False
        self.lines.append(f"if type({source}) is not {self._bound(kind)} or len({source}) != {len(spec.children)}: {MISS}")
        if not spec.children:
            return True
        parts = [f"t{self._count}_{i}" for i in range(len(spec.children))]
        if kind is dict:
            get = self._bound(itemgetter(*spec.keys))
            self.lines += [f"try: {', '.join(parts)} = {get}({source})", f"except KeyError: {MISS}"]
        else:
            self.lines.append(f"{', '.join(parts)}, = {source}")
        return all(self._apart(child, part) for child, part in zip(spec.children, parts, strict=True))


def _named_tuple(spec: Spec) -> type[Any] | None:
    cls = find_class(spec.type)
    return cls if cls is not None and issubclass(cls, tuple) and hasattr(cls, "_fields") else None
