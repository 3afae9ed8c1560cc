"""torch's pytrees as ours: structures of calls and results, Hugging Face outputs and caches included."""

from __future__ import annotations

from typing import Any

from ...core.errors import UnsupportedError
from ...core.pytree import HOOKS, LEAF, Hook, Spec, class_name

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
