"""Workers are copies of one process that has imported torch, with the environment variables of their own start."""

import os
import sys

import pytest

from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.worker import PRELOADED
from worker_worlds import where_it_runs


def test_workers_share_the_process_that_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for value in ("one", "two"):
        monkeypatch.setenv("ESPER_CACHE", value)
        with ProcessWorld(ToyWorld, num_hosts=2, workers=2) as world:
            seen += list(world.call_all(where_it_runs, [["ESPER_CACHE"], ["ESPER_CACHE"]]))
    assert [variable for _, variable in seen] == ["one", "one", "two", "two"]
    parents = {parent for parent, _ in seen}
    if sys.platform == "linux":
        assert len(parents) == 1
        assert os.getpid() not in parents


@pytest.mark.parametrize("module", PRELOADED)
def test_what_is_imported_beforehand_exists(module: str) -> None:
    """The start of the process that imports passes over modules that it does not find."""
    __import__(module)
