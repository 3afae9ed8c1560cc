"""PyTorch's meaning of linear algebra. Vectors whose sign is free get the one that the ops fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def signs(vectors: Any) -> Any:
    """The sign of the largest element of each column, [..., 1, n]."""
    if vectors.shape[-2] == 0 or vectors.numel() == 0:
        return torch.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), dtype=vectors.dtype)
    place = vectors.detach().abs().argmax(-2, keepdim=True)
    return torch.where(torch.take_along_dim(vectors.detach(), place, -2) < 0, -1, 1).to(vectors.dtype)


def symmetric(a: Any) -> Any:
    return (a + a.mH) / 2


def qr(a: dict[str, Any], x: Any) -> Any:
    q, r = torch.linalg.qr(x, "complete" if a.get("complete") else "reduced")
    if not x.is_complex():
        return q, r
    turn = torch.sgn(torch.diagonal(r, dim1=-2, dim2=-1))  # as the op has it: a positive diagonal
    return q * turn[..., None, :], r * turn.conj()[..., None]


def triangular_solve(a: dict[str, Any], x: Any, b: Any) -> Any:
    x = x.triu() if a.get("upper") else x.tril()
    upper = a.get("upper", False)
    if a.get("transpose"):
        x, upper = x.mT, not upper
    return torch.linalg.solve_triangular(x, b, upper=upper, unitriangular=a.get("unit", False))


def lu(a: dict[str, Any], x: Any) -> Any:
    m = x.shape[-2]
    packed, pivots = torch.linalg.lu_factor(x)
    order = torch.arange(m, dtype=torch.int32).expand(*x.shape[:-2], m).clone()
    for at in torch.cartesian_prod(*(torch.arange(d) for d in x.shape[:-2])).reshape(-1, x.ndim - 2) if x.ndim > 2 else [torch.zeros(0)]:
        rows, steps = order[tuple(at.long())], pivots[tuple(at.long())]
        for j, p in enumerate((steps - 1).tolist()):
            rows[[j, p]] = rows[[p, j]]
    return packed, pivots - 1, order


def eigh(a: dict[str, Any], x: Any) -> Any:
    if not a.get("vectors", True):
        return torch.linalg.eigvalsh(symmetric(x))
    w, v = torch.linalg.eigh(symmetric(x))
    return w, v * signs(v)


def eig(a: dict[str, Any], x: Any) -> Any:
    """In the op's order, with its lengths and phases."""
    w, v = torch.linalg.eig(x.double())
    order = torch.argsort(w.detach().imag, stable=True)
    order = torch.take_along_dim(order, torch.argsort(torch.take_along_dim(w.detach().real, order, -1), stable=True), -1)
    w, v = torch.take_along_dim(w, order, -1), torch.take_along_dim(v, order[..., None, :], -1)
    made = [w.real, w.imag]
    if a.get("vectors", True):
        if v.numel():
            top = torch.take_along_dim(v, (v.detach().abs() * 1e9).round().argmax(-2, keepdim=True), -2)
            v = v * (top.abs() / top) / torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        made += [v.real, v.imag]
    return tuple(m.to(x.dtype) for m in made)


def svd(a: dict[str, Any], x: Any) -> Any:
    if not a.get("vectors", True):
        return torch.linalg.svdvals(x)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    sign = signs(u)
    return s, u * sign, vt * sign.mT


LINALG: dict[str, Callable[..., Any]] = {
    "triangular_solve": triangular_solve,
    "lu": lu,
    "solve": lambda a, x, b: torch.linalg.solve(x.mT if a.get("transpose") else x, b),
    "det": lambda a, x: torch.linalg.det(x),
    "pinv": lambda a, x: torch.linalg.pinv(x, atol=a.get("atol", 0.0), rtol=a.get("rtol", 1e-6)),
    "cholesky": lambda a, x: torch.linalg.cholesky(symmetric(x)),
    "qr": qr,
    "eig": eig,
    "geqrf": lambda a, x: tuple(torch.geqrf(x)),
    "eigh": eigh,
    "svd": svd,
}
