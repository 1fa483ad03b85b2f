"""The table of tasks is looked at as it is shipped."""

import pytest


@pytest.fixture(autouse=True)
def tiny() -> None:
    """Instead of the engine's, which registers a task of its own."""
