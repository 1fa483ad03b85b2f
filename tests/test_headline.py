"""Tables and picture are what the benchmarks' rows say, and what ships is one of their controllers."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

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


def test_the_pages_say_what_was_measured(headline: ModuleType) -> None:
    for path, text in headline.written().items():
        assert path.read_text() == text, "run: python scripts/headline.py"


@pytest.mark.parametrize(
    ("name", "seed", "of"), [("cpu-v1", 2, 5), ("shift-v1", 0, 5), ("stream-v1", 0, 10), ("adapt-v1", 0, 10)]
)
def test_a_shipped_controller_is_one_of_several(name: str, seed: int, of: int) -> None:
    members = [
        Controller.load(ROOT / "benchmarks" / "controllers" / f"{name}-seed{each}") for each in range(of)
    ]
    digests = [member.card.weights_sha256 for member in members]
    assert len(set(digests)) == of
    shipped = Controller.load(name).card
    assert digests.index(shipped.weights_sha256) == shipped.training.seed == seed
    own = next(row for row in shipped.evidence if row.policy == name)
    assert own.gain_low is not None
    assert own.gain_low > 0.0
