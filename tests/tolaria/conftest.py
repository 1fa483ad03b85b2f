"""The task `tiny`, registered for each test of the engine."""

from collections.abc import Iterator

import pytest

from esper.tolaria.tasks import Task, forget, register
from tiny_tasks import STEPS, STEPS_ON_GPU, tiny_task


@pytest.fixture(autouse=True)
def tiny(request: pytest.FixtureRequest) -> Iterator[Task]:
    on_gpu = request.node.get_closest_marker("gpu") is not None
    row = register(tiny_task(steps_per_epoch=STEPS_ON_GPU if on_gpu else STEPS))
    yield row
    forget("tiny")
