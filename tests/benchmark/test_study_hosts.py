"""The headroom of draws: chosen on one host, scored on the other, against an answer by hand."""

import re

import numpy as np
import pytest

from esper.leyline import BlueprintCard
from esper.tolaria.tasks import Instance
from make_outcomes import ANY_HOST, ANY_PAIR, PLACES, grid, grid_of_any_host
from study_hosts import headroom, mean_and_error


def test_known_headroom() -> None:
    # (draw, schedule, host); schedule 0 is the single best on both hosts, the second draw's own best differs by host
    utility = np.array([[[5.0, 5.0], [1.0, 1.0], [0.0, 0.0]], [[2.0, 2.0], [4.0, 1.0], [0.0, 3.0]]])
    score = 10 * utility + np.array([0.5, 0.25])
    sbs, vbs, chosen = headroom(utility, score)
    assert chosen == [0, 1, 0, 2]
    assert sbs == pytest.approx([50.375, 20.375])
    # on the second draw: chosen by host 0 and scored on host 1, and the other way round
    assert vbs == pytest.approx([50.375, (10.25 + 0.5) / 2])


def test_mean_and_error() -> None:
    assert mean_and_error(np.array([1.0, 3.0, 5.0])) == pytest.approx((3.0, 2 / np.sqrt(3)))


def test_the_grid_of_any_host_has_late_pairs() -> None:
    grid = grid_of_any_host((2, 8))
    assert grid[0] == ""
    assert len(grid) == len(set(grid)) == 1 + len(ANY_HOST) * len(PLACES) * 2 + 2 * len(ANY_PAIR)
    assert (
        "germinate widen@first t=10; advance first t=11; germinate widen@last t=10; advance last t=11" in grid
    )


def test_the_grid_of_targets_has_what_every_base_offers_in_one_form() -> None:
    schedules = grid("adapt", small=False)
    assert len(set(schedules)) == 1 + 6 * 4 + 9
    assert "germinate conv_small|mlp_small@last t=2; advance last t=3" in schedules
    for kind in ("series_batch", "digits_attention"):
        offered = {card.name for card in slot_cards(f"adapt:base={kind}")}
        grown = set(re.findall(r"germinate (\S+)@", " ".join(schedules)))
        assert all(offered & set(each.split("|")) for each in grown)


def slot_cards(case: str) -> list[BlueprintCard]:
    instance = Instance.parse(case)
    model = instance.row.grow(instance.load(), seed=0)
    return [card for slot in model.slots.values() for card in slot.cards]
