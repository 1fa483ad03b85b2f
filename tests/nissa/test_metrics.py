"""The names on the charts are a promise."""

from esper.nissa.recorder import scalars
from event_examples import EXAMPLES

GOLDEN = {
    "charts/return": 0.09375,
    "charts/gain": 0.0625,
    "charts/accuracy": 0.828125,
    "charts/control_accuracy": 0.75,
    "charts/SPS": 19.6875,
    "charts/episodes": 32.0,
    "charts/lost_episodes": 0.0,
    "charts/learning_rate": 3e-4,
    "charts/entropy_coef": 0.045,
    "losses/policy_loss": -0.0125,
    "losses/value_loss": 0.125,
    "losses/entropy": 2.25,
    "losses/approx_kl": 0.0078125,
    "losses/clip_fraction": 0.0625,
    "losses/ratio_max": 1.75,
    "losses/ratio_min": 0.5,
    "losses/explained_variance": 0.625,
    "losses/grad_norm": 0.375,
    "losses/minibatches_skipped": 0.0,
    "entropy/op": 1.25,
    "entropy/slot": 0.75,
    "entropy/blueprint": 2.0,
    "entropy/alpha_speed": 1.25,
    "operations/WAIT": 410 / 640,
    "operations/GERMINATE": 88 / 640,
    "operations/SET_ALPHA_TARGET": 12 / 640,
    "operations/PRUNE": 41 / 640,
    "operations/FOSSILIZE": 39 / 640,
    "operations/ADVANCE": 50 / 640,
    "reward/final_score": 0.0,
    "reward/final_rent": 0.0,
    "reward/final_control": 0.0,
    "reward/potential_after": 0.0625,
    "reward/potential_before": -0.03125,
    "reward/rollback": 0.0,
    "reward/total": 0.03125,
}


def test_a_rounds_names_and_numbers() -> None:
    assert scalars(EXAMPLES["round_finished"]) == (2560, GOLDEN)


def test_an_evaluations_names_and_numbers() -> None:
    assert scalars(EXAMPLES["evaluation_finished"]) == (
        2560,
        {
            "evaluation/cpu/learned/return": 0.0625,
            "evaluation/cpu/learned/utility": 0.78125,
            "evaluation/cpu/learned/gain": 0.046875,
            "evaluation/cpu/learned/gain_low": 0.03125,
            "evaluation/cpu/learned/gain_high": 0.0625,
            "evaluation/cpu/learned/accuracy": 0.796875,
        },
    )


def test_other_events_are_not_charted() -> None:
    charted = {kind for kind, record in EXAMPLES.items() if scalars(record)[1]}
    assert charted == {"round_finished", "evaluation_finished"}
