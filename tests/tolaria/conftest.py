"""The task `tiny`, registered for each test of the engine."""

from collections.abc import Iterator

import pytest

from esper.tolaria.tasks import Task, forget, register
from tiny_tasks import tiny_task


@pytest.fixture(autouse=True)
def tiny() -> Iterator[Task]:
    row = register(tiny_task())
    yield row
    forget("tiny")
