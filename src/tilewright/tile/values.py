"""What a kernel's author holds: index values, tiles, views and loops. Python operators on them append instructions."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.dtypes import DType
from .ir import TileType, Var, ViewType

if TYPE_CHECKING:
    from .builder import KernelBuilder


class Ix:
    """An index value inside a kernel."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    def __add__(self, o: Ix | int) -> Ix | int:
        return self.b.index_op("add", self, o)

    def __radd__(self, o: int) -> Ix | int:
        return self.b.index_op("add", self, o)

    def __sub__(self, o: Ix | int) -> Ix | int:
        return self.b.index_op("sub", self, o)

    def __rsub__(self, o: int) -> Ix | int:
        return self.b.index_op("sub", o, self)

    def __mul__(self, o: Ix | int) -> Ix | int:
        return self.b.index_op("mul", self, o)

    def __rmul__(self, o: int) -> Ix | int:
        return self.b.index_op("mul", self, o)

    def __floordiv__(self, o: Ix | int) -> Ix | int:
        return self.b.index_op("floordiv", self, o)

    def __mod__(self, o: Ix | int) -> Ix | int:
        return self.b.index_op("mod", self, o)

    def __rfloordiv__(self, o: int) -> Ix | int:
        return self.b.index_op("floordiv", o, self)

    def __rmod__(self, o: int) -> Ix | int:
        return self.b.index_op("mod", o, self)


class Tile:
    """A tile value inside a kernel. Operators broadcast like NumPy on the static shapes."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    @property
    def type(self) -> TileType:
        assert isinstance(self.var.type, TileType)
        return self.var.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __add__(self, o: Tile | float) -> Tile:
        return self.b.binary("add", self, o)

    def __radd__(self, o: float) -> Tile:
        return self.b.binary("add", o, self)

    def __sub__(self, o: Tile | float) -> Tile:
        return self.b.binary("sub", self, o)

    def __rsub__(self, o: float) -> Tile:
        return self.b.binary("sub", o, self)

    def __mul__(self, o: Tile | float) -> Tile:
        return self.b.binary("mul", self, o)

    def __rmul__(self, o: float) -> Tile:
        return self.b.binary("mul", o, self)

    def __truediv__(self, o: Tile | float) -> Tile:
        return self.b.binary("div", self, o)

    def __rtruediv__(self, o: float) -> Tile:
        return self.b.binary("div", o, self)

    def __neg__(self) -> Tile:
        return self.b.unary("neg", self)


class View:
    """A view inside a kernel: its type's unknown strides are words of the argument block (or index values)."""

    __slots__ = ("b", "var")

    def __init__(self, b: KernelBuilder, var: Var) -> None:
        self.b, self.var = b, var

    @property
    def type(self) -> ViewType:
        assert isinstance(self.var.type, ViewType)
        return self.var.type


class Loop:
    """Handle of a `for`: `index`, `carried` inside the body; `results` after it."""

    def __init__(self, index: Ix, carried: list[Any]) -> None:
        self.index, self.carried = index, carried
        self.results: list[Any] = []
        self._yields: list[Any] | None = None

    def next(self, *values: Any) -> None:
        """Give the carried values of the next iteration."""
        self._yields = list(values)
