"""Dataclasses that are made when a class is first used are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import threading
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, ClassVar

import pytest

from tilewright.core import records
from tilewright.core.records import dataclass


def classes(library: Any) -> tuple[Any, ...]:
    dataclass, field = library.dataclass, library.field

    @dataclass(frozen=True)
    class Point:
        x: int
        y: float = field(default=2.0, repr=False)
        note: str = field(default="", compare=False)

    @dataclass
    class Open:
        a: list[int] = field(default_factory=list)

    @dataclass(eq=False)
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

    @dataclass(frozen=True)
    class Wide(Point):
        z: int = 0

    class Plain(Wide):
        pass

    @dataclass(frozen=True)
    class Own:
        x: float

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and round(self.x) == round(other.x)

    @dataclass
    class Mixed:
        kind: ClassVar[str] = "mixed"
        a: int
        made: list[int] = field(default_factory=list, init=False)
        b: int = field(default=2, kw_only=True)

        def __post_init__(self) -> None:
            self.made.append(self.a + self.b)

    return Point, Open, Named, Wide, Plain, Own, Mixed


def problem(f: Any) -> Exception | None:
    try:
        f()
    except Exception as e:  # what it is called and says is compared
        return e
    return None


def seen(made: tuple[Any, ...]) -> list[Any]:
    Point, Open, Named, Wide, Plain, Own, Mixed = made
    a, b = Point(1), Point(1, note="other")
    return [repr(a).rpartition(".")[2], a == b, hash(a) == hash(b), a == Point(2), a == Wide(1), Wide(1) == Wide(1, z=3),
            Plain(1) == Plain(1), hash(Plain(1)) == hash(Wide(1)), repr(Plain(1, z=4)).rpartition(".")[2],
            Open().a == [] and Open() == Open(), Open.__hash__,
            repr(Named("n")), Named("n") == Named("n"), Own(1.1) == Own(1.2), hash(Own(1.5)) == hash(Own(1.5)),
            [f.name for f in fields(Wide)], Point.__match_args__, repr(replace(a, x=7)).rpartition(".")[2],
            copy.copy(Wide(3, z=1)) == Wide(3, z=1), dataclasses.is_dataclass(Own), dataclasses.asdict(Plain(1)),
            repr(Mixed(1, b=4)).rpartition(".")[2], Mixed(1) == Mixed(1, b=2), Mixed.kind, Mixed.b,
            list(inspect.signature(Wide).parameters),
            [repr(problem(f)) for f in (lambda: Point(), lambda: Point(1, 2, "", 3), lambda: Point(x=1, z=2), lambda: Mixed(1, 2),
                                        lambda: setattr(a, "x", 2), lambda: setattr(a, "q", 2), lambda: delattr(a, "x"))]]


def test_they_behave_as_those_of_the_standard_library() -> None:
    wanted, made = seen(classes(dataclasses)), classes(records)
    assert seen(made) == wanted
    for c in made:  # many objects later `__init__` is the library's
        for _ in range(2 * records._FEW):
            problem(lambda c=c: c(1))
    assert seen(made) == wanted


def test_the_first_objects_of_a_class_need_no_library() -> None:
    point, opened, *_ = classes(records)
    p = point(1, note="n")
    assert (p.x, p.y, p.note, opened([2]).a, opened().a) == (1, 2.0, "n", [2], [])
    assert records.replace(p, y=3.0) == point(1, 3.0) and [f.name for f in records.fields(p)] == ["x", "y", "note"]
    assert isinstance(vars(point)["__init__"], records._Init) and isinstance(vars(point)["__dataclass_fields__"], records._Later)


def test_a_class_without_objects_has_its_fields_and_is_frozen_from_the_first_one_on() -> None:
    made = classes(records)
    assert [f.name for f in fields(made[3])] == ["x", "y", "note", "z"]
    with pytest.raises(FrozenInstanceError):
        made[3](1).x = 2
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        made[0]()


@dataclass(frozen=True)
class Sent:
    x: int
    y: int = 1


def test_an_object_that_no_init_made_compares_and_prints() -> None:
    data = pickle.dumps(Sent(3)).replace(b"Sent", b"Same")
    found = pickle.loads(data)
    assert found == pickle.loads(data) and hash(found) == hash((3, 1)) and repr(found) == "Same(x=3, y=1)"


@dataclass(frozen=True)
class Same:
    x: int
    y: int = 1


def test_threads_that_use_a_class_first_at_once() -> None:
    interval, problems = sys.getswitchinterval(), list[Exception]()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            point, opened, *_ = classes(records)

            def use(point: Any = point, opened: Any = opened) -> None:
                try:
                    assert point(1) == point(1, 2.0) and replace(opened(), a=[1]).a == [1]
                except Exception as e:  # shown below
                    problems.append(e)

            threads = [threading.Thread(target=use) for _ in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []
