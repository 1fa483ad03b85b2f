"""Behaviour cloning, and starting PPO from a network that has been taught.

`PolicyNetwork` is taught from a `Recording`, which `record_episodes` makes; `warm_start` gives a training's policy
the weights of a cloned rule, a saved network or a controller.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Self

import numpy as np
import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.leyline import DecisionSettings, LifecycleOp, SlotConfig
from esper.leyline.errors import EsperError
from esper.simic.agent.checkpoint import CheckpointError, judged_checkpoints, read_checkpoint
from esper.simic.building import Training, build, prepare_baselines
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.accounts import PRIVILEGED
from esper.simic.env.making import make_world
from esper.simic.evaluation import Player, RulePlayer
from esper.simic.offline.recorder import record_episodes
from esper.simic.offline.recording import Recording
from esper.tamiyo import Actor, GrowthPolicy, Policy, unwrap
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.controller import Controller, ControllerError, UnknownController, shipped_controllers
from esper.tamiyo.distributions import HeadEvaluation
from esper.tamiyo.layout import growth_actions, growth_log_probs
from esper.tamiyo.networks import widened
from esper.tamiyo.policy import without_critic
from esper.tamiyo.rules import RULE_NAMES, rule_policy

EPISODES = 64
"""Episodes of the training pool that a rule is recorded on."""
_FORMAT = "esper-clone-3"
_SIZES = ("hidden_size", "num_lstm_layers")
"""Of the policy, written beside its weights."""
_UNITS = (
    "gamma",
    "reward_family",
    "reward_mode",
    "normalize_rewards",
    "normalize_observations",
    "privileged_critic",
    "observation_units",
)
"""Settings that the meaning of a run's weights and values depends on."""


class CloningError(EsperError, ValueError):
    """What cannot be cloned, saved or loaded."""


def _space_of(metadata: Mapping[str, str]) -> GrowthSpace:
    """The space that `PolicyNetwork.save` wrote."""
    try:
        written = json.loads(metadata["space"])
        slots, blueprints = tuple(written["slots"]), tuple(written["blueprints"])
        settings = DecisionSettings(
            retire=written.get("retire", False), observation_units=written.get("units", "absolute")
        )
        return GrowthSpace(SlotConfig(slots), blueprints).under(settings)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it does not name its slots and blueprints: {error}") from None


# A network that is taught from a recording


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a network would have decided as recorded, where there was anything to decide."""

    steps: int
    """Steps on which there was a choice."""
    joint: float
    """The share of them on which every head that matters agrees."""
    acting: float | None
    """The same where something else than to wait was done; None where nothing was."""
    by_head: dict[str, float | None]
    """Where a head mattered and had a choice; None where it never did."""
    log_likelihood: float
    """Mean over those steps, of the whole decision."""
    operation_log_likelihood: float
    """The part of it that is the operation's; the rest is of where, with what and how."""


@dataclass(frozen=True, slots=True)
class CloningReport:
    """How well a network was taught."""

    losses: tuple[float, ...]
    """Mean negative log-likelihood, pass by pass."""
    training: Agreement
    """On the episodes it was taught from."""
    held_out: Agreement | None
    """On other episodes; None where there were none."""


class PolicyNetwork:
    """The growth controller's network, taught by example. PPO can start from its weights.

    >>> network = PolicyNetwork(recording.space)
    >>> report = network.fit(recording, held_out=later)
    >>> network.actor(8).act(...)
    """

    def __init__(
        self,
        space: GrowthSpace,
        *,
        hidden_size: int = 128,
        num_lstm_layers: int = 1,
        seed: int = 0,
        notes: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.space = space
        self.notes = dict(notes or {})
        """Plain data that travel with the weights: the settings it was recorded under."""
        self.policy = GrowthPolicy(
            space,
            hidden_size=hidden_size,
            num_lstm_layers=num_lstm_layers,
            generator=torch.Generator().manual_seed(seed),
        )
        self._seed = seed

    def fit(
        self,
        recording: Recording,
        *,
        passes: int = 60,
        lr: float = 3e-3,
        batch: int = 16,
        held_out: Recording | None = None,
        progress: Callable[[int, float], None] = lambda *_: None,
    ) -> CloningReport:
        """Maximum likelihood of what was decided, over whole episodes; `progress` is given each pass and its loss.

        The learning rate falls to a tenth. The critic is left as it is.
        """
        self._require_fit(recording)
        if passes < 1 or batch < 1:
            raise ValueError(f"passes is {passes}, batch {batch}; expected whole numbers >= 1")
        parameters = list(without_critic(dict(self.policy.named_parameters())).values())
        optimizer = torch.optim.Adam(parameters, lr=lr, eps=1e-5)
        anneal = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=passes)
        order_of, losses = torch.Generator().manual_seed(self._seed), []
        for number in range(passes):
            total = count = 0.0
            for chosen in torch.randperm(len(recording), generator=order_of).split(batch):
                loss, steps = self._loss(recording.part(chosen.tolist()))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                total, count = total + loss.item() * steps, count + steps
            anneal.step()
            losses.append(total / max(count, 1.0))
            progress(number, losses[-1])
        later = None if held_out is None else self.agreement(held_out)
        return CloningReport(tuple(losses), self.agreement(recording), later)

    @torch.inference_mode()
    def agreement(self, recording: Recording) -> Agreement:
        """How often the network decides as recorded, step by step along the recording."""
        self._require_fit(recording)
        evaluation, action, chosen = self._evaluate(recording)
        free = ~evaluation.forced
        if not bool(free.any()):
            raise CloningError("the recording has no step on which anything could be decided")
        right = (action == chosen) | ~evaluation.has_choice  # (step, head)
        # A head that only matters by the network's own choice of an earlier head counts by that head.
        joint, acts = right.all(dim=1)[free], (growth_actions(action)["op"] != LifecycleOp.WAIT)[free]
        heads = zip(self.policy.layout.names, right.unbind(1), evaluation.has_choice.unbind(1), strict=True)
        return Agreement(
            steps=int(free.sum()),
            joint=float(joint.float().mean()),
            acting=_share(joint, acts),
            by_head={name: _share(hits, where) for name, hits, where in heads},
            log_likelihood=float(evaluation.log_prob.sum(1)[free].mean()),
            operation_log_likelihood=float(growth_log_probs(evaluation.log_prob)["op"][free].mean()),
        )

    def to(self, device: torch.device | str) -> Self:
        """Move it to a device, where it is taught and acts from then on."""
        self.policy.to(device)
        return self

    def actor(self, num_envs: int = 1, *, generator: torch.Generator | None = None) -> Actor:
        """For use; greedy without a generator."""
        return Actor(self.policy, num_envs, generator=generator)

    def save(self, path: Path) -> None:
        """To a .safetensors file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {"slots": self.space.slot_config.slot_ids, "blueprints": self.space.blueprints}
        written = {name: str(getattr(self.policy, name)) for name in _SIZES}
        written["space"] = json.dumps({**known, "retire": self.space.retire, "units": self.space.units})
        written["notes"] = json.dumps(self.notes)
        weights = {name: value.contiguous() for name, value in self.policy.state_dict().items()}
        save_file(weights, path, metadata={"format": _FORMAT, **written})

    @staticmethod
    def load(path: Path) -> "PolicyNetwork":
        """From data alone; nothing in the file is executed."""
        try:
            with safe_open(path, "pt") as file:
                written = file.metadata() or {}
                if written.get("format") != _FORMAT:
                    raise ValueError(f"its format is {written.get('format')!r}, expected {_FORMAT!r}")
                network = PolicyNetwork(
                    _space_of(written),
                    **{name: int(written[name]) for name in _SIZES},
                    notes=json.loads(written["notes"]),
                )
                network.policy.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise CloningError(f"{path}: no cloned policy can be read from it ({error})") from None
        return network

    def _loss(self, recording: Recording) -> tuple[Tensor, int]:
        evaluation, _, _ = self._evaluate(recording)
        free = ~evaluation.forced
        steps = int(free.sum())
        return -(evaluation.log_prob.sum(1) * free).sum() / max(steps, 1), steps

    def _evaluate(self, recording: Recording) -> tuple[HeadEvaluation, Tensor, Tensor]:
        """Of every recorded step, episodes end to end: its evaluation, its lesson, and the network's own choice."""
        device = next(self.policy.parameters()).device
        recording, hidden = recording.to(device), self.policy.initial_hidden(len(recording)).to(device)
        output = self.policy(recording.inputs(), hidden, recording.plan())
        distribution = self.policy.distribution(output.logits, recording.mask)
        lesson = recording.lesson
        return distribution.evaluate(lesson), lesson, distribution.mode()

    def _require_fit(self, recording: Recording) -> None:
        if recording.space != self.space:
            for name in ("retire", "units"):
                theirs, ours = getattr(recording.space, name), getattr(self.space, name)
                if theirs != ours:
                    raise CloningError(
                        f"the recording is of decisions with {name}={theirs}; the network has {name}={ours}"
                    )
            raise CloningError(
                f"the recording is of slots {', '.join(recording.space.slot_config.slot_ids)} and blueprints "
                f"{', '.join(recording.space.blueprints)}; the network is for "
                f"{', '.join(self.space.slot_config.slot_ids)} and {', '.join(self.space.blueprints)}"
            )


def _share(hits: Tensor, where: Tensor) -> float | None:
    """The share of True in `hits` over `where`, both (step,) bool; None if that is nowhere."""
    return float(hits[where].float().mean()) if bool(where.any()) else None


# Starting PPO from a rule, a saved network or a controller


def require_warm_start(config: TrainingConfig) -> None:
    """Raise ConfigError, before anything takes time, for what cannot be started from."""
    if config.warm_start is None:
        return
    rule = config.warm_start in RULE_NAMES
    run = None if rule else _run(config.warm_start)
    if run is not None:
        _require_same_units(config, run)
    if not rule:
        _require_fit(config, run)
    if run is None and config.normalize_observations:
        raise ConfigError(
            f"normalize_observations is True, and warm_start is {config.warm_start!r}, which knows observations "
            "as they are: switch normalisation off, or start from a run that had it"
        )


def _require_fit(config: TrainingConfig, run: Path | None) -> None:
    """Raise ConfigError where weights are not there, or are for other observations or choices."""
    space = make_world(config.suite, 1).space.under(config.decisions)
    sizes = {name: getattr(config, name) for name in _SIZES}
    privileged = len(PRIVILEGED) if config.critic_sees_baseline else 0
    policy = GrowthPolicy(space, **sizes, privileged_features=privileged, generator=torch.Generator())
    _fitted(config, _weights(config), policy)
    if run is not None and config.normalize_observations:
        known, wanted = read_checkpoint(run)["observation_stats"]["mean"].numel(), policy.observation_size
        if known != wanted:
            raise ConfigError(
                f"suite is {config.suite!r}, with {wanted} numbers observed, and observations were normalised over "
                f"{known} in the run {config.warm_start!r} that warm_start names: give it a run on the same slots "
                "and blueprints, or switch normalize_observations off in both"
            )


def warm_start(training: Training, config: TrainingConfig) -> CloningReport | None:
    """Give the agent's policy the weights that `config.warm_start` names.

    A rule is played on the training pool and cloned, which is reported; a file is a saved `PolicyNetwork`. Only a run
    brings its critic, with what observations and rewards were normalised by; otherwise it starts as it is.
    """
    if config.warm_start is None:
        return None
    report = None
    if config.warm_start in RULE_NAMES:
        player = _rule_player(config, config.warm_start)
        network, report = _clone(training, config, player, config.warm_start, EPISODES)
        weights = without_critic(network.policy.state_dict())
    else:
        weights = _weights(config)
    agent = training.agent
    policy = unwrap(agent.policy)
    policy.load_state_dict({**policy.state_dict(), **_fitted(config, weights, policy)})
    run = _run(config.warm_start)
    if run is not None:  # its critic speaks in units of its rewards, its network of its observations
        checkpoint = read_checkpoint(run, agent.device)
        agent.reward_normalizer.load_state_dict(checkpoint["reward_normalizer"])
        if config.normalize_observations:
            agent.observation_stats.load_state_dict(checkpoint["observation_stats"])
    if agent.holds_to_start:
        agent.hold_to_start()
    return report


def _fitted(config: TrainingConfig, weights: Mapping[str, Tensor], policy: Policy) -> dict[str, Tensor]:
    """The weights in the shapes of the run's policy; a network of other sizes is refused."""
    own = policy.state_dict()
    known, wanted_operations = (each["actor.heads.op.bias"].numel() for each in (weights, own))
    if known != wanted_operations:
        raise ConfigError(
            f"warm_start is {config.warm_start!r}, a network of {known} operations; this run has {wanted_operations} "
            f"(retire={config.retire}): give it one that was trained so, or change retire"
        )
    weights = widened(weights, own)
    wanted = {**weights, **without_critic(own)}
    shapes, own_shapes = ({name: value.shape for name, value in each.items()} for each in (weights, own))
    other = [name for name in wanted if shapes.get(name) != own_shapes.get(name)]
    if other:
        hidden_size = weights["lstm_ln.weight"].numel()
        layers = sum(name.startswith("lstm.weight_ih") for name in weights)
        raise ConfigError(
            f"warm_start is {config.warm_start!r}, a network of hidden_size {hidden_size} and num_lstm_layers "
            f"{layers}; this run has {config.hidden_size} and {config.num_lstm_layers} ({other[0]} does not fit)"
        )
    return weights


def clone_rule(
    config: TrainingConfig, rule: str, *, episodes: int = EPISODES, held_out: int = 8
) -> tuple[PolicyNetwork, CloningReport]:
    """A network that decides as a rule does in the environments of a config; `held_out` episodes only judge it."""
    if rule not in RULE_NAMES:
        raise CloningError(f"no rule is named {rule!r}; expected one of {', '.join(RULE_NAMES)}")
    return clone_player(config, _rule_player(config, rule), rule, episodes=episodes, held_out=held_out)


def clone_player(
    config: TrainingConfig, player: Player, name: str, *, episodes: int = EPISODES, held_out: int = 8
) -> tuple[PolicyNetwork, CloningReport]:
    """`clone_rule` for whatever decides; `name` says what that was in the file of the network."""
    training = build(config)
    try:
        prepare_baselines(training, config)
        return _clone(training, config, player, name, episodes, held_out)
    finally:
        training.envs.close()


def _rule_player(config: TrainingConfig, rule: str) -> Player:
    rng = np.random.default_rng(config.seed)
    return RulePlayer(lambda _: rule_policy(rule, rng=rng))


def _clone(
    training: Training, config: TrainingConfig, player: Player, name: str, episodes: int, held_out: int = 0
) -> tuple[PolicyNetwork, CloningReport]:
    wanted = list(islice(cycle(training.pool.pairs()), episodes))  # a toy's pairs are ten million
    recording, _ = record_episodes(player, training.envs.episodes, wanted, policy=name)
    training.envs.episodes.telemetry.take()  # the rule's rewards and decisions are not the learner's
    if training.host_log is not None:
        training.host_log.take()
    taught, judged = (recording, None) if not held_out else recording.split(held_out)
    network = PolicyNetwork(
        training.envs.space,
        hidden_size=config.hidden_size,
        num_lstm_layers=config.num_lstm_layers,
        seed=config.seed,
        notes={"config": config.to_dict(), "rule": name, "episodes": episodes, "env_steps": recording.steps},
    )
    return network, network.fit(taught, held_out=judged)


def _weights(config: TrainingConfig) -> dict[str, Tensor]:
    """A saved network's, a controller's, or a run's with its critic. Their shapes fit any slots and blueprints."""
    given = config.warm_start
    assert given is not None
    run = _run(given)
    try:
        if run is not None:
            of_run: dict[str, Tensor] = read_checkpoint(run)["policy"]
            return of_run
        if given.endswith(".safetensors"):
            network = PolicyNetwork.load(Path(given))
            weights, units = without_critic(network.policy.state_dict()), network.space.units
        else:
            controller = Controller.load(given)
            weights, units = controller.weights, controller.card.decisions.observation_units
    except UnknownController:
        known = [*RULE_NAMES, *shipped_controllers()]
        raise ConfigError(
            f"warm_start is {given!r}; expected one of {', '.join(known)}, the folder of a controller or of a run, "
            "or a .safetensors file"
        ) from None
    except (CheckpointError, CloningError, ControllerError) as error:
        raise ConfigError(f"warm_start: {error}") from None
    if units != config.observation_units:
        raise ConfigError(
            f"warm_start is {given!r}, which was trained with observation_units={units}; this run has "
            f"{config.observation_units}: give it one that was trained so, or change observation_units"
        )
    return weights


def _run(given: str) -> Path | None:
    """The checkpoint to start from, if that is the folder of a run."""
    return next(iter(judged_checkpoints(Path(given))), None) if "/" in given else None


def _require_same_units(config: TrainingConfig, checkpoint: Path) -> None:
    """Raise ConfigError unless a run's network and critic mean here what they meant there."""
    try:
        before = TrainingConfig.of(read_checkpoint(checkpoint)["extra"]["config"])
    except CheckpointError as error:
        raise ConfigError(f"warm_start: {error}") from None
    for name in _UNITS:
        ours, theirs = getattr(config, name), getattr(before, name)
        if ours != theirs:
            raise ConfigError(
                f"{name} is {ours!r}, and was {theirs!r} in the run {config.warm_start!r} that warm_start names; "
                "expected the same"
            )
