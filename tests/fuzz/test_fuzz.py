"""Whatever comes in by a door is refused by a named error or is a valid object: no other traceback, no hang, and
nothing that is read is executed."""

from pathlib import Path

import pytest

from fuzz import checkpoints, configs, controllers, data_files, events, grown, instances, requests, rows
from fuzz.door import Door, try_case

FILES = (configs, instances, events, checkpoints, controllers, grown, rows, data_files, requests)
DOORS = tuple(door for file in FILES for door in file.DOORS)
SMOKE = 40
each_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


def _try(door: Door, cases: int, folder: Path) -> None:
    outcomes = {try_case(door, number, folder) for number in range(cases)}
    assert len(outcomes) > 1, f"every case of {door.name} ended in {outcomes}: nothing is tried"


def test_there_are_as_many_cases_as_the_page_says() -> None:
    assert sum(door.cases for door in DOORS) == 100_000


@each_door
def test_some_cases(door: Door, tmp_path: Path) -> None:
    _try(door, SMOKE, tmp_path)


@pytest.mark.slow
@each_door
def test_many_cases(door: Door, tmp_path: Path) -> None:
    _try(door, door.cases, tmp_path)
