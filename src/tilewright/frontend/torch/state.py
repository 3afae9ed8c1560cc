"""State: programs that write to the module's buffers or to the caller's tensors, made functional.

torch makes such a program functional: every tensor that it writes to becomes a further output. Norms in training mode write their running
statistics without saying so in their schema; batch norm has a functional form, instance norm is given one here. What a program writes is
named in its `updates`; `import_torch` decides what becomes of them.
"""

from __future__ import annotations

import warnings
from typing import Any

from ...core.errors import CompileError, UnsupportedError
from .mutation import Aliases, needs_functional
from .place import place_of


def functional(program: Any) -> Any:
    """The program itself, or its functional form when it writes to inputs, or in-place writes are seen through views."""
    if not needs_functional(program.graph_module) and not Aliases(program.graph).written_inputs():
        return program
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions({torch.ops.aten.instance_norm.default: _instance_norm})
    except Exception as e:
        raise CompileError(f"torch.export: the model writes to tensors in place and torch could not make that functional: {e}") from e


def _instance_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, momentum: float, eps: float,
                   cudnn_enabled: bool) -> Any:
    """Instance norm with its writes spelled out: running statistics move towards the mean over the batch of each case's own."""
    import torch

    if not use_input_stats:
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, momentum, eps)
    if mean is not None and var is not None:
        axes = list(range(2, x.ndim))
        mean.copy_((1 - momentum) * mean + momentum * x.mean(axes).mean(0).to(mean.dtype))
        var.copy_((1 - momentum) * var + momentum * x.var(axes).mean(0).to(var.dtype))
    return torch.nn.functional.group_norm(x, x.shape[1], weight, bias, eps)


def updates(program: Any, *, buffers: bool, inputs: bool) -> dict[int, str]:
    """Number of each output that is a new value of something -> the placeholder that it is a new value of.

    `buffers` and `inputs` say whether the caller can do anything with new values of the module's buffers and of its own tensors.
    """
    holes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = dict(zip(holes, program.graph_signature.input_specs, strict=True))
    by_target = {s.target or n.name: n.name for n, s in specs.items()}
    told = [f"{specs[hole].target or hole.name}" + (f" ({where})" if (where := place_of(node)) else "")
            for hole, node in Aliases(program.graph).written_inputs()]
    found: dict[int, str] = {}
    for i, spec in enumerate(program.graph_signature.output_specs):
        kind = spec.kind.name
        if not kind.endswith("_MUTATION"):
            continue
        if {"BUFFER_MUTATION": buffers, "USER_INPUT_MUTATION": inputs}.get(kind, False):
            found[i] = by_target[spec.target]
        else:
            told.append(spec.target or spec.arg.name)
    if told:
        ask = "call module.eval(), or train it with tw.from_torch, which gives the new values" if inputs else "return the new value instead"
        names = ", ".join(dict.fromkeys(told))
        raise UnsupportedError(f"torch: the model writes to {names} in place, which is not supported here; {ask}")
    return found
