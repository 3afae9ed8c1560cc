"""The ordered list of passes, and the driver that runs it. The order is the design: see each pass's contract."""
from __future__ import annotations

from collections.abc import Callable, Collection

from ..core.config import load as load_config
from ..core.errors import ConfigError
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph
from .absorb_conv import AbsorbIntoConv
from .absorb_masks import AbsorbMasks
from .absorb_matmul import AbsorbIntoMatmul
from .base import Log, Pass
from .cache_attention import CacheAttention
from .canonicalize import Canonicalize
from .control import SimplifyControl, map_bodies
from .cse import Cse, Dce
from .decompose import Decompose
from .drop_ones import DropOnes
from .fold_constants import FoldConstants, FoldTables
from .fold_index import FoldIndex
from .fuse import Fuse
from .integer_products import IntegerProducts
from .join_steps import JoinSteps
from .lower_complex import LowerComplex
from .lower_quantized import LowerQuantized
from .merge_matmuls import MergeMatmuls, SplitLongProducts
from .narrow_concats import NarrowConcats
from .order_scatters import OrderScatters
from .patch_products import PatchProducts
from .quantized_rows import QuantizedRows
from .recognize import Recognize
from .results_in_eights import ResultsInEights
from .row_products import GateProducts, MergePacked, RowProducts
from .save_logsumexp import SaveLogSumExp
from .slice_first import SliceFirst
from .winograd import Winograd


def pipeline(target: TargetSpec | None = None) -> tuple[Pass, ...]:
    """Every pass that runs for a target (None: a CPU), in order."""
    gpu = target is not None and target.kind == "cuda"
    winograd = target is not None and target.kind == "cpu" and load_config().winograd == "on"
    return (
        LowerComplex(),  # no other pass knows complex numbers
        Canonicalize(),
        Cse(),  # equal operands are one value, which patterns rely on
        SimplifyControl(),
        AbsorbIntoMatmul(),  # before folding, which would materialise transposed weights
        *([] if gpu else [IntegerProducts()]),  # before folding, which would dequantize weights
        FoldConstants(),
        AbsorbIntoConv(),
        *([PatchProducts()] if gpu else []),  # padding is known, and gradients of weights are whole
        *([ResultsInEights()] if target is not None and target.cpu == "sm_90a" else []),  # before zeros beside weights fold
        FoldIndex(windows=not gpu),  # a GPU has a block program for elements at known places
        AbsorbMasks(),  # those of attention that came as one op
        Recognize(pixels=gpu),
        AbsorbMasks(),  # again, for attention that was spelled out
        *([SaveLogSumExp(target)] if gpu else []),  # while attention and its backward pass are both whole
        Decompose(target),  # what is left without a kernel of its own
        SimplifyControl(),  # loops that were inside composites
        *([OrderScatters()] if gpu else []),  # before equal orders become one
        FoldConstants(),  # negated masks and the like
        Cse(),  # layers share their tables
        FoldTables(),  # only now: masks wanted to see the iotas
        NarrowConcats(),  # ropes wanted to see concatenations; equal casts become one below
        Canonicalize(),
        Cse(kept=True),
        JoinSteps(),  # equal operands are one value
        LowerQuantized(gpu=gpu),  # may make matmuls
        *([MergePacked()] if gpu else []),
        MergeMatmuls(),
        *([SplitLongProducts(target.cores)] if gpu and target is not None else []),  # now that products are merged
        *([Winograd(target.has("amx-tile", "amx-bf16"), target.multiplies_pairs)] if target is not None and winograd else []),
        *([SliceFirst(), DropOnes()] if gpu else []),
        Fuse(quantizes=not gpu, sweeps=not gpu, rotated_rows=1 if gpu else None, chain=256 if gpu else Fuse.max_ops),
        Dce(),
        *([RowProducts(), Dce(), QuantizedRows(), Dce(), CacheAttention(), GateProducts(), Dce()] if gpu else []),  # what only regions show
    )


def recognized(graph: Graph) -> Graph:
    """The graph of an imported module as derivatives want it: attention and norms that it spells out are composites."""
    for step in (LowerComplex(), Canonicalize(), Cse(), AbsorbIntoMatmul(), FoldIndex(windows=False), AbsorbMasks(), Recognize(),
                 AbsorbMasks(), Dce()):
        graph = step.run(graph, Log())
    return graph


def optional_passes(target: TargetSpec | None = None) -> list[str]:
    """Names that `disable` takes."""
    return list(dict.fromkeys(p.name for p in pipeline(target) if p.optional))


def run_pipeline(graph: Graph, target: TargetSpec | None = None, disable: Collection[str] = (), log: Log | None = None,
                 verify: bool = False, on_pass: Callable[[str, Graph], None] | None = None) -> Graph:
    """The optimised graph (the given one stays as it is). `disable` names optional passes to leave out; `verify` checks the graph
    after each pass; `on_pass(name, graph)` is called after each. The bodies of loops and branches go through all passes too, last.
    `target` is what passes may ask about the machine: which composites have kernels there."""
    known = optional_passes(target)
    for name in disable:
        if name not in known:
            raise ConfigError(f"passes: {name!r} cannot be disabled, the optional passes are {' '.join(known)}")
    log = Log() if log is None else log
    result, _ = graph.clone()
    for p in pipeline(target):
        if p.name in disable:
            continue
        with log.entered(p.name):
            result = p.run(result, log)
        if verify:
            from ..ir.verify import verify as check

            check(result)
        if log.keep_dumps:
            from ..ir.text import to_text

            log.dumps[f"{len(log.dumps):02d}-{p.name}"] = to_text(result)
        if on_pass is not None:
            on_pass(p.name, result)
    if map_bodies(result, lambda body: run_pipeline(body, target, disable, log, verify)) and verify:
        from ..ir.verify import verify as check

        check(result)
    return result
