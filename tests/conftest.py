"""Fixtures for the whole suite: a private code cache and key, random inputs with one seed a run, and golden files with one flag to update
them."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, core, settings

from tests import fresh
from tilewright.runtime import crash

# PyTorch's threads wait for work in loops. On a core that another worker of the suite needs, that was four fifths of some tests' time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
settings.load_profile("suite")
core.global_force_seed = fresh.SEED  # type: ignore[assignment]  # as --hypothesis-seed does: one seed repeats the whole run


SHARE = 6  # among the many alike cases of a test in these modules one in six (at least one), chosen by the run's seed, is in the fast suite
LONG = {
    "array": "eager",
    "control": "random",
    "cuda": "along_rows control conv decode fast_calls flash ops products ptx qgemm random splats tiled tiled_ops training",
    "dynamo": "bounded gradients patterns varying",
    "e2e": "bad_input bits families layouts modules passes_off processes values",
    "fft": "functions",
    "frontend": "experts models pools random recurrences",
    "kernels": "conv extremes few_launches grid_sample interpreted pairs qdot reduce registry rounded scans panel_rows templates",
    "lang": "examples",
    "linalg": "functions threads",
    "llm": "commands families formats gguf hf_fields packed",
    "onnx": "microsoft ml",
    "ops": "reference",
    "passes": "families",
    "quantize": "quantize words",
    "session": "needs torch_contexts",
    "splat": "render",
    "target": "vmath",
    "transform": "rules",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files instead of comparing with them")
    parser.addoption("--rounds", type=int, default=1, help="run each test this many times, with other random inputs each time")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases that are not this run's share are slow ones. Whoever names a test gets it."""
    if any("::" in argument for argument in config.args) or config.option.keyword or config.getoption("--rounds") > 1:
        return
    alike: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.path.stem.removeprefix("test_") in LONG.get(item.path.parent.name, "").split() and hasattr(item, "callspec"):
            alike.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
    for cases in alike.values():
        cases.sort(key=lambda item: zlib.crc32(f"{fresh.SEED} {item.nodeid}".encode()))
        for item in cases[-(-len(cases) // SHARE) :]:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """The cases and what their modules imported stay until the end: a full garbage collection, which every load of a language model asks
    for, need not walk them again (a second each time)."""
    gc.collect()
    gc.freeze()


def pytest_collectstart(collector: pytest.Collector) -> None:
    fresh.start(collector.nodeid)  # some modules draw while they are imported


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    fresh.start(item.nodeid)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With --rounds a test that takes fixtures becomes that many tests, so that each round has new ones; others go around in the call."""
    count = metafunc.config.getoption("--rounds")
    given = {name.strip() for m in metafunc.definition.iter_markers("parametrize") for name in _names(m.args[0])}
    if count > 1 and set(inspect.signature(metafunc.function).parameters) - given:
        metafunc.fixturenames.append("round_number")
        metafunc.parametrize("round_number", range(1, count + 1), indirect=True, ids=lambda i: f"round{i}")


def _names(argument: str | Sequence[str]) -> Sequence[str]:
    return argument.split(",") if isinstance(argument, str) else argument


@pytest.fixture
def round_number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    if "round_number" in getattr(getattr(item, "callspec", None), "params", ()):
        return
    for i in range(1, item.config.getoption("--rounds")):
        fresh.start(f"{item.nodeid} {i}")
        core.global_force_seed = fresh.SEED + i  # type: ignore[assignment]
        try:
            item.runtest()
        except Exception as e:
            e.add_note(f"in round {i + 1}: --rounds {i + 1}")
            raise
        finally:
            core.global_force_seed = fresh.SEED  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"the same random inputs again: {fresh.VARIABLE}={fresh.SEED}")


def pytest_configure(config: pytest.Config) -> None:
    """A crash in native code names its kernel on the real standard error, before output is captured. The suite neither reads nor fills the
    user's code cache, nor makes the user a key; worker processes inherit its own, so that what one compiles serves the other."""
    crash.FILE = os.dup(2)
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="tilewright-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ.setdefault("TILEWRIGHT_CACHE_DIR", os.path.join(folder, "cache"))
        os.environ.setdefault("TILEWRIGHT_KEY_FILE", os.path.join(folder, "key", "archive.key"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text equals the file `name` in the `goldens` folder beside the test (`--update-goldens` writes it)."""

    def check(name: str, text: str) -> None:
        path = Path(str(request.path)).parent / "goldens" / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; run pytest with --update-goldens"
        assert text == path.read_text(), f"differs from {path}; if the change is meant, run pytest with --update-goldens"

    return check
