"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue

PARTIAL = ".partial"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a file beside `path`, which then takes its place. A failure leaves what was there before."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        write(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: JsonValue) -> None:
    """Strict JSON, indented for people."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda partial: _write_text(partial, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
