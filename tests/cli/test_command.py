"""The command itself: quick help, one line for a mistake, and exit codes that programs can read."""

import re
import signal
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from esper.cli import HOMES, VERBS, main
from esper.cli.common import BadInput


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["-h"], ["--help"], ["help"]):
        assert main(arguments) == 0
        told = capsys.readouterr()
        assert all(f"  {verb} " in told.out for verb in VERBS)
        assert told.err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert f"usage: esper {verb}" in told
    assert "example" in told
    assert f"  esper {verb}" in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "esper 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "there is no verb 'trian'; did you mean train?"),
        (["xyzzy"], "there is no verb 'xyzzy'; there are train, "),
        (["runs", "--jsn"], "there is no option --jsn; did you mean --json?"),
        (["runs", "--xyzzy=1"], "there is no option --xyzzy; see `esper runs --help`"),
        (["runs", "--js"], "there is no option --js; did you mean --json?"),
        (["runs", "a"], "argument 'a' is one too many; see `esper runs --help`"),
        (["train", "toy"], "argument 'toy' is one too many; did you mean --preset toy?"),
        (["train", "tyo"], "argument 'tyo' is one too many; see `esper train --help`"),
        (["train", "--learning-rate", "3"], "there is no option --learning-rate; did you mean --lr?"),
        (["train", "--lerning-rate", "3"], "there is no option --lerning-rate; see `esper train --help`"),
        (["train", "--resume", "mine"], "there is no option --resume; did you mean `esper resume RUN`?"),
        (["sql"], "the following arguments are required: RUN, SQL"),
        (["evaluate", "x", "--episodes", "many"], "--episodes is many; expected a whole number >= 1"),
        (["evaluate", "x", "--episodes", "0"], "--episodes is 0; expected a whole number >= 1"),
        (
            ["resume", "x", "--lr", "0.1"],
            "there is no option --lr; a run keeps its settings; `esper resume --help` lists",
        ),
        (["resume", "x", "--hel"], "there is no option --hel; see `esper resume --help`"),
        (["resume", "x", "--round", "2"], "there is no option --round; did you mean --rounds?"),
        (["resume", "no-such-run"], "there is no run 'no-such-run' in runs; `esper runs` lists"),
        (
            ["evaluate", "cpu-v2"],
            "there is no run 'cpu-v2' in runs, and no controller of that name or folder; did you mean cpu-v1?",
        ),
        (["runs", "--directory", "nowhere"], "--directory is 'nowhere'; there is no such folder"),
        (
            ["train", "--config", "."],
            "--config is '.', which is a folder; expected a .json, .toml or .yaml file",
        ),
        (["bench", "--arms", "waitt"], "no arm is named 'waitt'; there are wait, random"),
        (["grow", "cpu"], "task is 'cpu', a suite: it draws instances of tasks; expected one of digits"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"esper: {message}")
    assert told.err.count("\n") == 1


def verb_that(raises: BaseException) -> ModuleType:
    module = ModuleType("esper.cli.listing")

    def run_runs(_: list[str]) -> int:
        raise raises

    module.__dict__["run_runs"] = run_runs
    return module


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C; nothing was written"),
        (KeyboardInterrupt("SIGTERM"), 130, "stopped by SIGTERM; nothing was written"),
        (BadInput("a\nb"), 2, "a b"),
    ],
)
def test_exit_codes(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "esper.cli.listing", verb_that(error))
    assert main(["runs"]) == code
    assert capsys.readouterr().err == f"esper: {told}\n"


def test_ctrl_c_in_an_import_is_heard_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A library may swallow it there, or take it for a failure of its own."""
    swallowing = (
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "except BaseException:\n"
        "    lost = True\n"
    )
    (tmp_path / "swallowing.py").write_text(swallowing)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("esper.cli.listing")

    def run_runs(_: list[str]) -> int:
        assert not hasattr(import_module("swallowing"), "lost")
        time.sleep(30)
        return 0

    module.__dict__["run_runs"] = run_runs
    monkeypatch.setitem(sys.modules, "esper.cli.listing", module)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where it is ignored, as in the background
    try:
        assert main(["runs"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "esper: stopped by Ctrl-C; nothing was written\n"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "esper.cli.listing", verb_that(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        main(["runs"])


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from esper.cli import main; main(['--help']); "
        "sys.exit(bool({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_what_is_printed_calls_an_instance_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`case` is a name in code, and of some settings."""
    inner = ("bench table", "bench report", "controllers export", "runs export")
    for words in (*(f"{verb} --help" for verb in (*VERBS, *inner)), "tasks", "controllers"):
        assert main(words.split()) == 0
        told = capsys.readouterr().out
        assert not re.search(r"(?<![-_])\bcases?\b", told, flags=re.IGNORECASE), words


def test_no_verbs_help_imports_torch() -> None:
    code = (
        "import sys; from esper.cli import VERBS, main; "
        "verbs = [*VERBS, 'bench table', 'bench report', 'controllers export']; "
        "[main([*verb.split(), '--help']) for verb in verbs]; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_options_of_train_are_parsed_without_torch() -> None:
    """A mistake in them is told before anything heavy is waited for."""
    code = (
        "import sys; from esper.cli import main; code = main(['train', '--gamma', '2']); "
        "sys.exit(code != 2 or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_bad_ending_of_an_export_is_told_without_torch() -> None:
    code = (
        "import sys; from esper.cli import main; code = main(['grow', 'digits', '--export', 'x.foo']); "
        "sys.exit(code != 2 or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_python_m_esper(capfd: pytest.CaptureFixture[str]) -> None:
    assert subprocess.run([sys.executable, "-m", "esper", "trian"], check=False).returncode == 2
    assert "did you mean train?" in capfd.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m esper runs --json | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_function(verb: str) -> None:
    assert callable(getattr(import_module(f"esper.cli.{HOMES.get(verb, verb)}"), f"run_{verb}"))


def test_a_warning_is_a_note_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(arguments: list[str]) -> int:
        del arguments
        warnings.warn("mind\n  the gap", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("esper.cli.listing.run_tasks", warn)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["tasks"]) == 0
    assert capsys.readouterr().err == "esper: note: mind the gap\n"
    assert warnings.showwarning is before
