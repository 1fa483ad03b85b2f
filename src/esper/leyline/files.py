"""Files that are there whole or not at all."""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue

PARTIAL = ".partial"
"""How the name of a file ends while it is being written."""


def write_atomically(path: Path, write: Callable[[Path], object], *, previous: Path | None = None) -> None:
    """Let `write` fill a file beside `path`, which then takes the place of `path` in one step.

    previous  where the file that was there is moved to; None lets it go

    The content is on the disk before the name changes. A failure leaves what was there before. Two writers of the
    same path do not meet: each fills a file of its own, and the last one stays.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        partial.touch()
        mode = partial.stat().st_mode  # the umask decides who may read it, whatever `write` chooses
        write(partial)
        partial.chmod(mode)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """The same for content that is at hand; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, content: JsonValue) -> None:
    """Strict JSON, indented for people."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
