"""Configuration: defaults, parsing, messages, the documented table."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tilewright.core.config import Config, load, table
from tilewright.core.errors import ConfigError


def test_defaults_hold_without_variables() -> None:
    assert load({}) == Config()
    assert load({"TILEWRIGHT_THREADS": ""}) == Config(), "an empty variable counts as unset"


def test_variables_are_parsed() -> None:
    got = load({"TILEWRIGHT_THREADS": "3", "TILEWRIGHT_CPU": "AVX2", "TILEWRIGHT_VALIDATION": "strict", "TILEWRIGHT_CACHE_DIR": "/x/../y",
                "TILEWRIGHT_CACHE_BYTES": "2MiB", "TILEWRIGHT_IDLE_SPIN_US": "0"})
    assert (got.threads, got.cpu, got.validation, got.cache_bytes, got.idle_spin_us) == (3, "avx2", "strict", 2 << 20, 0)
    assert [load({"TILEWRIGHT_CACHE_BYTES": s}).cache_bytes for s in ("0", "5", "5k", "5 KB", "1G")] == [0, 5, 5120, 5120, 1 << 30]


def test_keywords_win() -> None:
    assert load({"TILEWRIGHT_THREADS": "3"}, threads=2, cpu=None).threads == 2
    with pytest.raises(ConfigError, match=r"config: threads must be an integer from 1 to \d+, got '0'"):
        load({}, threads=0)
    with pytest.raises(ConfigError, match="config: no setting named 'thread'; known: threads, cpu"):
        load({}, thread=1)


@pytest.mark.parametrize("name, value, valid", [
    ("THREADS", "0", "an integer from 1 to 1024"),
    ("THREADS", "two", "an integer from 1 to 1024"),
    ("THREADS", "1.5", "an integer from 1 to 1024"),
    ("CPU", "sse", "one of native, baseline, avx2, avx512"),
    ("VALIDATION", "yes", "one of strict, normal, none"),
    ("CACHE_BYTES", "-1", "a number of bytes, 0 or more, perhaps with K, M or G behind it"),
    ("CACHE_BYTES", "M", "a number of bytes, 0 or more, perhaps with K, M or G behind it"),
    ("CACHE_DIR", " ", "a folder"),
    ("BARRIER_SPIN_US", "-3", "an integer from 0 to 1000000"),
])
def test_a_wrong_value_names_the_variable_and_what_is_valid(name: str, value: str, valid: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({f"TILEWRIGHT_{name}": value})
    assert str(caught.value) == f"config: TILEWRIGHT_{name} must be {valid}, got {value!r}"


def test_the_table_has_a_row_per_setting() -> None:
    rows = list(table())
    assert len(rows) == len(fields(Config)) + 2
    assert all(row.count("|") == 5 for row in rows) and "`TILEWRIGHT_THREADS`" in rows[2]
