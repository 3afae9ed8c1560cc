"""Tokens: threading, dead ones, cycles, and the barriers that follow from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tile.kernels import ring, softmax
from tilewright.core.dtypes import f32
from tilewright.core.errors import CompileError, VerifyError
from tilewright.tile import tokens
from tilewright.tile.barriers import derive_barriers
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel
from tilewright.tile.parse import parse
from tilewright.tile.text import to_text
from tilewright.tile.verify import verify


def test_accesses_to_one_scratch_form_a_chain() -> None:
    kernel = softmax()
    inside = [i for i in kernel.walk() if i.op in ("load", "store") and i.tokens]
    assert [i.op for i in inside] == ["store", "load"], "only scratch is ordered; the global loads and stores take no token"
    loops = [i for i in kernel.walk() if i.op == "for"]
    assert [len(i.tokens) for i in loops] == [0, 1, 1]
    assert loops[2].tokens == loops[1].tokens_out, "the reading loop waits for the writing loop"


def test_threading_again_changes_nothing_once_stripped() -> None:
    kernel = softmax()
    text = to_text(kernel)
    tokens.strip(kernel)
    assert "!" not in to_text(kernel)
    tokens.thread(kernel)
    assert to_text(kernel) == text


def test_two_scratches_have_two_chains() -> None:
    b = KernelBuilder("two")
    p, q = b.scratch(f32, (8,)), b.scratch(f32, (8,))
    with b.loop(0, 4):
        b.store(p, [0], b.full((8,), 1.0))
        b.store(q, [0], b.load(p, [0], (8,)))
        with b.if_(b.compare("lt", b.pid, 3)):
            b.store(p, [0], b.load(q, [0], (8,)))
    kernel = b.build()
    verify(kernel)
    loop = next(i for i in kernel.walk() if i.op == "for")
    assert len(loop.tokens) == len(loop.blocks[0].token_yields) == 2


def test_carried_views_keep_their_allocation() -> None:
    b = KernelBuilder("swap")
    p, q = b.scratch(f32, (8,)), b.scratch(f32, (8,))
    with b.loop(0, 4, carried=[p, q]) as loop:
        b.store(loop.carried[0], [0], b.full((8,), 1.0))
        loop.next(loop.carried[1], loop.carried[0])
    with pytest.raises(VerifyError, match="a carried view of scratch must stay in its allocation"):
        b.build()


def test_explicit_tokens_and_join() -> None:
    b = KernelBuilder("explicit")
    x = b.view("x", f32, (1,))
    b.store(x, [0], b.full((4,), 1.0), order="release", scope="device")
    first = b.token()
    b.store(x, [4], b.full((4,), 2.0))
    second = b.token()
    t = b.load(x, [0], (4,), after=[b.join(first, second)], order="acquire", scope="device")
    b.store(x, [8], t)
    kernel = b.build()
    verify(kernel)
    text = to_text(kernel)
    assert "join after !0, !1 -> !2" in text
    assert to_text(parse(text)) == text


def test_dead_tokens_are_dropped() -> None:
    b = KernelBuilder("dead")
    x = b.view("x", f32, (1,))
    b.store(x, [0], b.full((4,), 1.0))
    b.join(b.token())
    kernel = b.build()
    assert tokens.drop_dead(kernel) == 2
    assert "!" not in to_text(kernel)
    assert tokens.drop_dead(kernel) == 0


def test_a_cycle_is_rejected_and_printed() -> None:
    kernel = parse("""kernel @k(%x: view<f32[1] global>) pid %pid {
  %0 = load %x, 0 {axes=(0,)} -> !0 : tile<4xf32>
  store %x, 0, %0 {axes=(0,)} after !0 -> !1
}
""")
    load, store = kernel.body.body
    load.tokens = store.tokens_out
    with pytest.raises(VerifyError, match=r"tokens form a cycle: `.*(load|store).*` -> `.*(load|store).*` -> `"):
        verify(kernel)


def test_a_token_before_its_definition_is_rejected() -> None:
    kernel = parse("""kernel @k(%x: view<f32[1] global>) pid %pid {
  %0 = load %x, 0 {axes=(0,)} : tile<4xf32>
  store %x, 0, %0 {axes=(0,)} -> !0
}
""")
    load, store = kernel.body.body
    load.tokens = store.tokens_out
    with pytest.raises(VerifyError, match="load: uses token 0 before its definition"):
        verify(kernel)


def shared(body: Callable[[KernelBuilder], None]) -> Kernel:
    b = KernelBuilder("shared")
    body(b)
    kernel = b.build()
    verify(kernel)
    return kernel


def test_straight_line_barriers() -> None:
    def body(b: KernelBuilder) -> None:
        s, t = b.scratch(f32, (8,), "shared"), b.scratch(f32, (8,), "shared")
        x = b.full((8,), 1.0)
        b.store(s, [0], x)
        b.store(t, [0], x)
        u = b.load(s, [0], (8,))  # barrier: read after write; it serves t too
        v = b.load(t, [0], (8,))
        b.load(s, [0], (8,))  # read after read: none
        b.store(s, [0], u + v)  # barrier: write after read

    plan = derive_barriers(shared(body), "gpu")
    assert [b.before.op for b in plan.barriers] == ["load", "store"]
    assert (len(plan.barriers), plan.naive) == (2, 6)


@pytest.mark.parametrize("stages, expected", [(1, 2), (2, 1), (3, 1), (4, 1)])
def test_a_ring_of_stages_needs_one_barrier_a_round(stages: int, expected: int) -> None:
    plan = derive_barriers(ring(stages), "gpu")
    assert (len(plan.barriers), plan.naive) == (expected, 3)
    assert plan.barriers[0].before.op == "load"
    assert plan.barriers[0].block.body[plan.barriers[0].position] is plan.barriers[0].before


def test_cpus_need_none() -> None:
    assert derive_barriers(ring(), "cpu").barriers == ()
    with pytest.raises(CompileError, match="target_kind must be cpu or gpu"):
        derive_barriers(ring(), "tpu")


def test_accesses_without_a_token_path_need_none() -> None:
    kernel = ring()
    tokens.strip(kernel)
    assert derive_barriers(kernel, "gpu").barriers == ()


def test_local_memory_needs_none() -> None:
    assert derive_barriers(softmax(), "gpu").barriers == ()


def test_what_is_not_understood_is_rejected() -> None:
    def branch(b: KernelBuilder) -> None:
        s = b.scratch(f32, (8,), "shared")
        with b.if_(b.compare("lt", b.pid, 3)):
            b.store(s, [0], b.full((8,), 1.0))

    with pytest.raises(CompileError, match=r"barriers: a shared access stands in a branch.*straight lines and loops"):
        derive_barriers(shared(branch), "gpu")


def test_several_and_nested_loops_over_one_memory() -> None:
    """A barrier before each write that follows a read, and before the reads that follow: also from one round to the next."""
    def nest(b: KernelBuilder) -> None:
        s = b.scratch(f32, (8,), "shared")
        with b.loop(0, 4), b.loop(0, 4):
            b.store(s, [0], b.full((8,), 1.0))

    def twice(b: KernelBuilder) -> None:
        s = b.scratch(f32, (8,), "shared")
        with b.loop(0, 4):
            b.store(s, [0], b.full((8,), 1.0))
        with b.loop(0, 4):
            b.load(s, [0], (8,))

    def staged(b: KernelBuilder) -> None:
        s = b.scratch(f32, (8,), "shared")
        with b.loop(0, 4):
            with b.loop(0, 2):
                b.store(s, [0], b.full((8,), 1.0))
            with b.loop(0, 3):
                b.load(s, [0], (8,))

    for body, ops in ((nest, ["store"]), (twice, ["store", "load"]), (staged, ["store", "load"])):
        assert [x.before.op for x in derive_barriers(shared(body), "gpu").barriers] == ops
