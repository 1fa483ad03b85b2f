"""Known answers."""

from dataclasses import replace

import numpy as np

from esper.simic.env import EpisodeSummary
from esper.simic.reports import BatchSummary

ENDED = EpisodeSummary("a", 0, 6, 0.5, 0.25, 0.5, 0.25, 1.0, 0, 0.5, (6, 0, 0, 0, 0, 0), 0, None, False)


def test_operations_of_lost_hosts_are_not_counted() -> None:
    batch = BatchSummary()
    batch.count(np.array([[0, 9], [1, 9], [5, 9]]), np.array([False, False, True]))
    batch.count(np.array([[1, 9], [1, 9], [5, 9]]), np.array([False, False, False]))
    assert batch.operations == [1, 3, 0, 0, 0, 1]


def test_gain_is_that_of_the_episodes_that_have_one() -> None:
    batch = BatchSummary()
    assert batch.mean_gain is None
    batch.episodes += [ENDED, replace(ENDED, gain=None), replace(ENDED, gain=0.75)]
    assert batch.mean_gain == 0.5
