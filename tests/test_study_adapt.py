"""The headroom gate of adapt: what is played once, what is chosen where, and the tables of what was played."""

import re

import pytest

import study_adapt as study
from adapt_choices import PLACES
from adapt_signals import SIGNALS, Pair
from esper.leyline import Stage
from watched import ModelHost, live, small_model

NOISY, RENAMED, LAYERED = (
    "adapt:amount=0.5,size=100",
    "adapt:shift=rename",
    "adapt:base=digits_layer,size=100",
)
SEEDS = range(9000, 9002)
LORA = "lora 4, lr 0.005"


def lives(
    worth: dict[str, float], case: str, *, pairs: tuple[Pair, ...] = (), arms: tuple[str, ...] = (LORA,)
) -> list[study.Life]:
    return [
        study.Life(arm, case, seed, worth.get(arm, 0.5), worth.get(arm, 0.5), 100, pairs)
        for arm in (*study.CHOICES, *arms)
        for seed in SEEDS
    ]


@pytest.mark.parametrize("arm", study.SCHEDULES)
def test_every_seed_of_a_choice_grows_once_the_head_has_met_the_target(arm: str) -> None:
    host = ModelHost(small_model("series", slots=5))
    done = live(study.policy_of(arm), host, horizon=20)
    assert done[0][0] == 2
    places = [4 if place == "last" else int(place) for place in re.findall(r"@(\w+)", arm)]
    alive = [place for place, slot in enumerate(host.snapshots()) if slot.stage is not Stage.DORMANT]
    assert alive == sorted(places)
    assert all(slot.alpha == 1.0 for slot in host.snapshots() if slot.stage is not Stage.DORMANT)


def test_what_is_alike_is_played_once() -> None:
    moving, target = (f"fine-tuning, {whose} statistics, lr 0.002" for whose in ("moving", "target"))
    assert study.first_alike(LAYERED)[moving] == target
    assert study.first_alike(NOISY)[moving] == moving
    assert study.first_alike(LAYERED)["head, source statistics"] == study.NEVER
    known = study.by_key([study.Life(target, LAYERED, 9000, 0.7, 0.6, 10)])
    assert known[moving, LAYERED, 9000].test == 0.6


def test_the_gate_is_the_oracle_over_the_best_of_the_others() -> None:
    played = [
        *lives({"small@0": 0.7, LORA: 0.6}, NOISY),
        *lives({"large@last": 0.66, LORA: 0.58}, RENAMED),
        *lives({}, LAYERED)[:-1],  # not played by every arm on every host
    ]
    gate = study.judge(study.by_key(played), [NOISY, RENAMED, LAYERED], SEEDS, [LORA])
    assert gate.cases == [NOISY, RENAMED]
    assert gate.best_rival == "one seed for all: small@0"
    assert gate.gains["oracle"] == pytest.approx([0.2, 0.16])
    assert gate.gains[LORA] == pytest.approx([0.1, 0.08])
    assert gate.gains["random place"] == pytest.approx([0.2 / 24, 0.16 / 24])
    assert gate.gains["any kind @last"] == pytest.approx([0.0, 0.16 / 6])
    assert gate.headroom() == pytest.approx([0.0, 0.16])
    assert gate.chosen == {"small@0": 2, "large@last": 2}
    whole, inputs, labels = study.group_rows(gate)
    assert [row["shifts of"] for row in (whole, inputs, labels)] == ["all", "inputs", "labels"]
    assert (whole["oracle minus it"], whole["standard error"], whole["gate"]) == ("+8.00", "8.00", "closed")
    assert labels["best of the others here"] == f"{LORA} +8.00"


def test_the_oracle_is_scored_on_other_hosts_than_it_chose_by() -> None:
    """A choice that is lucky on one host, in validation, does not count as good there."""
    known = study.by_key(lives({}, NOISY))
    known["norm@1", NOISY, 9000] = study.Life("norm@1", NOISY, 9000, 0.9, 0.9, 100)
    gate = study.judge(known, [NOISY], SEEDS, [LORA])
    assert gate.chosen == {study.NEVER: 1, "norm@1": 1}
    assert gate.gains["oracle"] == pytest.approx([0.0])


def test_a_rival_is_tuned_on_the_draws_that_all_its_settings_played() -> None:
    arms = [arm for arm, rival in study.rivals().items() if rival.name == "lora 16"]
    draws = [(NOISY, 0), (RENAMED, 0)]
    known = {(arm, *host): study.Life(arm, *host, 0.5, 0.5, 1) for arm in study.rivals() for host in draws}
    known[arms[1], NOISY, 0] = study.Life(arms[1], NOISY, 0, 0.6, 0.1, 1)
    known[arms[2], RENAMED, 0] = study.Life(arms[2], RENAMED, 0, 0.9, 0.9, 1)
    del known[arms[0], RENAMED, 0]  # the time was up
    assert arms[1] in study.tuned(known, draws)
    assert len(study.tuned(known, draws)) == 6
    with pytest.raises(SystemExit, match="no target was played by every arm"):
        study.judge({}, [NOISY], SEEDS, [LORA])


def test_signals_are_ranked_against_the_gains_of_the_same_pairs() -> None:
    slots, blueprints = ("stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3"), ("norm", "lora")
    pairs = tuple(
        Pair(
            slot,
            blueprint,
            dict(zip(SIGNALS, (depth, -depth, 1.0, depth), strict=True)),
        )
        for depth, slot in enumerate(slots)
        for blueprint in blueprints
    )
    worth = {
        f"{kind}@{place}": 0.5 + 0.1 * index for index, place in enumerate(PLACES) for kind in blueprints
    }
    known = study.by_key(lives(worth, NOISY, pairs=pairs))
    gains = study.pair_gains(known, NOISY, SEEDS)
    assert gains["blocks.3", "lora"] == pytest.approx(0.3)  # the last, of five
    assert ("blocks.2", "lora") not in gains  # which is nowhere played
    found = {signal: value for _, signal, value in study.correlations(known, [NOISY], SEEDS)}
    assert found["ratio at birth"] == pytest.approx(1.0)
    assert found["ratio with a trained head"] == pytest.approx(-1.0)
    assert "parameters" not in found  # the same for all: there is no rank
    rows = study.signal_rows(study.correlations(known, [NOISY], SEEDS))
    assert [row["shifts of"] for row in rows] == ["all", "inputs"]
    assert str(rows[0]["ratio at birth"]).startswith("+1.00")
    assert rows[0]["parameters"] == "-"
