"""A crash inside native code names the kernel and the launch, in a thread of its own too, and then goes on as it would have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.shaken import HANG

ROOT = Path(__file__).parents[2]
BEGIN = """
    import ctypes, faulthandler, os, signal, threading
    import numpy as np, tilewright as tw
    from tilewright.runtime.native import layout as L
    from tests.session.handmade import chain

    session = chain("double reverse double", 4096, threads=THREADS, flops=10**9)
    x = np.arange(4096, dtype=np.float32)
    assert (session(x) == (4 * x)[::-1]).all()

    def break_launch(k, word, value):
        for space in session._free:
            for _, instance, job in space.instances.values():
                ctypes.c_int64.from_address(int(instance.thunks[k, L.THUNK_ARGS]) + 8 * word).value = value
"""


def run(code: str, *, threads: int = 1, options: tuple[str, ...] = ("-X", "faulthandler")) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(BEGIN).replace("THREADS", str(threads)) + textwrap.dedent(code)
    env = {**os.environ, "TILEWRIGHT_CHECKS": "0"}  # checks would find the address before the crash
    command = [sys.executable, *options, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG, check=False, env=env)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_address_names_the_launch(threads: int) -> None:
    ran = run("break_launch(1, 0, 4096); session(x)", threads=threads)
    assert ran.returncode == -11
    # several threads may meet the address at once, and write at once
    assert re.search(r"tilewright: SIGSEGV in launch 1 \(reverse\), kernel tw_[0-9a-f]{20}", ran.stderr), ran.stderr
    whole = "Segmentation fault" if threads == 1 else ""  # one thread may end the process while another writes
    assert f"Fatal Python error: {whole}" in ran.stderr, "faulthandler's own report follows"


def test_other_threads_are_named_too() -> None:
    ran = run("""
        break_launch(2, 0, 4096)
        other = threading.Thread(target=lambda: session(x)); other.start(); other.join()
    """)
    assert ran.returncode == -11 and ran.stderr.startswith("tilewright: SIGSEGV in launch 2 (double), kernel tw_")


def test_a_signal_outside_native_code_is_not_ours() -> None:
    ran = run("os.kill(os.getpid(), signal.SIGSEGV)")
    assert ran.returncode == -11 and "tilewright:" not in ran.stderr and "Fatal Python error: Segmentation fault" in ran.stderr


def test_nothing_is_installed_without_faulthandler() -> None:
    ran = run("break_launch(1, 0, 4096); session(x)", options=())
    assert ran.returncode == -11 and ran.stderr == ""


def test_faulthandler_may_come_after_the_first_session() -> None:
    ran = run("""
        faulthandler.enable()
        chain("double", 16, threads=1)
        break_launch(0, 1, 4096)
        session(x)
    """, options=())
    assert ran.returncode == -11 and ran.stderr.startswith("tilewright: SIGSEGV in launch 0 (double), kernel tw_")


def test_the_command_line_names_it(tmp_path: Path) -> None:
    ran = run("""
        from tilewright.cli import doctor, main
        def crash(args):
            chain("double", 16, threads=1)
            break_launch(0, 1, 8)
            session(x)
        doctor.run = crash
        main.main(["doctor"])
    """, options=())
    assert ran.returncode == -11 and ran.stderr.startswith("tilewright: SIGSEGV in launch 0 (double), kernel tw_")


def test_a_kernel_of_the_compiler_is_named() -> None:
    ran = run("""
        weight = np.ones((8, 8), np.float32)
        x = np.ones((4, 8), np.float32)
        session = tw.jit(lambda x: tw.softmax(x @ weight)).lower(x)
        session(x)
        for space in session._free:
            for _, instance, _ in space.instances.values():
                instance.words[session.executable._const_words] = 8
        session(x)
    """)
    assert ran.returncode == -11 and re.match(r"tilewright: SIGSEGV in launch \d+ \(.+\), kernel tw_[0-9a-f]{20}\n", ran.stderr), ran.stderr
