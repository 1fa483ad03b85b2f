"""From a run to a controller that can be given away: its checkpoint as weights, and a card with its record."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from esper import __version__
from esper.leyline import RunFinished
from esper.nissa import RunError, read_events, read_provenance
from esper.simic.agent.checkpoint import DamagedCheckpoint, judged_checkpoints, read_checkpoint
from esper.simic.building import Training, build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reward import RewardConfig
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
from esper.tamiyo.networks import GrowthPolicy


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
    with _in_one_process(config) as training:
        training.agent.load(checkpoint)
        policy = training.agent.actor().policy
        assert isinstance(policy, GrowthPolicy)
        record = _training_record(run, checkpoint, config, policy, training.envs.episodes.horizon)
        return _controller(config, policy, training.envs.episodes.reward, record, name, summary, licence)


def controller_of_network(
    network: PolicyNetwork, *, name: str, summary: str = "", licence: str = "MIT"
) -> Controller:
    """A network that was taught by example, with a card made of the settings that it was taught under."""
    notes = network.notes
    settings = notes.get("config")
    if not isinstance(settings, dict):
        raise CloningError("the network has no notes of the settings that it was taught under")
    config, taught = TrainingConfig.of(settings), f"taught by {notes['rule']} in {notes['episodes']} episodes"
    steps, seconds = notes.get("env_steps"), notes.get("seconds")
    with _in_one_process(config) as training:
        episodes = training.envs.episodes
        record = TrainingRecord(
            suite=config.suite,
            horizon=episodes.horizon,
            slots=network.space.slot_config.slot_ids,
            blueprints=network.space.blueprints,
            seed=config.seed,
            rounds=0,  # none of PPO
            env_steps=steps if isinstance(steps, int) else None,
            seconds=seconds if isinstance(seconds, float) else None,
            device=config.device,
            esper=__version__,
            settings=_settings(config),
        )
        reward, words = episodes.reward, summary or f"{taught} of {config.suite}"
        return _controller(config, network.policy, reward, record, name, words, licence)


@contextmanager
def _in_one_process(config: TrainingConfig) -> Iterator[Training]:
    """What the config builds, on one host in this process: for what its cards say."""
    training = build(replace(config.in_one_process(), run_name=None))
    try:
        yield training
    finally:
        training.envs.close()


def _controller(
    config: TrainingConfig,
    policy: GrowthPolicy,
    reward: RewardConfig,
    record: TrainingRecord,
    name: str,
    summary: str,
    licence: str,
) -> Controller:
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
            rent=reward.rent,
            gamma=config.gamma,
            control_variate=config.reward_control_variate,
            counts=reward.counts,
        ),
        training=record,
    )
    return Controller(card, policy.state_dict())


def with_evidence(controller: Controller, suite: str, scores: Sequence[HeldOutScore]) -> Controller:
    """The same controller with these scores on its card."""
    rows = tuple(EvidenceRow(suite=suite, **score.model_dump()) for score in scores)
    card = controller.card.model_copy(update={"evidence": (*controller.card.evidence, *rows)})
    return Controller(card, controller.weights)


def _training_record(
    run: Path, checkpoint: Path, config: TrainingConfig, policy: GrowthPolicy, horizon: int
) -> TrainingRecord:
    saved = read_checkpoint(checkpoint)
    provenance = read_provenance(run)
    return TrainingRecord(
        suite=config.suite,
        horizon=horizon,
        slots=policy.space.slot_config.slot_ids,
        blueprints=policy.space.blueprints,
        seed=config.seed,
        rounds=saved["extra"]["round"],
        env_steps=config.whole_cost(saved["counters"]["env_steps"]),
        seconds=_seconds(run),
        device=config.device,
        esper=provenance.esper,
        commit=provenance.git_commit,
        settings=_settings(config),
    )


def _settings(config: TrainingConfig) -> dict[str, JsonValue]:
    """All of a run's, but for where it is written."""
    written = config.to_dict().items()
    return {name: value for name, value in written if name not in ("run_directory", "run_name")}


def _seconds(run: Path) -> float | None:
    """Wall time of all its parts that came to an end; None if none did."""
    try:
        ends = [record.event for record in read_events(run, kinds=[RunFinished.kind])]
    except RunError:  # a run without telemetry
        return None
    return sum(event.seconds for event in ends if isinstance(event, RunFinished)) if ends else None
