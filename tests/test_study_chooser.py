"""The study of what choosing by the shift can gain: what is compared with what."""

from dataclasses import replace

import numpy as np
import pytest

from adapt_choices import SINGLES
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes
from study_adapt import Life
from study_chooser import LORA, RIVALS, TAUGHT, chosen, head_parameters, rivals, rows_of

HELPS, HARMS = SINGLES["small@0"], SINGLES["norm@1"]
WAITED = Outcome(
    held_out=False,
    case="",
    schedule=WAITING,
    seed=500,
    validation_accuracy=0.5,
    test_accuracy=0.6,
    host_parameters=1000,
    added_parameters=0,
    rent=0.0,
    training_flops=None,
    contribution=None,
    validation_accuracies=(),
    train_accuracies=(),
)
CASES = tuple(
    f"adapt:base=digits_layer,data={place},shift={shift},size=200"
    for place in range(6)
    for shift in ("noise", "rename")
)


def outcomes() -> Outcomes:
    """A seed gains 0.2 where the inputs are noisy and costs 0.1 where names changed; another always costs 0.3."""
    rows = []
    for case in CASES:
        gain = 0.2 if "noise" in case else -0.1
        for seed in (500, 501):
            for schedule, by, added in ((WAITING, 0.0, 0), (HELPS, gain, 70), (HARMS, -0.3, 20)):
                rows.append(
                    replace(
                        WAITED,
                        case=case,
                        seed=seed,
                        schedule=schedule,
                        validation_accuracy=0.5 + by,
                        test_accuracy=0.6 + by,
                        added_parameters=added,
                    )
                )
    return Outcomes(rows)


def test_each_target_is_chosen_for_by_the_others_and_compared_on_its_own_hosts() -> None:
    drawn = outcomes()
    lives = [
        Life(arm, case, seed, validation=0.0, test=0.65, trained=900)
        for arm in RIVALS
        for case in CASES
        for seed in (500, 501)
    ]
    measured = chosen(drawn, schedules=3) | rivals(drawn, lives)
    noisy = np.array(["noise" in case for case in CASES])
    gains, trained = measured[TAUGHT]
    assert gains == pytest.approx(np.where(noisy, 0.2, 0.0))
    assert trained == pytest.approx(np.where(noisy, 70.0, 0.0) + head_parameters(CASES[0]))
    assert measured[LORA][0] == pytest.approx(np.full(len(CASES), 0.05))
    rows = {row["arm"]: row for row in rows_of(measured, CASES)}
    assert rows[TAUGHT]["over LoRA of rank 4"] == "+5.0 ± 3.0"
    assert rows[TAUGHT]["inputs"] == "+20.0 ± 0.0"
    assert rows[LORA]["parameters trained"] == "900"
