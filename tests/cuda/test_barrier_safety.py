"""The barrier analyser on small kernels: every way a thread can miss a barrier is found, and nothing else."""

from __future__ import annotations

import pytest

from tilewright.core.errors import ParseError
from tilewright.target.cuda.ptx.flow import parse
from tilewright.target.cuda.safety.barrier_safety import check

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p0)\n{\n.reg .pred %p<9>;\n.reg .b32 %r<9>;\n"
THREAD = "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 7;\n"  # %p1 differs between threads
BLOCK = "mov.u32 %r2, %ctaid.x;\nsetp.lt.u32 %p2, %r2, 7;\n"  # %p2 does not


def kernel(body: str) -> str:
    return HEAD + body + "\n}\n"


def kinds(body: str) -> list[str]:
    return [f.kind for f in check(kernel(body))]


BAD = {
    "conditional exit": (THREAD + "@%p1 exit;\nbar.sync 0;\nret;", ["exit"]),
    "conditional return": (THREAD + "@%p1 ret;\nbar.sync 0;\nret;", ["exit"]),
    "negated guard": (THREAD + "@!%p1 exit;\nbarrier.sync 0;\nret;", ["exit"]),
    "branch to an unconditional exit": (THREAD + "@%p1 bra OUT;\nbar.sync 0;\nOUT:\nret;", ["exit"]),
    "branch over to an exit in the middle": (THREAD + "@%p1 bra ON;\nexit;\nON:\nbar.sync 0;\nret;", ["exit"]),
    "barrier under an if": (THREAD + "@!%p1 bra ON;\nbar.sync 0;\nON:\nadd.u32 %r3, %r1, 1;\nst.global.u32 [%r3], %r3;\nret;", ["branch"]),
    "barrier in one of two arms": (
        THREAD + "@%p1 bra A;\nadd.u32 %r3, %r1, 1;\nbra M;\nA:\nbar.sync 0;\nM:\nst.global.u32 [%r1], %r1;\nret;",
        ["branch"],
    ),
    "guarded barrier": (THREAD + "@%p1 bar.sync 0;\nret;", ["barrier"]),
    "exit inside a loop": (BLOCK + THREAD + "L:\n@%p1 exit;\nbar.sync 0;\n@%p2 bra L;\nret;", ["exit"]),
    "trip count of a thread": (
        THREAD + "L:\nbar.sync 0;\nsub.u32 %r1, %r1, 1;\nsetp.gt.u32 %p3, %r1, 0;\n@%p3 bra L;\nst.global.u32 [%r1], %r1;\nret;",
        ["loop"],
    ),
    "break out of a loop": (BLOCK + THREAD + "L:\n@%p1 bra E;\nbar.sync 0;\n@%p2 bra L;\nE:\nst.global.u32 [%r2], %r2;\nret;", ["loop"]),
    "break out of two loops": (
        BLOCK
        + THREAD
        + "O:\nI:\n@%p1 bra E;\nbar.sync 0;\n@%p2 bra I;\nsetp.gt.u32 %p4, %r2, 3;\n@%p4 bra O;\nE:\nst.global.u32 [%r2], %r2;\nret;",
        ["loop"],
    ),
    "inner trip count of a thread": (
        BLOCK
        + THREAD
        + "O:\nmov.u32 %r3, %r1;\nI:\nbar.sync 0;\nsub.u32 %r3, %r3, 1;\nsetp.gt.u32 %p3, %r3, 0;\n@%p3 bra I;\n@%p2 bra O;\n"
        "st.global.u32 [%r2], %r2;\nret;",
        ["loop"],
    ),
    "through memory": (
        (
            "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nadd.u64 %rd2, %rd1, %r1;\nld.global.u32 %r4, [%rd2];\n"
            "setp.eq.u32 %p1, %r4, 0;\n@%p1 exit;\nbar.sync 0;\nret;"
        ),
        ["exit"],
    ),
    "through a shuffle": (
        "mov.u32 %r1, 5;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 exit;\nbar.sync 0;\nret;",
        ["exit"],
    ),
    "set in a branch, used after it": (
        BLOCK + THREAD + "mov.u32 %r5, 0;\n@%p1 bra S;\nmov.u32 %r5, 1;\nS:\nsetp.eq.u32 %p5, %r5, 1;\n@%p5 exit;\nbar.sync 0;\nret;",
        ["exit"],
    ),
    "cluster barrier": (THREAD + "@%p1 exit;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nret;", ["exit"]),
    "reduction barrier": (THREAD + "@%p1 exit;\nbar.red.popc.u32 %r4, 0, %p1;\nret;", ["exit"]),
    "two exits": (THREAD + "@%p1 exit;\n@!%p1 exit;\nbar.sync 0;\nret;", ["exit", "exit"]),
}

BAD["two ways back to the loop's start"] = (
    BLOCK
    + THREAD
    + "mov.u32 %r5, 0;\nL:\nsetp.gt.u32 %p5, %r5, 3;\n@%p5 exit;\nbar.sync 0;\n"
    + "@%p1 bra L;\nadd.u32 %r5, %r5, 1;\n@%p2 bra L;\nret;",
    ["exit", "loop"],
)

WARPS = "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 128;\n"  # %p1 differs between warps, not within one
CLUSTER = "barrier.cluster.arrive;\nbarrier.cluster.wait;\nret;"

BAD |= {
    "part of a warp misses its warps' barrier": (THREAD + "@%p1 bra E;\nbar.sync 1, 128;\nE:\nret;", ["exit"]),
    "one lane of its warps leaves": (
        WARPS + "@!%p1 bra E;\nand.b32 %r3, %r1, 31;\nsetp.eq.u32 %p3, %r3, 0;\n@%p3 exit;\nbar.sync 1, 128;\nE:\nret;",
        ["exit"],
    ),
    "a shuffled loop around a counted barrier": (
        WARPS + "shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\nsetp.lt.u32 %p3, %r4, 9;\n@%p3 exit;\nbarrier.sync.aligned 1, 64;\nret;",
        ["exit"],
    ),
    "a register without a %": (
        ".reg .pred q;\n.reg .u32 me;\nmov.u32 me, %tid.x;\nsetp.lt.u32 q, me, 7;\n@!q bra E;\nbar.sync 0;\nE:\nret;",
        ["exit"],
    ),
    "labels and registers of braces": (  # the first pair's are one block's, the second pair's a thread's
        BLOCK + "{\n.reg .pred p;\nmov.pred p, %p2;\n@p bra OUT;\nadd.u32 %r3, %r2, 1;\nOUT:\n}\n" + THREAD
        + "{\n.reg .pred p;\nmov.pred p, %p1;\n@p bra OUT;\nbar.sync 0;\nOUT:\n}\nst.global.u32 [%r2], %r2;\nret;",
        ["branch"],
    ),
    "tabs": ("mov.u32\t%r1, %tid.x;\nsetp.lt.u32\t%p1, %r1, 7;\n@%p1\tbra\tE;\nbar.sync\t0;\nE:\n\tret;", ["exit"]),
    "a table of branches": (
        THREAD + "and.b32 %r3, %r1, 1;\nTS: .branchtargets A, B;\nbrx.idx %r3, TS;\nA:\nbar.sync 0;\nB:\nst.global.u32 [%r1], %r1;\nret;",
        ["branch"],
    ),
    "through a thread's own memory": (
        (
            ".local .b32 slot;\nmov.u32 %r1, %tid.x;\nst.local.u32 [slot], %r1;\nld.local.u32 %r3, [slot];\nsetp.lt.u32 %p3, %r3, 7;\n"
            "@%p3 exit;\nbar.sync 0;\nret;"
        ),
        ["exit"],
    ),
    "through a thread's own memory by another address": (
        (
            ".local .b32 slot;\nmov.u32 %r1, %tid.x;\nmov.u64 %rd1, slot;\ncvta.local.u64 %rd2, %rd1;\nst.u32 [%rd2], %r1;\n"
            "ld.u32 %r3, [%rd2];\nsetp.lt.u32 %p3, %r3, 7;\n@%p3 exit;\nbar.sync 0;\nret;"
        ),
        ["exit"],
    ),
    "a flag that other blocks write": (
        (
            "ld.param.u64 %rd1, [p0];\nL:\nld.acquire.gpu.global.u32 %r4, [%rd1];\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 bra E;\nbar.sync 0;\n"
            "bra L;\nE:\nst.global.u32 [%rd1], %r4;\nret;"
        ),
        ["loop"],
    ),
    "a block of the cluster leaves": (
        "mov.u32 %r1, %cluster_ctarank;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 exit;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nret;",
        ["exit"],
    ),
    "a block of the cluster leaves by its number": (
        "mov.u32 %r1, %ctaid.x;\nand.b32 %r3, %r1, 1;\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 exit;\n" + CLUSTER, ["exit"],
    ),
    "by what it has in shared memory": ("ld.shared.u32 %r3, [%r1];\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 exit;\n" + CLUSTER, ["exit"]),
    "by what its threads have found": (
        THREAD + "bar.red.popc.u32 %r3, 0, %p1;\nsetp.eq.u32 %p5, %r3, 0;\n@%p5 exit;\n" + CLUSTER, ["exit"],
    ),
    "a carry": ("add.cc.u32 %r3, %r4, %tid.x;\naddc.u32 %r5, %r6, 0;\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 exit;\nbar.sync 0;\nret;", ["exit"]),
    "a shuffle of half a warp": (
        WARPS + "shfl.sync.idx.b32 %r4, %r1, 0, 0x101f, -1;\nsetp.eq.u32 %p3, %r4, 0;\n@%p3 exit;\nbar.sync 1, 64;\nret;", ["exit"],
    ),
    "lanes that match": (
        WARPS + "match.any.sync.b32 %r4, %r1, -1;\nsetp.eq.u32 %p3, %r4, 1;\n@%p3 exit;\nbar.sync 1, 64;\nret;", ["exit"],
    ),
    "a vote of half a warp": (
        WARPS + "shl.b32 %r5, 65535, %r1;\nvote.sync.any.pred %p3, %p1, %r5;\n@%p3 exit;\nbar.sync 1, 64;\nret;", ["exit"],
    ),
    "an arrival at the cluster is missed": (
        THREAD + "@%p1 bra ON;\nbarrier.cluster.arrive;\nON:\nbarrier.cluster.wait;\nst.global.u32 [%r1], %r1;\nret;",
        ["branch"],
    ),
    "a reduction with its new name": (THREAD + "@%p1 exit;\nbarrier.cta.red.popc.aligned.u32 %r4, 0, %p1;\nret;", ["exit"]),
    "one thread leaves a loop in a branch": (
        BLOCK + THREAD + "@%p2 bra O;\nI:\nbar.sync 0;\n@%p1 bra E;\n@%p2 bra I;\nO:\nbar.sync 1;\nE:\nst.global.u32 [%r2], %r2;\nret;",
        ["loop"],
    ),
}

GOOD = {
    "exit after the barrier": THREAD + "bar.sync 0;\n@%p1 exit;\nst.global.u32 [%r1], %r1;\nret;",
    "exit after the loop": BLOCK + THREAD + "L:\nbar.sync 0;\n@%p2 bra L;\n@%p1 exit;\nst.global.u32 [%r1], %r1;\nret;",
    "exit after nested loops": BLOCK + THREAD + "O:\nI:\nbar.sync 0;\n@%p2 bra I;\n@%p2 bra O;\n@%p1 exit;\nret;",
    "whole blocks leave": BLOCK + "@%p2 exit;\nbar.sync 0;\nret;",
    "blocks leave by a parameter": "ld.param.u64 %rd1, [p0];\nsetp.eq.u64 %p1, %rd1, 0;\n@%p1 ret;\nbar.sync 0;\nret;",
    "loop over a parameter": "ld.param.u32 %r4, [p0];\nmov.u32 %r5, 0;\nL:\nbar.sync 0;\n"
    "add.u32 %r5, %r5, 1;\nsetp.lt.u32 %p1, %r5, %r4;\n@%p1 bra L;\nret;",
    "an if without a barrier": THREAD + "@%p1 bra A;\nst.global.u32 [%r1], %r1;\nA:\nbar.sync 0;\nret;",
    "a thread's loop without a barrier": THREAD + "L:\nsub.u32 %r1, %r1, 1;\nsetp.gt.u32 %p3, %r1, 0;\n@%p3 bra L;\nbar.sync 0;\nret;",
    "predicated work": THREAD + "@%p1 st.shared.u32 [%r1], %r1;\nbar.sync 0;\n@%p1 ld.shared.u32 %r3, [%r1];\nret;",
    "said to be uniform": THREAD + "@%p1 bra.uni E;\nbar.sync 0;\nE:\nret;",
    "a barrier of its own warps": WARPS + "@%p1 bra E;\nbar.sync 1, 128;\nE:\nret;",
    "numbers of warps": "mov.u32 %r1, %tid.x;\nshr.u32 %r3, %r1, 5;\nshfl.sync.idx.b32 %r4, %r3, 0, 31, -1;\nsetp.gt.u32 %p1, %r4, 3;\n"
    "@%p1 bra E;\nL:\nbar.sync 1, 128;\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p3, %r4, 9;\n@%p3 bra L;\nE:\nret;",
    "lanes that all match": "mov.u32 %r1, %tid.x;\nmatch.all.sync.b32 %r4, %r1, -1;\nsetp.eq.u32 %p1, %r4, 0;\n"
    "@%p1 bra E;\nbar.sync 1, 64;\nE:\nret;",
    "waiting in braces, twice": 2
    * (
        "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%r1], 0;\n@done bra DONE;\nbra WAIT;\nDONE:\n}\n"
        "bar.sync 0;\n"
    )
    + "ret;",
    "a table that blocks choose from": BLOCK + "TS: .branchtargets A, B;\nbrx.idx %r2, TS;\nA:\nbar.sync 0;\nB:\nret;",
    "a trap ends the launch": THREAD + "@%p1 bra BAD;\nbar.sync 0;\nret;\nBAD:\ntrap;",
    "a block's number in a thread's own memory": ".local .b32 slot;\nmov.u32 %r1, %ctaid.x;\nst.local.u32 [slot], %r1;\n"
    "ld.local.u32 %r3, [slot];\nsetp.lt.u32 %p3, %r3, 7;\n@%p3 exit;\nbar.sync 0;\nret;",
    "an mbarrier's address": THREAD + "ld.param.u32 %r4, [p0];\nmbarrier.init.shared::cta.b64 [%r4], 1;\nld.shared.u32 %r5, [%r4];\n"
    "setp.eq.u32 %p3, %r5, 0;\n@%p3 exit;\nbar.sync 0;\nret;",
    "a warp barrier": THREAD + "@%p1 bra E;\nbar.warp.sync -1;\nE:\nret;",
    "waiting on an mbarrier": "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n@!%p1 bra W;\nbar.sync 0;\nret;",
    "arriving is not waiting": THREAD + "@%p1 bra E;\nbar.arrive 1, 64;\nE:\nret;",
    "value of a reduction barrier": THREAD + "bar.red.popc.u32 %r4, 0, %p1;\nsetp.gt.u32 %p5, %r4, 3;\n@%p5 exit;\nbar.sync 0;\nret;",
    "uniform load": "ld.param.u64 %rd1, [p0];\nld.global.u32 %r4, [%rd1];\nsetp.eq.u32 %p1, %r4, 0;\n@%p1 exit;\nbar.sync 0;\nret;",
    "dead code": THREAD + "bra E;\n@%p1 exit;\nbar.sync 0;\nE:\nret;",
    "no barrier at all": THREAD + "@%p1 exit;\nret;",
    "empty": "ret;",
}


@pytest.mark.parametrize("name", BAD)
def test_every_way_is_found(name: str) -> None:
    body, want = BAD[name]
    assert kinds(body) == want


@pytest.mark.parametrize("name", GOOD)
def test_no_false_alarm(name: str) -> None:
    assert kinds(GOOD[name]) == []


@pytest.mark.parametrize("name", GOOD)
def test_a_planted_exit_is_found(name: str) -> None:
    """An exit of some threads at the very start spoils every kernel that has a block-wide barrier afterwards."""
    body = GOOD[name]
    barriers = any(word in body for word in ("bar.sync", "bar.red")) and name != "dead code"
    assert bool(kinds("mov.u32 %r8, %tid.x;\nsetp.eq.u32 %p8, %r8, 3;\n@%p8 exit;\n" + body)) == barriers


def test_messages_name_both_lines() -> None:
    (finding,) = check(kernel(BAD["conditional exit"][0]))
    assert str(finding) == "k: line 10: `@%p1 exit` lets threads leave before `bar.sync 0` (line 11)"


def test_functions_are_judged_one_by_one() -> None:
    text = (
        kernel(BAD["conditional exit"][0]) + ".visible .entry second()\n{\nret;\n}\n.extern .func (.param .b32 r) printf(.param .b64 f);\n"
    )
    assert [f.name for f in parse(text)] == ["k", "second"]
    assert [f.function for f in check(text)] == ["k"]


CALLED = """.func (.param .b32 out) meet(.param .b32 n)
{
.reg .pred %p<3>;
.reg .b32 %r<4>;
ld.param.b32 %r1, [n];
setp.eq.u32 %p1, %r1, 0;
@%p1 bra SKIP;
bar.sync 0;
SKIP:
st.param.b32 [out], %r1;
ret;
}
.func leave()
{
.reg .pred %p<3>;
.reg .b32 %r<4>;
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
@%p1 exit;
ret;
}
"""
FAR = """.func (.param .b32 out) any(.param .b32 n)
{
.reg .pred %p<3>;
.reg .b32 %r<4>;
ld.param.b32 %r1, [n];
setp.ne.u32 %p1, %r1, 0;
bar.red.popc.u32 %r2, 0, %p1;
st.param.b32 [out], %r2;
ret;
}
.func (.param .b32 out) rank()
{
.reg .b32 %r<4>;
mov.u32 %r1, %cluster_ctarank;
st.param.b32 [out], %r1;
ret;
}
.func together()
{
barrier.cluster.arrive;
barrier.cluster.wait;
ret;
}
"""
RANK = "{\n.param .b32 b;\ncall (b),\nrank,\n();\nld.param.b32 %r4, [b];\n}\nsetp.eq.u32 %p3, %r4, 1;\n"


@pytest.mark.parametrize(("body", "want"), [
    (THREAD + "{\n.param .b32 a, b;\nst.param.b32 [a], %r1;\ncall (b), any, (a);\nld.param.b32 %r4, [b];\n}\n"
     "setp.eq.u32 %p3, %r4, 0;\n@%p3 exit;\nbar.sync 0;\nret;", []),  # a reduction gives all threads the same
    (RANK + "@%p3 bra E;\ncall together;\nE:\nret;", ["k"]), (RANK + "@%p3 bra E;\nbar.sync 0;\nE:\nret;", []),
])  # fmt: skip
def test_what_calls_give(body: str, want: list[str]) -> None:
    text = FAR + HEAD + body + "\n}\n" + ".visible .entry other() { .param .b32 a, b; call (b), any, (a); call together; ret; }"
    assert [f.function for f in check(text)] == want


CALL = "{\n.param .b32 a;\n.param .b32 b;\nst.param.b32 [a], %s;\ncall (b), meet, (a);\nld.param.b32 %%r4, [b];\n}\n"


@pytest.mark.parametrize(("body", "want"), [
    (BLOCK + CALL % "%r2" + "setp.eq.u32 %p3, %r4, 0;\n@%p3 exit;\nbar.sync 0;\nret;", []),  # the block's number in and out
    (THREAD + CALL % "%r1" + "ret;", ["meet"]),  # its barrier is missed by threads whose number is 0
    (THREAD + "mov.u32 %r2, 5;\n@%p1 bra E;\n" + CALL % "%r2" + "E:\nret;", ["k"]),  # a call in a branch
    (THREAD + CALL % "%r1" + "setp.eq.u32 %p3, %r4, 0;\n@%p3 exit;\nbar.sync 0;\nret;", ["meet", "k"]),
    ("call leave;\nbar.sync 0;\nret;", ["k"]), ("bar.sync 0;\ncall leave;\nret;", []),
    (THREAD + "ld.param.u64 %rd1, [p0];\n@%p1 bra E;\nP: .callprototype _ ();\ncall %rd1, P;\nE:\nret;", ["k"]),  # it may be any function
])  # fmt: skip
def test_calls(body: str, want: list[str]) -> None:
    """A function that nobody calls by name is judged for all that it could be given."""
    found = [f.function for f in check(HEAD.replace(".visible", CALLED + ".visible") + body + "\n}\n")]
    assert found == (want if "meet" in body else ["meet", *want])


@pytest.mark.parametrize(("size", "number", "alarm"), [
    ("2, 1, 1", "shr.u32 %r3, %ctaid.x, 1", False), ("4", "shr.u32 %r3, %ctaid.x, 1", True), ("3", "div.u32 %r3, %ctaid.x, 6", False),
    ("3", "and.b32 %r3, %ctaid.x, 6", True), ("2", "mov.u32 %r3, %ctaid.y", False), ("1, 2", "mov.u32 %r3, %ctaid.y", True),
    ("2", "sub.u32 %r3, %ctaid.x, %r4", True), ("1", "mov.u32 %r3, %ctaid.x", False), ("2", "mov.u32 %r3, %clusterid.x", False),
])  # fmt: skip
def test_numbers_of_clusters(size: str, number: str, alarm: bool) -> None:
    body = f"{number};\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 exit;\n{CLUSTER}\n}}\n"
    assert bool(check(HEAD.replace("(.param .u64 p0)", f"(.param .u64 p0) .reqnctapercluster {size}") + body)) == alarm


def test_a_count_of_the_whole_block() -> None:
    body = WARPS + "@%p1 exit;\nbar.sync 0, 256;\nret;\n}\n"
    assert check(HEAD + body) == []
    (finding,) = check(HEAD.replace("(.param .u64 p0)", "(.param .u64 p0) .reqntid 64, 4") + body)
    assert finding.kind == "exit"


def test_comments_scopes_and_vectors_are_read() -> None:
    body = (
        "// bar.sync 0;\n/* @%p1 exit; */ mov.u32 %r1, %tid.x; { .reg .b32 %q; mov.b64 {%r3, %q}, %rd1; }\n.loc 1 2 3\n"
        "ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd1+16]; bar.sync 0; ret;"
    )
    (function,) = parse(kernel(body))
    assert [op.stem for op in function.ops] == ["mov", "mov", "ld", "bar", "ret"]
    assert function.ops[2].writes() == ["%r3", "%r4", "%r5", "%r6"]
    assert check(kernel(body)) == []


@pytest.mark.parametrize(
    ("body", "match"), [("bra NOWHERE;\nret;", "unknown label 'NOWHERE'"), ("mov.u32 %r1, 1", "statement without an end")]
)
def test_broken_text_is_an_error(body: str, match: str) -> None:
    with pytest.raises(ParseError, match=match):
        check(HEAD + body)
