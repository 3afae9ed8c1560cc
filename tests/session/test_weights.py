"""A session keeps the weights of its compile: a module that changes in place later changes no result, or the call says so."""
from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tilewright as tw

ROWS = 1400  # rows of a table that is shared: 1400 x 50 x 4 bytes


class Net(nn.Module):
    """Every way a weight gets into a program: as it is, packed, folded, as a number in the code."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.norm, self.up = nn.Embedding(rows, 50), nn.LayerNorm(50), nn.Linear(50, 70)
        self.scale, self.tail = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.randn(7, 70))
        self.register_buffer("shift", torch.randn(3, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(self.table(ids))) * self.scale + self.shift
        return torch.cat([h, self.tail * 2])


def add(net: Net) -> None:
    with torch.no_grad():
        for t in (*net.parameters(), *net.buffers()):
            t.add_(1)


def step(net: Net, kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: bool) -> None:
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    kind(net.parameters(), lr=0.1, **options).step()


CHANGES: dict[str, Callable[[Net], object]] = {
    "add": add, "optimizer": step, "fused": lambda net: step(net, fused=True),
    "load": lambda net: net.load_state_dict(Net(net.table.num_embeddings).state_dict()),
    "inference": lambda net: torch.inference_mode()(add)(net)}


@pytest.mark.parametrize(("change", "target"), [*((change, "cpu") for change in CHANGES), ("add", "reference")])
def test_small_weights_are_those_of_the_compile(change: str, target: str, tmp_path: Path) -> None:
    net, ids = Net(9).eval(), torch.tensor([8, 0, 3])
    with torch.no_grad():
        want = net(ids)
    session = tw.compile(net, (ids,), target=target)
    CHANGES[change](net)
    with torch.no_grad():
        assert (net(ids) - want).abs().max() > 0.01
    for _ in range(2):  # the complete way of a call, and the generated one
        torch.testing.assert_close(session(ids), want, rtol=1e-4, atol=1e-4)
    if target == "cpu":
        session.save(tmp_path / "net.tw")
        stored = tw.load(tmp_path / "net.tw")
        torch.testing.assert_close(stored(ids), want, rtol=1e-4, atol=1e-4)
        again = tw.compile(stored.model.graph, target="reference")  # the graph itself, as another CPU would compile it
        torch.testing.assert_close(again(ids), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("change", "called"), list(zip(CHANGES, (0, 1, 2, 1, 2), strict=True)))
def test_a_shared_table_is_not_mixed_in(change: str, called: int, tmp_path: Path) -> None:
    net, ids = Net(ROWS).eval(), torch.tensor([ROWS - 1, 0, 3])
    session = tw.compile(net, (ids,))
    assert [name for name, *_ in session.shared] == ["table.weight"]  # and nothing else, so that calls stay cheap
    for _ in range(called):
        session(ids)
    CHANGES[change](net)
    message = "keeps the weights of its compile, and 'table.weight' of Net was written to since; compile the module again"
    for use in (session, lambda ids: session(ids=ids), lambda ids: session(ids.numpy()), lambda _: session.save(tmp_path / "x.tw")):
        with pytest.raises(tw.InputError, match=message):
            use(ids)
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        torch.testing.assert_close(tw.compile(net, (ids,))(ids), net(ids), rtol=1e-4, atol=1e-4)


def test_a_shared_table_that_torch_moves_is_not_read_where_it_was() -> None:
    """`share_memory` frees the memory of a tensor that it puts elsewhere."""
    net, ids = Net(ROWS).eval(), torch.tensor([ROWS - 1, 0, 3])
    called, fresh = tw.compile(net, (ids,)), tw.compile(net, (ids,))
    for _ in range(2):
        called(ids)
    net.share_memory()
    for session in (called, fresh):
        with pytest.raises(tw.InputError, match=r"'table\.weight' of Net was moved to other memory since; compile the module again"):
            session(ids)
    with torch.no_grad():
        torch.testing.assert_close(tw.compile(net, (ids,))(ids), net(ids), rtol=1e-4, atol=1e-4)


def test_new_tensors_in_the_module_and_copies_of_it_are_no_change() -> None:
    net, ids = Net(ROWS).eval(), torch.tensor([ROWS - 1, 0, 3])
    with torch.no_grad():
        want = net(ids)
    kept, moved = tw.compile(copy.deepcopy(net), (ids,)), tw.compile(net, (ids,))
    net.load_state_dict(Net(ROWS).state_dict(), assign=True)
    torch.testing.assert_close(moved(ids), want, rtol=1e-4, atol=1e-4)
    add(net)
    for session in (kept, moved):
        torch.testing.assert_close(session(ids), want, rtol=1e-4, atol=1e-4)


def test_tensors_whose_changes_torch_does_not_count_are_copied() -> None:
    ids = torch.tensor([ROWS - 1, 0, 3])
    with torch.inference_mode():
        net = Net(ROWS).eval()
        want = net(ids)
        session = tw.compile(net, (ids,))
        assert session.shared == ()
        add(net)
        torch.testing.assert_close(session(ids), want, rtol=1e-4, atol=1e-4)
