"""Run a command that may be silent for long, and say every few seconds that it goes on.

    python scripts/audibly.py FOLDER COMMAND [ARGUMENT ...]

What the command prints is passed on line by line. Where nothing came for five seconds, a line says how long it has
taken and how much lies in FOLDER by now, or that it is as much as before; on a terminal the next one replaces it.
Needs nothing but Python.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

QUIET_SECONDS = 5.0


def megabytes(folder: Path) -> int:
    """What the files in a folder take, those that vanish meanwhile left out."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(parent) / name).st_size
            except OSError:
                continue
    return round(total / 1e6)


def run(folder: Path, command: list[str], quiet_seconds: float = QUIET_SECONDS) -> int:
    """The exit code of the command."""
    began, terminal, before = time.monotonic(), sys.stdout.isatty(), -1
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=quiet_seconds)
            except queue.Empty:
                size = megabytes(folder)
                same = ", nothing new: it downloads, or works" if size == before else ""
                text = f"   {time.monotonic() - began:.0f} s, {size:,} MB in {folder}{same}"
                before = size
                print(f"{text:80}", end="\r" if terminal else "\n", flush=True)
                continue
            if line is None:
                break
            print(f"{line.rstrip():80}" if terminal else line.rstrip(), flush=True)
    return process.returncode


def _pass_on(source: Iterable[str], lines: "queue.Queue[str | None]") -> None:
    try:
        for line in source:
            lines.put(line)
    except ValueError:  # it was closed in the meantime: Ctrl-C
        pass
    finally:
        lines.put(None)


if __name__ == "__main__":
    try:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
    except KeyboardInterrupt:
        print("\nStopped. The same command begins the installation anew.", flush=True)
        sys.exit(130)
