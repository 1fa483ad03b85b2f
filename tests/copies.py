"""Code in a process of its own that has torch imported already: as alone as a new interpreter, and seconds sooner."""

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from esper.tolaria.worlds.worker import take_environment, worker_context


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


class EsperInACopy:
    """The command `esper` with these arguments, in this folder; its output comes line by line, its errors at the end.

    folder  an empty one, for what passes between the processes
    """

    def __init__(self, *arguments: str, folder: Path) -> None:
        output, self._errors = folder / "output", folder / "errors"
        os.mkfifo(output)
        variables = dict(os.environ)
        self._process = worker_context().Process(
            target=_command, args=(arguments, output, self._errors, variables), daemon=True
        )
        self._process.start()
        self._output = output.open()

    def wait_for(self, beginning: str) -> None:
        """Until a line of the output begins like this."""
        for line in self._output:
            if line.startswith(beginning):
                return
        raise AssertionError(f"no line began with {beginning!r}; errors: {self._errors.read_text()}")

    def stop(self, number: signal.Signals) -> tuple[int | None, str]:
        """Send the signal; returns the exit code and what was printed as errors."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        self._output.read()
        self._output.close()
        self._process.join(60)
        return self._process.exitcode, self._errors.read_text()


def _command(arguments: Sequence[str], output: Path, errors: Path, variables: Mapping[str, str]) -> None:
    take_environment(variables)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # workers are deaf to it, a command is not
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for path, number in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    from esper.cli import main

    sys.exit(main(list(arguments)))


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
