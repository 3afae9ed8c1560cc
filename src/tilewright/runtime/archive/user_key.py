"""The secret key under which this user's saved sessions are authenticated: 32 bytes in one file that nobody else can read.

It lies in the user's data folder, not in the code cache: a cache is cleared and moved at will, and a saved session must outlive that.
A key that TILEWRIGHT_KEY_FILE names may also be root's, readable for others and behind a link, as secrets of containers are: whoever runs
the process has chosen it. Whoever can read a key can write sessions that its users run.
The first process that saves makes it. It is written to a name of its own and then linked to the final one, so that of several processes
at once exactly one wins and nobody ever reads half a key.
"""
from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from ...core.config import load, user_folder

KEY_BYTES = 32


def key_path() -> Path | None:
    """TILEWRIGHT_KEY_FILE, else `archive.key` in the user's data folder; None for a user without one."""
    given = load().key_file
    if given is not None:
        return Path(given)
    base = user_folder("XDG_DATA_HOME", ".local/share")
    return None if base is None else Path(base, "tilewright", "archive.key")


def user_key(*, create: bool = False) -> tuple[bytes | None, str]:
    """The key, or None and the reason why there is none. `create` makes it where it is missing."""
    path = key_path()
    if path is None:
        return None, "there is no home folder (HOME is not set); set TILEWRIGHT_KEY_FILE"
    try:
        if create and not path.exists():
            _make(path)
    except OSError as e:
        return None, f"the key {path} cannot be made ({e.strerror})"
    named = load().key_file is not None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if named else os.O_NOFOLLOW))
    except FileNotFoundError:
        return None, f"there is no key {path}"
    except OSError as e:
        return None, f"the key {path} cannot be read ({e.strerror})"
    try:
        info = os.fstat(handle)
        roots = named and info.st_uid == 0
        if not stat.S_ISREG(info.st_mode) or not (roots or info.st_uid == os.getuid()):
            return None, f"the key {path} is not a file of this user" + (" or of root" if named else "")
        if info.st_mode & 0o022:
            return None, f"others may write the key {path}; delete it, or run: chmod 600 {path}"
        if info.st_mode & 0o077 and not roots:
            return None, f"others may read the key {path}; delete it, or run: chmod 600 {path}"
        key = os.read(handle, KEY_BYTES + 1)
    except OSError as e:
        return None, f"the key {path} cannot be read ({e.strerror})"
    finally:
        os.close(handle)
    return (key, "") if len(key) == KEY_BYTES else (None, f"the key {path} is damaged; delete it and save again")


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):  # another process was first: its key is the key
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
