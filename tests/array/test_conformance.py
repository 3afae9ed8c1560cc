"""A short run of the array API's own test suite, where a copy of it lies beside the checkout. The names of what is tested there are the
standard's; the special cases of this project's own are in test_eager.py."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = [base / "shared/conformance/array-api-tests" for base in (ROOT.parent, ROOT.parent.parent)]
SUITE = next((p for p in PLACES if p.is_dir()), None)
MISSING = [m for m in ("ndindex", "pytest_jsonreport") if importlib.util.find_spec(m) is None]


@pytest.mark.skipif(SUITE is None, reason="the array API's test suite does not lie beside the checkout")
@pytest.mark.skipif(bool(MISSING), reason=f"the array API's test suite needs {' '.join(MISSING)}")
@pytest.mark.parametrize("part", ["test_special_cases.py", "test_has_names.py test_signatures.py test_array_object.py test_constants.py"])
def test_the_standards_own_suite(part: str) -> None:
    assert SUITE is not None
    files = [str(SUITE / "array_api_tests" / name) for name in part.split()]
    environment = {**os.environ, "ARRAY_API_TESTS_MODULE": "tilewright", "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["--max-examples", "2", "--disable-deadline", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *files, *options],
                          cwd=SUITE, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-40:])
    found = re.search(r"(\d+) passed", last)
    assert found is not None
    assert int(found[1]) > 300, last
