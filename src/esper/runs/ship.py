"""From a run to a controller that can be given away: its checkpoint as weights, and a card with its record."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from esper.leyline import RunFinished
from esper.nissa import RunError, read_events, read_provenance
from esper.simic.agent.checkpoint import DamagedCheckpoint, judged_checkpoints, read_checkpoint
from esper.simic.building import build
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.tamiyo.controller import (
    Controller,
    ControllerCard,
    EvidenceRow,
    HeldOutScore,
    NetworkRecord,
    RewardRecord,
    TrainingRecord,
    layout_fingerprint,
)
from esper.tamiyo.growth_policy import GrowthPolicy


def require_checkpoint(run: Path) -> Path:
    """A run's best checkpoint, or else its last or the one before; raises RunError if none of them is sound.

    Warns of damaged ones that were passed over.
    """
    damaged: dict[Path, DamagedCheckpoint] = {}
    for path in judged_checkpoints(run):
        try:
            read_checkpoint(path)
        except DamagedCheckpoint as error:
            damaged[path] = error
            continue
        if damaged:
            names = ", ".join(each.name for each in damaged)
            warnings.warn(f"damaged: {names}; {path.name} is used", stacklevel=2)
        return path
    if damaged:
        raise RunError(f"run {run} has no sound checkpoint ({'; '.join(map(str, damaged.values()))})")
    raise RunError(f"run {run} has no checkpoint; train it first")


def controller_of_run(
    run: Path, checkpoint: Path, *, name: str, summary: str = "", licence: str = "MIT"
) -> Controller:
    """The policy in a run's checkpoint, with a card made of the run's settings and record."""
    config = TrainingConfig.load(run / "config.json")
    if config.normalize_observations:
        raise ConfigError(
            "normalize_observations is on: its statistics belong to one suite's slots and blueprints, so this "
            "controller cannot serve other hosts. Train without it (observations are bounded)"
        )
    here = replace(config.in_one_process(), run_name=None)
    training = build(here)
    training.agent.load(checkpoint)
    policy = training.agent.actor().policy
    assert isinstance(policy, GrowthPolicy)
    rent = training.envs.episodes.reward.rent
    card = ControllerCard(
        name=name,
        summary=summary or f"trained on {config.suite}",
        licence=licence,
        layout=layout_fingerprint(policy.sight, retire=config.retire, units=config.observation_units),
        network=NetworkRecord(
            hidden_size=policy.hidden_size,
            num_lstm_layers=policy.num_lstm_layers,
            width=policy.width,
            key_size=policy.key_size,
            sight=policy.sight,
        ),
        decisions=config.decisions,
        reward=RewardRecord(
            family=config.reward_family,
            mode=config.reward_mode,
            rent=rent,
            gamma=config.gamma,
            control_variate=config.reward_control_variate,
            counts=training.envs.episodes.reward.counts,
        ),
        training=_training_record(run, checkpoint, config, policy, training.envs.episodes.horizon),
    )
    training.envs.close()
    return Controller(card, policy.state_dict())


def with_evidence(controller: Controller, suite: str, scores: Sequence[HeldOutScore]) -> Controller:
    """The same controller with these scores on its card."""
    rows = tuple(EvidenceRow(suite=suite, **score.model_dump()) for score in scores)
    card = controller.card.model_copy(update={"evidence": (*controller.card.evidence, *rows)})
    return Controller(card, controller.weights)


def _training_record(
    run: Path, checkpoint: Path, config: TrainingConfig, policy: GrowthPolicy, horizon: int
) -> TrainingRecord:
    counters = read_checkpoint(checkpoint)["counters"]
    provenance = read_provenance(run)
    return TrainingRecord(
        suite=config.suite,
        horizon=horizon,
        slots=policy.space.slot_config.slot_ids,
        blueprints=policy.space.blueprints,
        seed=config.seed,
        rounds=counters["updates"],
        env_steps=counters["env_steps"],
        seconds=_seconds(run),
        device=config.device,
        esper=provenance.esper,
        commit=provenance.git_commit,
        settings={
            name: value
            for name, value in config.to_dict().items()
            if name not in ("run_directory", "run_name")
        },
    )


def _seconds(run: Path) -> float | None:
    """Wall time of all its parts that came to an end; None if none did."""
    try:
        ends = [record.event for record in read_events(run, kinds=[RunFinished.kind])]
    except RunError:  # a run without telemetry
        return None
    return sum(event.seconds for event in ends if isinstance(event, RunFinished)) if ends else None
