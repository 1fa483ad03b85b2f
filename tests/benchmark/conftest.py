from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.tolaria.tasks import forget, register
from tiny_tasks import picture_task, tiny_task


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A task of milliseconds, long enough for a whole life of a seed."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "cache"))
    register(tiny_task(epochs=7, steps_per_epoch=3))
    yield "tiny"
    forget("tiny")


@pytest.fixture
def pictures() -> Iterator[str]:
    register(picture_task())
    yield "pictures"
    forget("pictures")
