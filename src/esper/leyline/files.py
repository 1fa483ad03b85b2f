"""Files that are there whole or not at all."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pydantic import JsonValue

from esper.leyline.errors import install

PARTIAL = ".partial"
"""How the name of a file ends while it is being written."""


def write_atomically(path: Path, write: Callable[[Path], object], *, previous: Path | None = None) -> None:
    """Let `write` fill a file beside `path`, which then takes the place of `path` in one step.

    previous  another name that the file that was there keeps; None lets it go

    The content is on the disk before the name changes. A failure leaves what was there before. Two writers of the
    same path do not meet: each fills a file of its own, and the last one stays.
    """
    partial = _partial(path)
    try:
        partial.touch()
        mode = partial.stat().st_mode  # the umask decides who may read it, whatever `write` chooses
        write(partial)
        partial.chmod(mode)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        if previous is not None and path.exists():
            _keep(path, previous)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _keep(path: Path, previous: Path) -> None:
    """Give a file a second name, in the place of what has it; the file is never without its first."""
    second = _partial(previous)
    try:
        try:
            os.link(path, second)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, second)
        os.replace(second, previous)
    finally:
        second.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """A name beside `path` that no other writer has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def write_bytes(path: Path, content: bytes) -> None:
    """The same for content that is at hand; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, content: JsonValue) -> None:
    """Strict JSON, indented for people."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


# A grown model as a file, whose ending says in which form


ENDINGS = {
    ".safetensors": "weights, topology and stages, to load into a fresh wrap of the same host",
    ".onnx": "an ONNX program, for any runtime",
    ".pt2": "a torch.export program, to run with torch alone",
}


def require_exportable(path: Path) -> None:
    """Raise before anything is trained, if the ending or what it needs is not there."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"the file to export is {path}; expected an ending among {', '.join(ENDINGS)}")
    if path.suffix == ".onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise ValueError(f"exporting to ONNX needs the packages onnx and onnxscript: {install('onnx')}")
    if not path.parent.is_dir():
        raise ValueError(f"the file to export is {path}, and there is no folder {path.parent}")
