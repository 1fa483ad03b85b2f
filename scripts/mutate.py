"""Do the tests notice a broken rule? `python scripts/mutate.py` breaks one after another and reports survivors.

Each row of `MUTANTS` names a break: a text in a file of the package, what it is replaced by, and the tests that must
then fail. The break is planted in a copy of `src`, and the tests run with that copy; the working tree is left alone.

    python scripts/mutate.py                     all of them; exit status 1 if any survives
    python scripts/mutate.py --list              their names and the tests that must notice
    python scripts/mutate.py --only clip_share   some, by name
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
FAILED = 1
"""The exit status of pytest when tests ran and some failed."""


class UnfitRow(Exception):
    """A row that says nothing about the tests; the message names it."""


def planted(mutant: Mutant, source: Path) -> str:
    """The file's text with the break in it."""
    text = source.read_text()
    found = text.count(mutant.text)
    if found != 1:
        raise UnfitRow(f"{mutant.name}: its text is in src/esper/{mutant.file} {found} times; expected once")
    return text.replace(mutant.text, mutant.replacement)


def run_tests(tests: Sequence[str], package: Path) -> subprocess.CompletedProcess[str]:
    """The named tests on a copy of the package, up to the first failure."""
    # Without bytecode: a file that is changed and changed back within a second would be taken for the same.
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a second each time, for plugins that no test needs
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def survives(mutant: Mutant, package: Path) -> bool:
    """Whether the tests pass in spite of the break."""
    source = package / "esper" / mutant.file
    before = source.read_bytes()
    source.write_text(planted(mutant, source))
    try:
        done = run_tests(mutant.tests, package)
    finally:
        source.write_bytes(before)
    if done.returncode not in (0, FAILED):
        raise UnfitRow(f"{mutant.name}: its tests could not be run\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def survivors(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, bool]]:
    """Each with whether it survives; first the tests must pass where nothing is broken."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "src"
        shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            planted(mutant, package / "esper" / mutant.file)
        done = run_tests(sorted({test for mutant in mutants for test in mutant.tests}), package)
        if done.returncode != 0:
            raise UnfitRow(f"the tests fail where nothing is broken\n{done.stdout}{done.stderr}")
        for mutant in mutants:
            yield mutant, survives(mutant, package)


def main(arguments: Sequence[str] | None = None) -> int:
    """Report each as it is known; 1 if any survives, 2 if a row is unfit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show the rows and run nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[mutant.name for mutant in MUTANTS])
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if options.only is None or mutant.name in options.only]
    width = max(len(mutant.name) for mutant in chosen)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:{width}}  {mutant.file:{36}}  {' '.join(mutant.tests)}")
        return 0
    alive = 0
    try:
        for mutant, survived in survivors(chosen):
            alive += survived
            print(
                f"{mutant.name:{width}}  {'SURVIVES' if survived else 'noticed':8}  {mutant.file}", flush=True
            )
    except UnfitRow as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    print(f"{alive} of {len(chosen)} survive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
