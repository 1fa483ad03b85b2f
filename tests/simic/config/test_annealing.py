"""Known answers."""

import pytest

from esper.simic.config.training_config import annealing_steps


@pytest.mark.parametrize(
    ("given", "rounds", "share", "steps"),
    [(None, 100, 1.0, 100), (None, 100, 0.75, 75), (None, 1, 0.1, 1), (0, 100, 0.75, 0), (7, 100, 0.75, 7)],
)
def test_annealing_steps(given: int | None, rounds: int, share: float, steps: int) -> None:
    assert annealing_steps(given, rounds, share=share) == steps
