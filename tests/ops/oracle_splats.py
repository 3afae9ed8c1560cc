"""PyTorch's meaning of the ops of Gaussian splatting, pixel by pixel and Gaussian by Gaussian, in operations that autograd sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.ops.row_map import ROWS
from tilewright.ops.splats import TILE, tiles_of


def splat_bin(a: dict[str, Any], rects: Any, order: Any) -> Any:
    """Tiles ask which splats cover them."""
    across, down = tiles_of(a["width"], a["height"])
    ids, starts, entries = [], [], []
    spans = torch.zeros(*order.shape, 2, dtype=torch.int32)
    for c in range(order.shape[0]):
        counts = ((rects[c, :, 1] - rects[c, :, 0]) * (rects[c, :, 3] - rects[c, :, 2])).long()
        first = torch.cumsum(counts[order[c].long()], 0) - counts[order[c].long()]
        spans[c, order[c].long(), 0], spans[c, :, 1] = first.int(), counts.int()
        lists, numbers = [], []
        for tile in range(across * down):
            x, y = tile % across, tile // across
            r = rects[c][order[c].long()]
            here = (r[:, 0] <= x) & (x < r[:, 1]) & (r[:, 2] <= y) & (y < r[:, 3])
            lists.append(order[c][here])
            numbers.append((first + (y - r[:, 2]) * (r[:, 1] - r[:, 0]) + x - r[:, 0])[here])
        ids.append(torch.cat(lists))
        entries.append(torch.cat(numbers).int())
        starts.append(torch.tensor([0, *torch.cumsum(torch.tensor([len(x) for x in lists]), 0)], dtype=torch.int32))
    return torch.stack(ids), torch.stack(entries), torch.stack(starts), spans


def composite(a: dict[str, Any], *operands: Any) -> Any:
    means, conics, opacities, colors, depths, ids, _, starts, _ = operands
    across, _ = tiles_of(a["width"], a["height"])
    alpha_min, alpha_max, stop = a.get("alpha_min", 1 / 255), a.get("alpha_max", 0.99), a.get("stop", 1e-4)
    images: list[list[Any]] = [[], [], [], []]
    for c in range(means.shape[0]):
        for y in range(a["height"]):
            for x in range(a["width"]):
                tile = y // TILE * across + x // TILE
                left, color, depth, last = means.new_ones(()), means.new_zeros(3), means.new_zeros(()), 0
                for i, g in enumerate(ids[c, starts[c, tile] : starts[c, tile + 1]].long()):
                    d = torch.tensor([x + 0.5, y + 0.5], dtype=means.dtype) - means[c, g]
                    p, q, r = conics[c, g]
                    alpha = torch.clamp(opacities[c, g] * torch.exp(-0.5 * (d @ torch.stack([p * d[0] + q * d[1], q * d[0] + r * d[1]]))),
                                        max=alpha_max)
                    if alpha < alpha_min:
                        continue
                    if left * (1 - alpha) < stop:
                        break
                    color, depth = color + alpha * left * colors[c, g], depth + alpha * left * depths[c, g]
                    left, last = left * (1 - alpha), i + 1
                for image, value in zip(images, (color, depth, left, torch.tensor(last, dtype=torch.int32)), strict=True):
                    image.append(value)
    shape = (means.shape[0], a["height"], a["width"])
    made = [torch.stack(image) for image in images]
    return made[0].reshape(*shape, 3), *(x.reshape(shape) for x in made[1:])


def composite_backward(a: dict[str, Any], *operands: Any) -> Any:
    """Autograd, where the given transmittance and last splats are what the forward pass would give; else its formulas with those given."""
    leaves = [x.detach().double().requires_grad_() for x in operands[:5]]
    with torch.enable_grad():
        across, _ = tiles_of(a["width"], a["height"])
        ids, starts, left, last, *grads = operands[5], operands[7], *operands[9:]
        means, conics, opacities, colors, depths = leaves
        total = means.new_zeros(())
        for c in range(means.shape[0]):
            for y in range(a["height"]):
                for x in range(a["width"]):
                    tile = y // TILE * across + x // TILE
                    part = ids[c, starts[c, tile] : min(starts[c, tile] + last[c, y, x], starts[c, tile + 1])].long()
                    if not len(part):
                        continue
                    d = torch.tensor([x + 0.5, y + 0.5], dtype=torch.float64) - means[c, part]
                    p, q, r = conics[c, part].unbind(-1)
                    power = -0.5 * (p * d[:, 0] ** 2 + 2 * q * d[:, 0] * d[:, 1] + r * d[:, 1] ** 2)
                    alpha = torch.clamp(opacities[c, part] * torch.exp(power), max=a.get("alpha_max", 0.99))
                    alpha = torch.where(alpha >= a.get("alpha_min", 1 / 255), alpha, 0.0)
                    after = torch.cumprod(1 - alpha, 0)
                    before = torch.cat([after.new_ones(1), after[:-1]])
                    own = colors[c, part] @ grads[0][c, y, x].double() + depths[c, part] * grads[1][c, y, x]
                    # the transmittance that is given replaces the one that would follow
                    scale = left[c, y, x].double() / after[-1].detach()
                    total = total + scale * ((alpha * before * own).sum() + after[-1] * grads[2][c, y, x])
        if not total.requires_grad:
            return tuple(torch.zeros_like(x) for x in operands[:5])
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g.to(x.dtype) for x, g in zip(operands, found, strict=False))


def row_map(a: dict[str, Any], *operands: Any) -> Any:
    """The body of the samples, written in PyTorch."""
    x, y, c = (v for o in operands for v in o.unbind(-1))
    lead = (x + y + c).shape
    columns = (x * c + y, torch.exp(x), x * y * c)
    out, at = [], 0
    for count, summed in zip(a["groups"], a["summed"], strict=True):
        part = torch.stack([v.expand(lead) for v in columns[at : at + count]], -1)
        out.append(torch.stack([part[:, i : i + ROWS].sum(1) for i in range(0, lead[1], ROWS)], 1) if summed else part)
        at += count
    return tuple(out)


SPLATS: dict[str, Callable[..., Any]] = {"splat_bin": splat_bin, "splat_rasterize": composite,
                                         "splat_rasterize_backward": composite_backward, "row_map": row_map}
