"""Transposed convolutions with steps in tf32 on Hopper: every phase of the result is a plain convolution with the taps that reach it, which
`hopper.py` serves; a phase that no tap reaches is zeros. (Of 16 bits the block program of all phases at once is as fast.)"""

from __future__ import annotations

import itertools
from dataclasses import replace

from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Graph
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ...launch import Launch
from ...pointwise.copies import fill_launch
from ...region import Operand, Region
from ...template import Reason, Template, from_memory
from .hopper import HopperConv


class PhasedConv(Template):
    key = "phased_conv"
    serves = (ConvOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        op, (x, w), y = region.op(ConvOp), region.node.operands, region.node.values[0]
        if (why := from_memory(region)) is not None:
            return why
        if target.cpu != "sm_90a" or x.dtype is not f32 or not target.has("tf32-conv"):
            return Reason("f32 on sm_90a, and precision tf32")
        known = all(isinstance(d, int) and d > 0 for d in (*x.shape[1:], *w.shape, *y.shape[1:]))
        if not op.transposed or op.groups > 1 or {*op.dilation} != {1} or {*op.stride} == {1} or not known or len(x.shape) > 5:
            return Reason("transposed, with steps, without groups and dilation, sizes known")
        if region.given(w).data is not None or region.given(w).packed.form != "plain":
            return Reason("weights of the call")
        parts = self._phases(region)
        return next((why for part in parts if isinstance(part, Region) and (why := HopperConv().refuses(part, target)) is not None), None)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        made: list[Launch] = []
        for i, part in enumerate(self._phases(region)):
            made += HopperConv().build(part, target) if isinstance(part, Region) else [fill_launch(f"{region.name}.phase{i}", 0.0, part, target)]
        return made

    def _phases(self, region: Region) -> list[Region | Operand]:
        """Plain convolutions, or results that are zeros."""
        op, (x, w), (result,) = region.op(ConvOp), map(region.given, region.node.operands), region.results
        found: list[Region | Operand] = []
        for i, phase in enumerate(itertools.product(*map(range, op.stride))):
            seen, taps, out, pads = x.layout, w.layout.permute((1, 0, *range(2, len(w.layout.shape)))), result.layout, []
            for axis, (a, s, (low, _)) in enumerate(zip(phase, op.stride, op.padding, strict=True), 2):
                k, size, whole = taps.shape[axis], seen.shape[axis], out.shape[axis]
                assert isinstance(k, int) and isinstance(size, int) and isinstance(whole, int) and isinstance(low, int)
                first = (a + low) % s
                count, ahead = -(-(k - first) // s), (a + low - first) // s  # taps of the phase, and how far its first pixel sees
                many = -(-(whole - a) // s)
                out, taps = out.slice(axis, a, many, s), taps.slice(axis, first, max(0, count), s).flip(axis)
                begin, end = ahead - (count - 1), ahead + many - 1  # pixels that windows see, the last one included
                start, stop = min(max(begin, 0), size), max(min(end + 1, size), 0)
                seen = seen.slice(axis, start, max(0, stop - start))
                pads.append((start - begin, end + 1 - max(stop, start)))
            part = replace(result, type=result.type.with_shape(out.shape), layout=out)
            if 0 in (*taps.shape, *out.shape) or 0 in seen.shape:
                found.append(part)
                continue
            body = Graph("phase")
            value, weights = (body.input(TensorType(f32, lay.shape), n) for n, lay in (("x", seen), ("w", taps)))
            plain = replace(op, transposed=False, stride=(1,) * len(phase), padding=tuple(pads), output_padding=())
            body.outputs = [plain(value, weights)]
            given = [replace(o, type=TensorType(f32, lay.shape), layout=lay) for o, lay in ((x, seen), (w, taps))]
            found.append(Region(f"{region.name}.phase{i}", body, given, [part]))
        return found
