"""The README's table and picture are what the benchmark's rows say, and what ships is one of its controllers."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from esper.simic.bench import read_bench
from esper.tamiyo.controller import Controller

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def headline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("headline", ROOT / "scripts" / "headline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["headline"] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_says_what_was_measured(headline: ModuleType) -> None:
    tables = read_bench(headline.EVIDENCE).tables
    readme = headline.README.read_text()
    assert headline.with_section(readme, headline.section(tables)) == readme, (
        "run: python scripts/headline.py"
    )
    assert headline.PICTURE.read_text() == headline.picture(tables[0]), "run: python scripts/headline.py"


def test_the_shipped_controller_is_one_of_the_five() -> None:
    members = [
        Controller.load(ROOT / "benchmarks" / "controllers" / f"cpu-v1-seed{seed}") for seed in range(5)
    ]
    digests = [member.card.weights_sha256 for member in members]
    assert len(set(digests)) == 5
    shipped = Controller.load("cpu-v1").card
    assert digests.index(shipped.weights_sha256) == shipped.training.seed == 2
    own = next(row for row in shipped.evidence if row.policy == "cpu-v1")
    assert own.gain_low > 0.0
