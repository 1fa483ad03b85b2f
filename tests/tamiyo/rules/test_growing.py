"""When the simple rules grow, and what they keep."""

from dataclasses import replace

import pytest

from esper.leyline import HostSignals, LifecycleOp
from esper.tamiyo.rules.heuristics import FitRatioPolicy, PeriodicPolicy, PlateauPolicy, fit_ratio
from watched import ModelHost, live, small_model

SIGNALS = HostSignals(
    epoch=3,
    horizon=20,
    training_samples=100,
    train_loss=None,
    train_accuracy=None,
    validation_loss=None,
    validation_accuracy=None,
    plateau_epochs=0,
    gradient_norm=None,
    host_parameters=10,
    added_parameters=0,
    parameter_budget=None,
    last_operation=LifecycleOp.WAIT,
)


def germinations(done: list[tuple[int, str]]) -> list[int]:
    return [epoch for epoch, what in done if what.startswith("germinate")]


def test_periodic_grows_by_the_clock_and_cheapest_first() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: -1.0)
    done = live(PeriodicPolicy(every=7), host, horizon=30)
    assert germinations(done) == [0, 7, 14, 21, 28]
    costs = {
        f"germinate {card.name}@{slot}": card.parameters
        for slot, cards in host.cards.items()
        for card in cards
    }
    spent = [costs[what] for _, what in done if what in costs]
    assert spent == sorted(costs.values())[:5]


def test_plateau_waits_for_one() -> None:
    climbing = ModelHost(small_model("series"), accuracy=lambda epoch: 0.02 * epoch)
    assert live(PlateauPolicy(), climbing, horizon=30) == []
    stuck = ModelHost(small_model("series"), accuracy=lambda epoch: min(epoch, 5) * 0.1)
    done = live(PlateauPolicy(patience=4), stuck, horizon=40)
    assert germinations(done)[0] == 9
    # one after another, although two could live at once
    assert [what.split()[0] for _, what in done[:6]] == ["germinate", "advance", "prune"] * 2


def test_what_pays_is_kept_and_what_does_not_is_removed() -> None:
    def first_end(contribution: float, rent: float) -> str:
        host = ModelHost(small_model("series"), measure=lambda *_: contribution)
        done = live(PeriodicPolicy(every=50, margin=0.01, rent=rent), host, horizon=12)
        return done[-1][1].split()[0]

    assert first_end(0.02, rent=0.0) == "fossilize"
    assert first_end(0.01, rent=0.0) == "prune"
    assert first_end(0.02, rent=10.0) == "prune"


def test_the_fit_ratio() -> None:
    assert fit_ratio(SIGNALS) is None
    assert fit_ratio(replace(SIGNALS, train_accuracy=0.9, validation_accuracy=0.6)) == pytest.approx(1.5)
    losses = replace(SIGNALS, train_loss=0.5, validation_loss=1.0, train_accuracy=0.9)
    assert fit_ratio(losses) == pytest.approx(2.0)
    assert fit_ratio(replace(losses, train_loss=0.0)) is None


class Overfitting(ModelHost):
    """Training runs ahead of validation from some epoch on."""

    def epoch(self) -> None:
        super().epoch()
        self.report = replace(self.report, train_accuracy=0.6 if self.report.epoch < 8 else 1.0)


def test_fit_ratio_grows_the_underfit_and_prunes_the_overfit() -> None:
    host = Overfitting(small_model("series"), accuracy=lambda _: 0.6, measure=lambda *_: 0.5)
    done = live(FitRatioPolicy(), host, horizon=30)
    assert germinations(done)[0] == 2
    assert all(epoch < 8 for epoch in germinations(done))
    assert done[-1][1].startswith("prune")


def test_a_budget_is_respected() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: 1.0)
    cheapest = min(card.parameters for cards in host.cards.values() for card in cards)
    live(PeriodicPolicy(every=1), host, horizon=40, budget=2 * cheapest)
    assert 0 < host.added_parameters <= 2 * cheapest


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PeriodicPolicy(every=0), "every is 0; expected >= 1"),
        (lambda: PlateauPolicy(patience=0), "patience is 0; expected >= 1"),
        (lambda: FitRatioPolicy(grow_below=2.0), "grow_below is 2.0, prune_above 1.3"),
    ],
)
def test_nonsense_is_refused(make: type[PeriodicPolicy], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
