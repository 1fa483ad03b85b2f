"""Parsing the options of a verb."""

import argparse
from pathlib import Path
from typing import NoReturn

from esper.cli.errors import BadInput, did_you_mean

RUNS = Path("runs")
"""Where runs are kept unless something else is said."""


class VerbParser(argparse.ArgumentParser):
    """Options of one verb, with an example in its help; mistakes are told in one line."""

    def __init__(self, verb: str, summary: str, example: str, *, add_help: bool = True) -> None:
        super().__init__(
            prog=f"esper {verb}",
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see `{self.prog} --help`")

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, for programs")

    def add_quiet(self) -> None:
        self.add_argument("--quiet", action="store_true", help="say nothing unless something is wrong")

    def add_run(self) -> None:
        self.add_argument("run", metavar="RUN", help="the name of a run, or the path of its folder")
        self.add_directory()

    def add_directory(self) -> None:
        self.add_argument(
            "--directory", type=Path, default=RUNS, metavar="FOLDER", help="where runs are kept (%(default)s)"
        )


def find_run(given: str, directory: Path) -> Path:
    """The folder of a run that was named, or pointed at."""
    for path in (directory / given, Path(given)):
        if given and (path / "config.json").is_file():
            return path
    known = [path.name for path in sorted(directory.glob("*")) if (path / "config.json").is_file()]
    hint = did_you_mean(given, known, "`esper runs` lists what is there")
    raise BadInput(f"there is no run {given!r} in {directory}; {hint}")
