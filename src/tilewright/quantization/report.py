"""What quantization did to every layer."""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerReport:
    """`error` is the relative error ‖quantized - float‖ / ‖float‖ of the layer's results on the calibration data; None where it was not
    measured. `reason` says why a layer stayed in float."""

    name: str
    kind: str  # linear, conv
    form: str  # int8, int8 by rows, int8 weights, int4 weights, float
    error: float | None = None
    reason: str = ""


@dataclass
class QuantizationReport:
    """One row a layer, in the order of the model."""

    layers: list[LayerReport] = field(default_factory=list)

    def __getitem__(self, name: str) -> LayerReport:
        found = next((row for row in self.layers if row.name == name), None)
        if found is None:
            raise KeyError(f"no layer {name!r}; layers are {', '.join(row.name for row in self.layers)}")
        return found

    @property
    def quantized(self) -> list[str]:
        return [row.name for row in self.layers if row.form != "float"]

    def __str__(self) -> str:
        width = max([5, *(len(row.name) for row in self.layers)])
        lines = [f"{'layer':{width}s}  {'kind':6s}  {'form':12s}  error"]
        for row in self.layers:
            error = "" if row.error is None else f"{row.error:.2e}"
            lines.append(f"{row.name:{width}s}  {row.kind:6s}  {row.form:12s}  {error:8s}  {row.reason}".rstrip())
        lines.append(f"{len(self.quantized)} of {len(self.layers)} layers quantized")
        return "\n".join(lines)
