"""Code in a process of its own that has torch imported already: as alone as a new interpreter, and seconds sooner."""

import io
import sys
import traceback
import warnings
from contextlib import redirect_stdout
from multiprocessing.connection import Connection

import torch

from esper.tolaria.worlds.starting import worker_context


def run_in_a_copy(code: str, *arguments: str) -> str:
    """What the code prints; `sys.argv` has the arguments. An error there is an AssertionError here."""
    context = worker_context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(code, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    printed, error = ours.recv()
    process.join()
    assert error is None, error
    return str(printed)


def _run(code: str, arguments: tuple[str, ...], result: Connection) -> None:
    torch.set_num_threads(1)
    sys.argv = ["copy", *arguments]
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(printed):
            exec(compile(code, "<copy>", "exec"), {"__name__": "__main__"})
    except BaseException:
        result.send((printed.getvalue(), traceback.format_exc()))
    else:
        result.send((printed.getvalue(), None))
