"""Compare an imported graph, run by the interpreter, with the module itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from tilewright.frontend.torch.importer import Imported, import_torch
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.ir.interp import bind_symbols, run
from tilewright.ir.verify import verify

TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """torch without oneDNN: its half-precision kernels die on an illegal instruction on some virtual machines."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def call(imported: Imported, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
    """What a session does, with the interpreter in the middle."""
    inputs = [to_numpy(t) for t in imported.signature.flatten(args, kwargs)]
    sizes = bind_symbols(imported.graph, inputs)
    return imported.signature.unflatten(run(imported.graph, inputs), sizes)


def assert_close(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Same structure; tensors of the same dtype and shape, close to the largest value; other leaves equal."""
    leaves, spec = _pytree.tree_flatten(want)
    mine, my_spec = _pytree.tree_flatten(got)
    assert my_spec == spec
    for a, b in zip(mine, leaves, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            assert a == b
            continue
        wanted = to_numpy(b)
        assert isinstance(a, np.ndarray)
        assert (a.dtype, a.shape) == (wanted.dtype, wanted.shape)
        if not b.is_floating_point():
            np.testing.assert_array_equal(a, wanted)
            continue
        exact = wanted.astype(np.float64)
        finite = exact[np.isfinite(exact)]
        limit = TOLERANCE[b.dtype] if tolerance is None else tolerance
        scale = max(1.0, float(np.abs(finite).max()) if finite.size else 1.0)
        np.testing.assert_allclose(a.astype(np.float64), exact, rtol=limit, atol=limit * scale)


def check(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    more: list[tuple[Any, ...]] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Imported:
    """Import with `args`; the interpreter must agree with torch for `args` and for each of `more`."""
    imported = import_torch(target, args, kwargs, **options)
    verify(imported.graph)
    with torch.no_grad(), plain_kernels():
        for given in [args, *(more or [])]:
            assert_close(call(imported, given, kwargs), target(*given, **(kwargs or {})), tolerance)
    return imported
