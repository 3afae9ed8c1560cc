"""The token graph of the kernels with copies and products in flight: leaving out any wait, fence or arrival is found; so are waits that are
too weak, a wrong phase, a cycle, a swizzled matrix off its place."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from tests.cuda.kernels import case
from tests.cuda.launching import program
from tilewright.core.errors import CompileError
from tilewright.kernels.cuda.kernel import GemmKernel
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.flow import parse
from tilewright.target.cuda.safety.async_safety import check, ordering_ops, waits
from tilewright.target.cuda.safety.token_launch import small_launch
from tilewright.target.cuda.safety.token_state import Launch

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p0)\n{\n.shared .align 128 .b8 scratch[4096];\n"


@cache
def kernel(name: str) -> tuple[str, Launch]:
    """PTX and launch of a case: `case`, `case on chip`, `case which` for one of several, `case on chip which`, `case as cluster`."""
    case_, _, how = name.partition(" ")
    arch = how.split(" ")[1] if how.startswith("on ") else "sm_90a"
    stem = how if how[:3] not in ("on ", "as ") else " ".join(how.split(" ")[2:])
    for one in (k for x in program(case(case_), arch).launches for k in x.kernels if k.name.startswith(stem)):
        if how == "as cluster":
            assert isinstance(one, GemmKernel)
            one = replace(one, cluster=2)
        text = emit_cuda(one, cuda_target(arch))
        launch = small_launch(one, text)
        if launch is not None:
            return text, launch
    raise AssertionError(f"{name} has no kernel with asynchronous work")


# what may go, one by one: a fence right behind another, a second wait for the same, the end of a ring that nobody fills again, warps that
# come together before a barrier or (for racecheck's sake alone) between one thread's uses of it, and of the fences between blocks either
SPARE: dict[str, dict[str, int]] = {
    "matmul_bf16": {},
    "matmul_large as cluster": {},
    "matmul_fp8": {"wgmma.wait_group": 1},
    "matmul_thin": {"mbarrier.arrive": 1},
    "matmul_split": {"mbarrier.arrive": 1},
    "matmul_batched": {},
    "matmul_int8": {},
    "conv": {},
    "conv_weights conv_window": {},
    "linear_rows_dynamic": {},
    "attention_causal": {"wgmma.fence": 2},
    "attention_window": {"wgmma.fence": 2},
    "attention_backward flash_stats": {},
    "attention_backward flash_grad": {"wgmma.fence": 2, "fence.proxy": 2, "fence.acq_rel": 1, "bar.warp": 3},
    "attention_training flash_grad": {"wgmma.fence": 2, "wgmma.wait_group": 1, "fence.proxy": 2, "fence.acq_rel": 1, "bar.warp": 3},
    "attention_row decode": {"griddepcontrol.wait": 1, "bar.warp": 1},
    "attention_training on sm_80 mma_grad": {},
    "conv_groups on sm_80": {},
    "conv_patch": {},
}
QUICK = ("matmul_bf16", "conv_groups on sm_80")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SPARE])
def test_whatever_is_left_out_is_found(name: str) -> None:
    text, launch = kernel(name)
    assert check(text, launch).findings == ()
    (function,) = parse(text)
    numbers = ordering_ops(text)
    spare = [function.ops[i].opcode for i in numbers if not check(text, launch, [i]).findings]
    assert len(numbers) >= 5 and Counter(".".join(x.split(".")[:2]) for x in spare) == SPARE[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SPARE if n not in ("linear_rows_dynamic", "attention_row decode")])
def test_no_wait_for_groups_is_stronger_than_needed(name: str) -> None:
    """One more group in flight, at any place: found, but where the wait could be left out altogether."""
    text, launch = kernel(name)
    places = list(re.finditer(r"(?<=wait_group)(?:\.sync\.aligned|\.read)? (\d+);", text))
    weaker = [text[: m.start(1)] + str(int(m[1]) + 1) + text[m.end(1) :] for m in places]
    assert weaker and [bool(check(x, launch).findings) for x in weaker].count(False) == SPARE[name].get("wgmma.wait_group", 0)


def test_of_the_fences_between_blocks_one_is_needed() -> None:
    text, launch = kernel("attention_backward flash_grad")
    (function,) = parse(text)
    fences = [i for i, op in enumerate(function.ops) if op.opcode == "fence.proxy.async"]
    assert len(fences) == 2 and {f.kind for f in check(text, launch, fences).findings} == {"proxy"}


# (case, what is changed, into what, kind of finding)
CHANGES = [
    ("matmul_bf16", r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 2;", "race"),
    ("matmul_bf16", r"(?<=wgmma\.wait_group\.sync\.aligned) 0;", " 1;", "registers"),
    ("matmul_bf16", r"(?<=cp\.async\.bulk\.wait_group\.read) 1;", " 2;", "race"),
    ("matmul_bf16", r"(expect_tx.shared::cta.b64 _, \[%r\d+\]), (\d+);", r"\1, 16;", "stuck"),
    ("matmul_bf16", r"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\+136\]), 1;", r"\1, 2;", "stuck"),
    ("matmul_bf16", r"(mov\.u32 %r\d+), 1;", r"\1, 0;", "stuck"),  # the producer waits for a stage that nobody has read
    ("matmul_bf16", r"\.align 1024 \.b8 ring(.*?)-1024;", r".align 128 .b8 ring\1-128;", "use"),
    ("attention_causal", r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 2;", "registers"),
    ("attention_training on sm_80 mma_grad", r"cp\.async\.wait_group 1;", "cp.async.wait_group 2;", "race"),
]


@pytest.mark.parametrize("name, old, new, kind", CHANGES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CHANGES)])
def test_what_is_too_weak_is_found(name: str, old: str, new: str, kind: str) -> None:
    text, launch = kernel(name)
    changed, n = re.subn(old, new, text, flags=re.S)
    assert n >= 1
    assert kind in {f.kind for f in check(changed, launch).findings}


def test_a_cycle_is_printed() -> None:
    """The producer does not say how many bytes come: nobody goes on, and who waits for what is said."""
    text, launch = kernel("matmul_bf16")
    (function,) = parse(text)
    arrival = [i for i, op in enumerate(function.ops) if "expect_tx" in op.opcode]
    (found,) = check(text, launch, arrival).findings
    assert found.kind == "stuck" and found.text.startswith("a cycle: nobody goes on: thread 0 waits at line ")
    assert "thread 128 waits at line" in found.text and "0 of 1 arrivals" in found.text


def test_who_needs_each_wait() -> None:
    text, launch = kernel("matmul_bf16")
    found, lines = waits(text, launch), text.splitlines()
    assert all(w.without for w in found)
    full, empty = (w for w in found if w.op.startswith("mbarrier.try_wait"))
    assert "wgmma.mma_async.sync) comes after line" in full.why(lines) and "(cp.async.bulk)" in full.why(lines)
    assert {lines[a - 1].split(".")[0].strip() for a, _ in empty.orders} == {"wgmma", "cp"}
    assert all("cp.async" in lines[b - 1] for _, b in empty.orders)


TINY = (  # two warps: the first stores, the second reads
    "mov.u32 %r1, %tid.x;\nmov.u32 %r2, scratch;\nsetp.ge.u32 %p1, %r1, 32;\n@%p1 bra B;\nst.shared.u32 [%r2], %r1;\nbar.arrive 1, 64;\n"
    "bra E;\nB:\nbar.sync 1, 64;\nld.shared.u32 %r3, [%r2];\nE:\nret;\n}\n"
)


def test_any_text_is_read() -> None:
    """Barriers that one side only arrives at; a missing one is a race of two lines."""
    launch = Launch((0,), ((0, 32), (32, 32)))
    assert check(HEAD + TINY, launch).findings == ()
    (found,) = check(HEAD + TINY.replace("bar.sync 1, 64;\n", ""), launch).findings
    assert str(found) == "line 15: `ld.shared.u32` reads (thread 32) what `st.shared.u32` (line 11, thread 0) writes, in no order"


def test_an_unknown_instruction_is_refused() -> None:
    with pytest.raises(CompileError, match=r"`popc.b32 %r2, %r1` \(line \d+\) decides an address or a branch"):
        check(HEAD + TINY.replace("mov.u32 %r2, scratch;", "popc.b32 %r2, %r1;"), Launch((0,), ((0, 1),)))
