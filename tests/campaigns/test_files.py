"""The campaigns over files can fail: without the checks of a stranger's session, guarded memory ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.campaigns.files.mutate import Change, changed_bytes, changed_text, changed_tree
from tests.meta.source import ROOT

LIES = """
import sys
from tests.campaigns.files import guarded
from tests.campaigns.files.sessions import called, file_bytes, header_and_data, opened, saved
from tilewright.runtime import executable
from tilewright.runtime.archive import session as archive_session

if sys.argv[1] == "open":
    def believe(file, model, stored):
        model.stored_interface = stored

    archive_session.check_graph = believe
    executable.check_ends = lambda *_: None
header, data = header_and_data(saved("image"))
header["interface"]["outputs"] = [["f32", [1, 1]]]
guarded.Where.start = False  # arrays end where a page ends
session = opened(file_bytes(header, data))
if session is not None:
    called(session, seed=0)
print("checked")
"""


@pytest.mark.parametrize("checks", ["closed", "open"])
def test_memory_is_guarded(checks: str) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", LIES, checks], env=env, capture_output=True, text=True)
    if checks == "closed":
        assert done.stdout.endswith("checked\n"), done.stderr
    else:
        assert done.returncode in (-signal.SIGSEGV, -signal.SIGABRT), done.stderr  # a page that is not ours, or the heap's own check


def test_changes_change() -> None:
    tree = {"a": [1, {"b": "text"}], "c": None}
    for how in ("number", "text", "none", "list", "near", "drop", "double", "swap", "copy", "empty", "more"):
        assert any(changed_tree(tree, (Change(at, how, value),)) != tree for at in range(10) for value in range(10)), how
    assert tree == {"a": [1, {"b": "text"}], "c": None}
    text = "graph g(%x) {\n  %x: f32[3] = input\n  %y: f32[3] = sum{axes=(0,)}(%x)\n  return %y\n}\n"
    for how in ("number", "near", "op", "attribute", "dtype", "word", "drop", "double", "swap", "insert"):
        assert any(changed_text(text, (Change(at, how, value),), ["exp"]) != text for at in range(20) for value in range(20)), how
    data = bytes(range(200))
    for how in ("flip", "byte", "zeros", "cut", "grow", "move", "number"):
        assert any(changed_bytes(data, (Change(at, how, value),)) != data for at in range(20) for value in range(20)), how
