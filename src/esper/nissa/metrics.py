"""The numbers that charts show, by names that never change."""

from collections.abc import Mapping
from dataclasses import dataclass

from esper.leyline import EvaluationFinished, RoundFinished
from esper.nissa.records import Record


@dataclass(frozen=True, slots=True)
class Scalars:
    step: int
    """Environment steps over all envs."""
    values: Mapping[str, float]
    """What is known, by name."""


def scalars(record: Record) -> Scalars | None:
    """What a record adds to the charts; None if nothing."""
    event = record.event
    if isinstance(event, RoundFinished):
        return _known(event.env_steps, _round(event))
    if isinstance(event, EvaluationFinished):
        return _known(event.env_steps, _evaluation(event))
    return None


def _round(event: RoundFinished) -> dict[str, float | None]:
    executed = sum(event.operations.values())
    return {
        "charts/return": event.mean_return,
        "charts/gain": event.mean_gain,
        "charts/accuracy": event.mean_accuracy,
        "charts/control_accuracy": event.mean_control_accuracy,
        "charts/SPS": event.env_epochs_per_second,
        "charts/episodes": event.episodes,
        "charts/lost_episodes": event.lost_episodes,
        "charts/learning_rate": event.learning_rate,
        "charts/entropy_coef": event.entropy_coef,
        "losses/policy_loss": event.policy_loss,
        "losses/value_loss": event.value_loss,
        "losses/entropy": event.entropy,
        "losses/approx_kl": event.approx_kl,
        "losses/clip_fraction": event.clip_fraction,
        "losses/ratio_max": event.ratio_max,
        "losses/ratio_min": event.ratio_min,
        "losses/explained_variance": event.explained_variance,
        "losses/grad_norm": event.grad_norm,
        "losses/minibatches_skipped": event.minibatches_skipped,
        **{f"entropy/{head}": entropy for head, entropy in event.entropy_by_head.items()},
        **{f"operations/{name}": count / executed for name, count in event.operations.items() if executed},
        **{f"reward/{name}": mean for name, mean in event.reward_components.items()},
    }


def _evaluation(event: EvaluationFinished) -> dict[str, float | None]:
    family = f"evaluation/{event.suite}/{event.policy}"
    return {
        f"{family}/return": event.mean_return,
        f"{family}/utility": event.mean_utility,
        f"{family}/gain": event.mean_gain,
        f"{family}/gain_low": event.gain_low,
        f"{family}/gain_high": event.gain_high,
        f"{family}/accuracy": event.mean_accuracy,
    }


def _known(step: int, values: Mapping[str, float | None]) -> Scalars:
    return Scalars(step, {name: float(value) for name, value in values.items() if value is not None})
