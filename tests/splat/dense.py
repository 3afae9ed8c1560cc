"""Gaussian splatting in PyTorch, float64, every Gaussian at every pixel: the meaning of `tw.splat_render`, differentiated by autograd.

Matrices are multiplied as the textbook writes them, nothing is binned and nothing ends early except by the rule itself. `doubtful` marks
pixels where a decision (drawn or not, ended or not) is so close that f32 may take the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

DOUBT = 2e-4


@dataclass
class Scene:
    """Inputs by name; f32, as the kernels get them."""

    arrays: dict[str, Any]
    width: int
    height: int
    options: dict[str, Any]


NAMES = ("means", "scales", "quats", "opacities", "sh", "viewmats", "intrinsics")


def harmonics(d: Tensor, degree: int) -> Tensor:
    """Real spherical harmonics from Legendre polynomials, with the sign (-1)^m."""
    from math import factorial, pi, sqrt

    x, y, z = d.unbind(-1)
    radius = torch.sqrt(x * x + y * y)
    phi = torch.atan2(y, x)
    out = []
    for l in range(degree + 1):
        for m in range(-l, l + 1):
            k = abs(m)
            norm = sqrt((2 * l + 1) / (4 * pi) * factorial(l - k) / factorial(l + k))
            angle = torch.sin(k * phi) if m < 0 else torch.cos(k * phi)
            out.append((sqrt(2) if m else 1) * norm * legendre(l, k, z, radius) * angle * (-1) ** k)
    return torch.stack(out, -1)


def legendre(l: int, m: int, z: Tensor, radius: Tensor) -> Tensor:
    """Associated Legendre polynomials without the Condon-Shortley sign."""
    found: dict[tuple[int, int], Tensor] = {(0, 0): torch.ones_like(z)}
    for k in range(1, m + 1):
        found[k, k] = (2 * k - 1) * radius * found[k - 1, k - 1]
    if l == m:
        return found[m, m]
    found[m + 1, m] = (2 * m + 1) * z * found[m, m]
    for k in range(m + 2, l + 1):
        found[k, m] = ((2 * k - 1) * z * found[k - 1, m] - (k + m - 1) * found[k - 2, m]) / (k - m)
    return found[l, m]


def rotation(q: Tensor) -> Tensor:
    w, x, y, z = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z),
            2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def render(p: dict[str, Tensor], width: int, height: int, *, camera: str = "pinhole", antialias: bool = False, near: float = 0.01,
           far: float = 1e10, blur: float = 0.3, alpha_min: float = 1 / 255, alpha_max: float = 0.99, stop: float = 1e-4,
           background: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Colour [H,W,3], depth, alpha [H,W] of one camera, and the doubtful pixels."""
    finite = torch.stack([p[n].detach().reshape(len(p[n]), -1).isfinite().all(-1) for n in NAMES[:4]]).all(0)
    finite &= p["quats"].detach().norm(dim=-1) > 0
    view, k = p["viewmats"], p["intrinsics"]
    keep = finite.nonzero()[:, 0]
    seen = p["means"][keep] @ view[:3, :3].T + view[:3, 3]
    keep = keep[(seen[:, 2] > near) & (seen[:, 2] < far)]
    x = p["means"][keep] @ view[:3, :3].T + view[:3, 3]
    r, s = rotation(p["quats"][keep]), torch.diag_embed(p["scales"][keep])
    sigma = r @ s @ s.mT @ r.mT
    fx, fy, cx, cy = k[0, 0], k[1, 1], k[0, 2], k[1, 2]

    def project(v: Tensor) -> Tensor:
        if camera == "pinhole":
            return torch.stack([fx * v[..., 0] / v[..., 2] + cx, fy * v[..., 1] / v[..., 2] + cy], -1)
        flat = torch.sqrt(v[..., 0] ** 2 + v[..., 1] ** 2)
        scale = torch.atan2(flat, v[..., 2]) / flat
        return torch.stack([fx * v[..., 0] * scale + cx, fy * v[..., 1] * scale + cy], -1)

    at = x
    if camera == "pinhole":  # the Jacobian is taken at most 1.3 fields of view from the axis
        u = torch.minimum(torch.maximum(x[:, 0] / x[:, 2], -cx / fx - 0.15 * width / fx), (width - cx) / fx + 0.15 * width / fx)
        v = torch.minimum(torch.maximum(x[:, 1] / x[:, 2], -cy / fy - 0.15 * height / fy), (height - cy) / fy + 0.15 * height / fy)
        at = torch.stack([u * x[:, 2], v * x[:, 2], x[:, 2]], -1)
    jacobian = torch.stack([torch.func.vmap(torch.func.jacfwd(lambda v, i=i: project(v)[i]))(at) for i in range(2)], 1)
    t = jacobian @ view[:3, :3]
    flat = t @ sigma @ t.mT
    wide = flat + blur * torch.eye(2, dtype=flat.dtype)
    opacity = p["opacities"][keep]
    if antialias:
        opacity = opacity * torch.sqrt(torch.clamp(torch.det(flat), min=1e-300) / torch.det(wide))
    conic = torch.linalg.inv(wide)
    eye = -view[:3, :3].T @ view[:3, 3]
    direction = torch.nn.functional.normalize(p["means"][keep] - eye, dim=-1)
    sh = torch.nan_to_num(p["sh"][keep], 0, 0, 0)
    color = torch.clamp(torch.einsum("nk,nkc->nc", harmonics(direction, int(sh.shape[1] ** 0.5) - 1), sh) + 0.5, min=0)
    order = torch.argsort(x[:, 2].detach(), stable=True)
    pixels = torch.stack(torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy"), -1).double()
    d = pixels[:, :, None] - project(x)[order]
    power = -0.5 * torch.einsum("hwni,nij,hwnj->hwn", d, conic[order], d)
    raw = opacity[order] * torch.exp(power)
    alpha = torch.clamp(raw, max=alpha_max)
    drawn = alpha >= alpha_min
    doubtful = ((raw.detach() / alpha_min - 1).abs() < DOUBT).any(-1) | ((raw.detach() / alpha_max - 1).abs() < DOUBT).any(-1)
    left = torch.ones(height, width, dtype=torch.float64)
    out, depth, alive = torch.zeros(height, width, 3, dtype=torch.float64), torch.zeros_like(left), torch.ones_like(left, dtype=torch.bool)
    for i in range(alpha.shape[-1]):
        a = torch.where(drawn[..., i], alpha[..., i], 0.0)
        after = left * (1 - a)
        doubtful |= alive & ((after.detach() / stop - 1).abs() < 100 * DOUBT)
        alive = alive & ~(drawn[..., i] & (after.detach() < stop))
        weight = torch.where(alive, a * left, 0.0)
        out = out + weight[..., None] * color[order[i]]
        depth = depth + weight * x[order[i], 2]
        left = torch.where(alive, after, left)
    if background is not None:
        out = out + left[..., None] * background
    return out, depth, 1 - left, doubtful


def look_at(eye: Any, target: Any = (0, 0, 0), up: Any = (0, 1, 0)) -> Any:
    """A world-to-camera matrix: x right, y down, z forward."""
    eye, target, up = (np.asarray(v, float) for v in (eye, target, up))
    z = (target - eye) / np.linalg.norm(target - eye)
    x = np.cross(z, up) / np.linalg.norm(np.cross(z, up))
    r = np.stack([x, np.cross(z, x), z])
    return np.block([[r, -(r @ eye)[:, None]], [np.zeros((1, 3)), 1.0]])


def random_scene(rng: np.random.Generator, *, count: int, width: int, height: int, degree: int = 3, **options: Any) -> Scene:
    """Gaussians around the origin, some behind the camera, seen from a random place."""
    eye = rng.normal(size=3)
    eye *= rng.uniform(2.5, 4) / np.linalg.norm(eye)
    size = max(width, height)
    arrays = {
        "means": rng.normal(size=(count, 3)) * 0.7, "scales": np.exp(rng.uniform(-3.2, -1.2, (count, 3))),
        "quats": rng.normal(size=(count, 4)), "opacities": rng.uniform(0.05, 0.999, count),
        "sh": rng.normal(size=(count, (degree + 1) ** 2, 3)) * 0.3,
        "viewmats": look_at(eye, rng.normal(size=3) * 0.2, rng.normal(size=3)),
        "intrinsics": np.array([[size * rng.uniform(0.8, 1.3), 0, width * rng.uniform(0.4, 0.6)],
                                [0, size * rng.uniform(0.8, 1.3), height * rng.uniform(0.4, 0.6)], [0, 0, 1]]),
    }
    if count > 4:
        arrays["means"][0] = eye * 1.5  # behind
    return Scene({k: v.astype(np.float32) for k, v in arrays.items()}, width, height, options)
