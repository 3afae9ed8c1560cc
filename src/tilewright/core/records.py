"""`dataclass` as in the standard library, made when a class is first used. Python writes and compiles three to six functions for each
class, which was a third of the time that a program from the cache needs to start. Comparing, hashing and printing need no code of their
own, and classes without objects need none at all. `field`, `fields` and `replace` are the library's.
"""
from __future__ import annotations

import threading
from dataclasses import MISSING, field, fields
from dataclasses import dataclass as standard
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_LOCK = threading.RLock()


def _deferred(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, init: bool = True) -> Any:  # noqa: A002
    def wrap(cls: Any) -> Any:
        own = vars(cls)
        if not init or "__init__" in own:
            return standard(frozen=frozen, eq=eq, repr=repr, init=init)(cls)
        methods = _methods(cls)
        if repr and "__repr__" not in own:
            cls.__repr__ = methods[0]
        if eq:
            hashes = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
            if "__eq__" not in own:
                cls.__eq__ = methods[1]
            if not hashes:
                cls.__hash__ = methods[2] if frozen else None
        for name in ("__init__", "__dataclass_fields__", "__match_args__"):
            setattr(cls, name, _Later(cls, name, frozen))
        return cls

    return wrap if cls is None else wrap(cls)


class _Later:
    """An attribute of a class that is made with the others of its kind when somebody asks for one of them."""

    def __init__(self, cls: type, name: str, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with _LOCK:
            if isinstance(vars(self._cls)["__init__"], _Later):
                _make(self._cls, self._frozen)
        made = vars(self._cls)[self._name]
        return made.__get__(instance, owner) if self._name == "__init__" else made


def _make(cls: Any, frozen: bool) -> None:
    """Everything but `__init__` first, and nothing is ever missing in between: other threads that make an object wait for the lock."""
    cls.__doc__ = cls.__doc__ or cls.__name__  # or the library would write one from `__init__`
    standard(frozen=frozen, eq=False, repr=False, init=False)(cls)
    alike: dict[str, Any] = {"__annotations__": {}, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__name__}
    for f in fields(cls):
        alike["__annotations__"][f.name] = f.type
        given: Any = {"default": f.default} if f.default is not MISSING else {"default_factory": f.default_factory}
        alike[f.name] = field(init=f.init, kw_only=bool(f.kw_only), **given)
    if hasattr(cls, "__post_init__"):
        alike["__post_init__"] = None
    type.__setattr__(cls, "__match_args__", tuple(f.name for f in fields(cls) if f.init and not f.kw_only))
    cls.__init__ = vars(standard(frozen=frozen, eq=False, repr=False)(type(cls.__name__, (), alike)))["__init__"]


def _methods(cls: Any) -> tuple[Any, Any, Any]:
    """`__repr__`, `__eq__` and `__hash__` over the fields of `cls`, whatever a class below it adds."""
    def values(x: Any) -> Any:
        nonlocal values
        names = [f.name for f in fields(cls) if f.compare]
        values = attrgetter(*names) if len(names) > 1 else lambda x: tuple(getattr(x, n) for n in names)  # type: ignore[assignment]
        return values(x)

    @recursive_repr()
    def text(self: Any) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(cls) if f.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def same(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def number(self: Any) -> int:
        return hash(values(self))

    return text, same, number


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _deferred
