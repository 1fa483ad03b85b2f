"""The tabular benchmark: a chooser picks an open-loop schedule for each host, and is judged in seconds.

    bench = TabularBench(Outcomes.read(path))
    scores = bench.score(lambda context: "germinate mixer@1 t=0; advance 1 t=1" if ... else WAITING)
    print(bench.compare(scores))

`make_outcomes.py` makes the outcomes; those of the shipped suites come with Esper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from esper.benchmark.outcomes import WAITING, Outcomes
from esper.statistics import Estimate, Resamples, Scores, paired_difference, share_of_gap


@dataclass(frozen=True, slots=True)
class Context:
    """What waiting on a host showed, before anything is grown: what a chooser may look at."""

    case: str
    seed: int
    validation_accuracies: tuple[float, ...]
    """After 0, 1, ... epochs."""
    train_accuracies: tuple[float | None, ...]


Chooser = Callable[[Context], str]
"""Picks a schedule."""


@dataclass(frozen=True, slots=True)
class TabularComparison:
    """A chooser against SBS and VBS, paired over the hosts, on the test split."""

    over_sbs: Estimate
    """Its score minus SBS's."""
    gap: Estimate
    """VBS minus SBS: what there is to win."""
    share: Estimate
    """The part of that gap that it won."""


class TabularBench:
    """The held-out part of some outcomes as a benchmark: every schedule on every host is known.

    look  epochs of waiting that a chooser may see
    """

    def __init__(self, outcomes: Outcomes, *, look: int = 4) -> None:
        self.table = outcomes.part(held_out=True)
        self.sbs_schedule = outcomes.part(held_out=False).single_best()
        self.look = look
        for schedule in (WAITING, self.sbs_schedule):
            if schedule not in self.table.schedules:
                raise ValueError(f"schedule {schedule!r} was not played on every held-out host")

    def context(self, case: str, seed: int) -> Context:
        """What a chooser sees of one host."""
        row = self.table.by_key[case, WAITING, seed]
        seen = self.look + 1
        return Context(case, seed, row.validation_accuracies[:seen], row.train_accuracies[:seen])

    def score(self, choose: Chooser) -> Scores:
        """(1, case, seed): the test utility of what was chosen for each host."""
        table = self.table
        chosen = [choose(self.context(case, seed)) for case, seed in product(table.cases, table.seeds)]
        unknown = set(chosen) - set(table.schedules)
        if unknown:
            raise ValueError(
                f"schedule {min(unknown)!r} is not in the table; `.table.schedules` has the {len(table.schedules)}"
            )
        places = np.array([table.schedules.index(schedule) for schedule in chosen])
        return self._taken(places.reshape(len(table.cases), len(table.seeds)))

    def sbs(self) -> Scores:
        """The single best schedule of the drawn cases."""
        return self.score(lambda _: self.sbs_schedule)

    def vbs(self) -> Scores:
        """The best schedule of each case, chosen for each host on the case's other hosts, on validation."""
        utility, seeds = self.table.utility, len(self.table.seeds)
        if seeds < 2:
            raise ValueError(
                "the table has one seed a case; VBS is chosen on other seeds than it is scored on"
            )
        others = (utility.sum(axis=2, keepdims=True) - utility) / (seeds - 1)  # (case, schedule, seed)
        return self._taken(others.argmax(axis=1))

    def oracle(self) -> Scores:
        """The best schedule of each host in hindsight, on the test split itself: nothing can score more."""
        best: Scores = self.table.score.max(axis=1)[None]
        return best

    def compare(self, scores: Scores) -> TabularComparison:
        """Scores (member, case, seed) against SBS and VBS."""
        sbs, vbs = self.sbs(), self.vbs()
        resamples = Resamples(len(self.table.cases), len(self.table.seeds))
        return TabularComparison(
            over_sbs=resamples.estimate_of_means(paired_difference, scores, sbs),
            gap=resamples.estimate_of_means(paired_difference, vbs, sbs),
            share=resamples.estimate_of_means(share_of_gap, scores, sbs, vbs),
        )

    def _taken(self, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Scores:
        """places (case, seed) of schedules -> (1, case, seed)"""
        taken: Scores = np.take_along_axis(self.table.score, places[:, None, :], axis=1).swapaxes(0, 1)
        return taken
