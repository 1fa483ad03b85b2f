"""What Esper ships beside its code is in the package, found the way that an installed one finds it."""

import hashlib
import json
import tomllib
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
CONTROLLERS = ("cpu-v1",)
OUTCOMES = ("cpu.parquet",)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_is_whole(name: str) -> None:
    folder = files("esper") / "controllers" / name
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    weights = (folder / "weights.safetensors").read_bytes()
    assert card["name"] == name
    assert card["weights_sha256"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcomes_of_schedules_are_there(name: str) -> None:
    content = (files("esper.benchmark") / "shipped" / name).read_bytes()
    assert (content[:4], content[-4:]) == (b"PAR1", b"PAR1")


def test_nothing_of_it_is_left_out_of_a_wheel() -> None:
    """Hatch packs what git does not ignore under `packages`: no pattern may take data away again."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert settings == {"targets": {"wheel": {"packages": ["src/esper"]}}}
    ignored = (ROOT / ".gitignore").read_text().split()
    assert not {"*.parquet", "*.safetensors", "*.json", "controllers/", "shipped/"} & set(ignored)


def test_every_pin_can_be_had_by_the_first_python_that_is_promised() -> None:
    """Debian's 3.11 is 3.11.2: a package that asks for more cannot be set up there."""
    pins = [
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    ]
    installed = {each.name: each for each in distributions() if each.name}
    wanted = {name: installed[name].metadata for name in {*pins} & installed.keys()}
    assert len(wanted) > len({*pins}) // 2
    asked = {name: each["Requires-Python"] for name, each in wanted.items() if "Requires-Python" in each}
    assert {name: python for name, python in asked.items() if "3.11.2" not in SpecifierSet(python)} == {}
