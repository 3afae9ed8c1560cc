"""`dataclass`, `field`, `fields` and `replace` as in the standard library, for classes that a start from the cache uses.

The library writes and compiles three to six functions for each class, 0.5 ms, which was a third of the time that a program from the cache
needs to start. Here comparing, hashing, printing and refusing to be written need no code of their own, and the first objects of a class
are filled by one function for all classes. A class of many objects gets the library's `__init__`, and one whose `__dataclass_fields__`
somebody asks for is made by the library then.
"""
from __future__ import annotations

from _thread import RLock
from operator import attrgetter
from reprlib import recursive_repr
from types import MethodType
from typing import TYPE_CHECKING, Any

_LOCK = RLock()
_MISSING: Any = object()
_FEW = 64  # objects of a class before its `__init__` is compiled


class _Field:
    """What a class says of one of its fields."""

    def __init__(self, *, default: Any = _MISSING, default_factory: Any = _MISSING, init: bool = True, repr: bool = True,  # noqa: A002
                 compare: bool = True, kw_only: bool = False, metadata: Any = None) -> None:
        self.default, self.default_factory, self.init, self.repr = default, default_factory, init, repr
        self.compare, self.kw_only, self.metadata, self.name = compare, kw_only, metadata or {}, ""

    def standard(self) -> Any:
        import dataclasses

        given = {k: v for k, v in vars(self).items() if k != "name" and v is not _MISSING}
        return dataclasses.field(**given)


def _deferred(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, init: bool = True) -> Any:  # noqa: A002
    def wrap(cls: Any) -> Any:
        own = vars(cls)
        notes = own.get("__annotations__", {})
        plain = all(isinstance(t, str) and not t.startswith(("InitVar", "KW_ONLY")) for t in notes.values())
        if not (init and plain) or "__init__" in own or "__slots__" in own:
            from dataclasses import dataclass as standard

            for name, value in own.copy().items():
                if isinstance(value, _Field):
                    setattr(cls, name, value.standard())
            return standard(frozen=frozen, eq=eq, repr=repr, init=init)(cls)
        given: dict[str, _Field] = {}
        for name, text in notes.items():
            if not text.startswith("ClassVar"):
                value = own.get(name, _MISSING)
                given[name] = f = value if isinstance(value, _Field) else _Field(default=value)
                f.name = name
                if f is value and f.default is _MISSING:
                    delattr(cls, name)
                elif f is value:
                    setattr(cls, name, f.default)
        cls.__record__ = given
        methods = _methods(cls)
        if repr and "__repr__" not in own:
            cls.__repr__ = methods[0]
        if eq:
            hashes = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
            if "__eq__" not in own:
                cls.__eq__ = methods[1]
            if not hashes:
                cls.__hash__ = methods[2] if frozen else None
        if frozen:
            cls.__setattr__, cls.__delattr__ = methods[3:]
        cls.__init__ = _Init(cls, frozen)
        for name in ("__dataclass_fields__", "__match_args__"):
            setattr(cls, name, _Later(cls, name, frozen))
        return cls

    return wrap if cls is None else wrap(cls)


def _fields(cls: Any) -> tuple[_Field, ...]:
    """Those of the classes above come first, as in the library."""
    cls = cls if isinstance(cls, type) else type(cls)
    found: dict[str, _Field] = {}
    for c in reversed(cls.__mro__):
        own = vars(c)
        if "__record__" in own:
            found.update(own["__record__"])
        elif "__dataclass_fields__" in own:
            import dataclasses

            return tuple(dataclasses.fields(cls))  # type: ignore[arg-type]
    return tuple(found.values())


def _replace(x: Any, /, **changes: Any) -> Any:
    return type(x)(**{f.name: getattr(x, f.name) for f in _fields(type(x)) if f.init} | changes)


class _Later:
    """An attribute of a class that the library makes with the others of its kind when somebody asks for one of them."""

    def __init__(self, cls: type, name: str, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with _LOCK:
            if isinstance(vars(self._cls)["__dataclass_fields__"], _Later):
                _make(self._cls, self._frozen)
        return vars(self._cls)[self._name]


class _Init:
    """`__init__` of the first objects of a class. What it does not expect it leaves to the library's, which has the right errors."""

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls, self._frozen, self._left = cls, frozen, _FEW
        self._names: tuple[str, ...] = ()
        self._rows: list[tuple[str, Any, Any]] | None = None  # name, default, factory; None: not looked at yet, or not plain

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self._left -= 1
        if instance is None or self._left < 0 or (self._rows is None and not self._plain()):
            return self._compiled().__get__(instance, owner)
        return MethodType(self, instance)

    def _plain(self) -> bool:
        fields = _fields(self._cls)
        if not all(isinstance(f, _Field) and f.init and not f.kw_only for f in fields):
            return False
        self._names, self._rows = tuple(f.name for f in fields), [(f.name, f.default, f.default_factory) for f in fields]
        return True

    def __call__(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        rows, values = self._rows or (), dict(zip(self._names, args, strict=False))
        if kwargs or len(args) != len(rows):
            used = 0
            for name, default, factory in rows[len(args):]:
                if name in kwargs:
                    values[name] = kwargs[name]
                    used += 1
                elif default is not _MISSING:
                    values[name] = default
                elif factory is not _MISSING:
                    values[name] = factory()
            if len(values) != len(rows) or len(args) > len(rows) or used != len(kwargs):
                self._compiled()(instance, *args, **kwargs)
                return
        instance.__dict__.update(values)
        if hasattr(instance, "__post_init__"):
            instance.__post_init__()

    def _compiled(self) -> Any:
        with _LOCK:
            if vars(self._cls)["__init__"] is self:
                _make_init(self._cls, self._frozen)
        return vars(self._cls)["__init__"]


def _make(cls: Any, frozen: bool) -> None:
    """The library's `__dataclass_fields__` and what belongs to it."""
    from dataclasses import dataclass as standard

    cls.__doc__ = cls.__doc__ or cls.__name__  # or the library would write one from `__init__`
    for name, f in vars(cls)["__record__"].items():
        setattr(cls, name, f.standard())
    if frozen:
        del cls.__setattr__, cls.__delattr__
    standard(frozen=frozen, eq=False, repr=False, init=False)(cls)
    cls.__match_args__ = tuple(f.name for f in _fields(cls) if f.init and not f.kw_only)  # type: ignore[misc]


def _make_init(cls: Any, frozen: bool) -> None:
    """The library's `__init__`, made for a class of the same fields."""
    from dataclasses import dataclass as standard

    alike: dict[str, Any] = {"__annotations__": {}, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__name__}
    for f in _fields(cls):
        alike["__annotations__"][f.name] = next(vars(c)["__annotations__"][f.name] for c in cls.__mro__
                                                if f.name in vars(c).get("__annotations__", ()))
        alike[f.name] = f.standard() if isinstance(f, _Field) else f
    if hasattr(cls, "__post_init__"):
        alike["__post_init__"] = None
    cls.__init__ = vars(standard(frozen=frozen, eq=False, repr=False)(type(cls.__name__, (), alike)))["__init__"]


def _methods(cls: Any) -> tuple[Any, ...]:
    """`__repr__`, `__eq__`, `__hash__`, `__setattr__` and `__delattr__` over the fields of `cls`, whatever a class below it adds."""
    def values(x: Any) -> Any:
        nonlocal values
        names = [f.name for f in _fields(cls) if f.compare]
        values = attrgetter(*names) if len(names) > 1 else lambda x: tuple(getattr(x, n) for n in names)  # type: ignore[assignment]
        return values(x)

    @recursive_repr()
    def text(self: Any) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in _fields(cls) if f.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def same(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def number(self: Any) -> int:
        return hash(values(self))

    def refuse(self: Any, name: str, how: str, *value: Any) -> None:
        if type(self) is cls or any(name == f.name for f in _fields(cls)):
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        getattr(super(cls, self), how)(name, *value)

    def assign(self: Any, name: str, value: Any) -> None:
        refuse(self, name, "__setattr__", value)

    def delete(self: Any, name: str) -> None:
        refuse(self, name, "__delattr__")

    return text, same, number, assign, delete


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
else:
    dataclass, field, fields, replace = _deferred, _Field, _fields, _replace
