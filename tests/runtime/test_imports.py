"""What reading a saved session imports: neither the op registry, nor passes, templates, the emitter or torch."""
from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import tilewright.compile, tilewright.runtime.archive
print(*sorted(m for m in sys.modules if m.startswith(("tilewright.", "torch"))))
"""


def test_a_load_imports_little() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert "tilewright.runtime.archive" in found
    heavy = ("torch", "tilewright.ops", "tilewright.passes", "tilewright.kernels.select", "tilewright.target.cpu.emit",
             "tilewright.frontend", "tilewright.llm", "tilewright.transform")
    assert [m for m in found if m.startswith(heavy)] == []
