"""Attention over pages in PyTorch: sequence by sequence, over the positions that it has."""

from __future__ import annotations

from typing import Any

import torch


def paged_attention(a: dict[str, Any], q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    out, shared = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for i, count in enumerate(lengths.tolist()):
        pages = [torch.cat([x[p] for p in table[i].tolist()], 1)[:, :count] for x in (k, v)]
        keys, values = (x.to(q.dtype).repeat_interleave(shared, 0) for x in pages)
        s = torch.einsum("hqd,hkd->hqk", q[i], keys) * a["scale"]
        if a.get("softcap") is not None:
            s = a["softcap"] * torch.tanh(s / a["softcap"])
        if count:
            out[i] = torch.softmax(s, -1) @ values
    return out
