"""The `esper` command: a verb's module is imported when that verb is asked for."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

from esper.cli.common import BAD_INPUT, INTERRUPTED, BadInput, did_you_mean, note, stopped_by

VERBS = {
    "train": "train a controller",
    "resume": "go on with a run that stopped",
    "evaluate": "judge a controller on tasks it was not trained on",
    "bench": "compare controllers, rules and baselines on held-out hosts, with a report",
    "grow": "grow a model on a task under a controller, and export it",
    "controllers": "list the controllers that come with Esper, or make one of a run",
    "runs": "list the runs and how they stand",
    "watch": "see runs live in a browser, at a terminal, or as a picture",
    "sql": "query a run's record",
    "tasks": "list the tasks and suites",
    "doctor": "see what this machine has, and what is wrong with it",
}
"""verb -> what it does; each is a function `run_<verb>` of the module of its name, or of that in `HOMES`."""
HOMES = {
    "resume": "train",
    "evaluate": "controllers",
    "runs": "listing",
    "sql": "listing",
    "tasks": "listing",
}

_HELP = """usage: esper VERB ...

Neural networks that grow while they train, under a controller that learns when, where and what.

{verbs}

  esper train --preset demo            see it at work (minutes)
  esper train --preset cpu --rounds 200 --lr 3e-4
  esper VERB --help                    the options of a verb, with an example
  esper --version
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. An error that the user can mend is printed in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _heeding_after_imports(), warnings.catch_warnings():  # restores showwarning at the end
            warnings.showwarning = _show_warning
            return _dispatch(given)
    except BadInput as error:
        note(str(error))
        return BAD_INPUT
    except KeyboardInterrupt as interrupt:  # a verb that had written something says so itself
        note(f"stopped by {stopped_by(interrupt)}; nothing was written")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout is gone; nothing more may be written when Python closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as request:  # argparse has printed its help
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    except Exception as error:
        from esper.leyline.errors import EsperError

        if not isinstance(error, EsperError):
            raise  # a defect, which keeps its traceback
        note(str(error))
        return BAD_INPUT


_AGAIN_SECONDS = 0.05


@contextmanager
def _heeding_after_imports() -> Iterator[None]:
    """Hear Ctrl-C once an import is over: in it libraries take it for a failure of their own, or swallow it."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """One line, without the place in the code that a user of the command has no use for."""
    note(f"note: {message}")


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(_HELP.format(verbs="\n".join(f"  {verb:{width}}  {does}" for verb, does in VERBS.items())))
        return 0
    if given[0] == "--version":
        from esper import __version__

        print(f"esper {__version__}")
        return 0
    if given[0] not in VERBS:
        hint = did_you_mean(given[0], VERBS, f"there are {', '.join(VERBS)}")
        raise BadInput(f"there is no verb {given[0]!r}; {hint}")
    verb = given[0]
    run = getattr(import_module(f"esper.cli.{HOMES.get(verb, verb)}"), f"run_{verb}")
    code = run(given[1:])
    sys.stdout.flush()  # raises BrokenPipeError here, where it is handled
    return int(code)
