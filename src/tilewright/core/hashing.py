"""BLAKE2 as Python brings it. `hashlib` would load OpenSSL (4 MB) for hashes that nothing here uses."""
from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # a Python built without its own
    from hashlib import blake2b

__all__ = ["blake2b"]
