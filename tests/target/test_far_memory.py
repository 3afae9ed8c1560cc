"""Linking in a crowded address space: an object's sections stay together, wherever the system has room for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.shaken import HANG

# Fills the address space above 4 GiB of mappings and leaves one page free there: sections mapped one by one would end up too far apart
# for 32-bit offsets, and LLVM would abort.
CROWDED = """
import ctypes
from tilewright.target.cpu import jit
from tilewright.target.cpu.host import host_target

TEXT = '''@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
define double @f(i64 %i) {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %p
  %y = fmul double %x, 3.25
  ret double %y
}'''
code = jit.compile_ir(TEXT, host_target())
jit.Library([code], ["f"]).close()

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
reserve = lambda n: libc.mmap(None, n, 0, 0x4022, -1, 0)  # private, anonymous, no memory behind it
low = min(reserve((1 << 30) + 4096) for _ in range(4))
size, top = 1 << 28, 0
while size >= 4096:
    found = reserve(size)
    if found < low:
        libc.munmap(found, size)
        size //= 2
    else:
        top = max(top, found)
libc.munmap(top, 4096)
library = jit.Library([code], ["f"])
print(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(library.address("f"))(2))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="mmap's flags are those of x86-64 Linux")
def test_sections_of_an_object_lie_together() -> None:
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=HANG, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.returncode, done.stdout.strip()) == (0, "11.375"), done.stderr
