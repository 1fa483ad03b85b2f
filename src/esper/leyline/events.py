"""What happens to a growing model, as typed records, and where emitters send them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from esper.leyline.heads import Curve, Style
from esper.leyline.lifecycle import LifecycleOp, Stage

# What a run of training tells: rounds, episodes, decisions, anomalies and how it ended.
#
# Unknown numbers are None. A field that is NaN or Inf is a measurement that failed, and is recorded as such.


SCHEMA_VERSION = 1
"""Of recorded events. It grows when a reader of the old form would misread the new one, not with new kinds."""
CheckpointReason = Literal["periodic", "best", "last"]
RunStatus = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run began, or went on from a checkpoint."""

    kind: ClassVar[str] = "run_started"
    name: str
    """Of the run and its directory."""
    esper: str
    """The version that runs it."""
    resumed_from: int | None = None
    """The last round of the checkpoint it goes on from; what was recorded after that round no longer counts."""
    schema_version: int = SCHEMA_VERSION
    """Of the events that follow."""


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """One round of PPO: a rollout in every env, and the update that learned from it."""

    kind: ClassVar[str] = "round_finished"
    round: int
    """Counted from 1."""
    env_steps: int
    """Steps over all envs since the run began; a step is one epoch of one host."""
    seconds: float
    """Wall time of the round."""
    env_epochs_per_second: float | None
    """Valid steps of the round over its seconds."""
    episodes: int
    """That ended in the round and were not lost."""
    lost_episodes: int
    """Whose worker died; nothing was learned from them."""
    mean_return: float | None
    """Over the episodes that ended."""
    mean_gain: float | None
    """Utility minus that of the wait-only control, over the episodes that have both."""
    mean_accuracy: float | None
    """Validation accuracy of the products, 0..1."""
    mean_control_accuracy: float | None
    """Validation accuracy of the wait-only controls at the same epoch, 0..1."""
    policy_loss: float | None
    """Mean over applied minibatches."""
    value_loss: float | None
    """Mean over applied minibatches."""
    entropy: float | None
    """Joint entropy of a step that had a choice."""
    entropy_by_head: Mapping[str, float | None]
    """Where the head mattered and had a choice; null if it never did."""
    approx_kl: float | None
    """k3 estimate of the joint KL from the policy that acted."""
    clip_fraction: float | None
    """Share of choices whose ratio left the clip range."""
    ratio_max: float | None
    """Largest probability ratio of new to old policy."""
    ratio_min: float | None
    """Smallest one."""
    explained_variance: float | None
    """Of the returns by the critic, before the update; null when the returns hardly vary."""
    grad_norm: float | None
    """Before clipping, in the last applied step."""
    learning_rate: float
    """Of the optimiser in this update."""
    entropy_coef: float
    """Weight of the entropy bonus, before any floor."""
    minibatches_applied: int
    """Optimiser steps taken."""
    minibatches_skipped: int
    """Not applied because something in them was not finite."""
    had_non_finite: bool
    """Ratios, loss or gradient norm were NaN or Inf somewhere in the update."""
    kl_stopped: bool
    """The update ended early because the policy had moved far enough."""
    operations: Mapping[str, int]
    """How often each LifecycleOp was executed in the round."""
    reward_components: Mapping[str, float]
    """Mean per step of each part of the reward; empty when nothing was measured."""
    host_seconds: float | None = None
    """Of those seconds, while hosts began, trained, were validated and settled; null where nobody measured it."""
    seconds_by_part: Mapping[str, float] | None = None
    """Part of the round, as outer/inner -> how many of those seconds it took."""
    peak_memory_bytes: int | None = None
    """The most that the training process itself has held in memory so far; its workers are not counted."""


@dataclass(frozen=True, slots=True)
class EpisodeFinished:
    """One host grown to the end of its episode."""

    kind: ClassVar[str] = "episode_finished"
    round: int
    """In which it ended."""
    env: int
    """Index of the environment."""
    episode: int
    """Count of this env's episodes, from 0."""
    case: str
    """The task instance, as text."""
    host_seed: int
    """The host was made and trained with it; with the case it names the episode's control."""
    epochs: int
    """Trained."""
    utility: float | None
    """Of the product: validation score minus rent; null for a lost or condemned host."""
    gain: float | None
    """Utility minus that of the wait-only control; null without one."""
    validation_accuracy: float | None
    """Of the product, 0..1."""
    control_accuracy: float | None
    """Of the wait-only control at the same epoch, 0..1; null without one."""
    validation_loss: float | None
    """Of the product."""
    added_parameters: int | None
    """That growth has left in the product."""
    episode_return: float
    """Sum of rewards, not discounted."""
    operations: Mapping[str, int]
    """How often each LifecycleOp was executed."""
    illegal_actions: int
    """Asked for and not executed."""
    rolled_back: str | None
    """Why the governor ended it; null if it did not."""
    lost: bool
    """Its worker died: there is no final state."""


@dataclass(frozen=True, slots=True)
class DecisionTaken:
    """What the controller did to one host in one step, what it knew, and what came of it.

    Choices that the operation does not use are null.
    """

    kind: ClassVar[str] = "decision_taken"
    round: int
    """In which it was taken."""
    env: int
    """Index of the environment."""
    episode: int
    """Count of this env's episodes, from 0."""
    epoch: int
    """The epoch that was trained after it, from 1."""
    op: LifecycleOp
    """What was executed."""
    slot: str | None
    """Where."""
    blueprint: str | None
    """Of the seed that was germinated."""
    style: Style | None
    """How it composes."""
    tempo: int | None
    """Epochs of its first ramp."""
    alpha_target: float | None
    """Where the ramp ends."""
    alpha_speed: int | None
    """Epochs of a later ramp; 0 is at once."""
    alpha_curve: Curve | None
    """Shape of a later ramp."""
    illegal: str | None
    """Why what was asked for became WAIT; null if it was legal."""
    contribution: float | None
    """Of the seed acted on, as it was known when deciding: validation accuracy with it minus without it."""
    value: float | None
    """The critic's estimate before the step; null for policies without one."""
    log_prob: float | None
    """Joint log-probability of the choices; null for policies without one."""
    reward: float
    """Sum of its components."""
    reward_components: Mapping[str, float]
    """The parts of the reward by name."""
    validation_accuracy: float | None
    """Of the host after the epoch, 0..1."""
    stages: Mapping[str, str] | None = None
    """Slot -> name of its Stage when deciding."""
    alphas: Mapping[str, float] | None = None
    """Slot that holds a seed -> its alpha when deciding."""
    contributions: Mapping[str, float] | None = None
    """Slot whose seed's contribution was known when deciding -> that."""
    probabilities: Mapping[str, Mapping[str, float]] | None = None
    """Head that mattered -> legal choice -> how probable it was; what is not named was masked."""
    observation: Mapping[str, float | None] | None = None
    """Feature -> what the policy saw of it, null if unknown; recorded with run_telemetry debug only."""


@dataclass(frozen=True, slots=True)
class AnomalyRaised:
    """The learner does something that PPO does when it goes wrong."""

    kind: ClassVar[str] = "anomaly_raised"
    round: int
    """Whose update raised it."""
    name: str
    """Which check."""
    value: float | None
    """What was measured; null where there is no one number."""
    threshold: float | None
    """What it was held against."""
    detail: str
    """In words."""
    advice: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Everything needed to go on from here is on disk."""

    kind: ClassVar[str] = "checkpoint_saved"
    round: int
    """The last round it contains."""
    reason: CheckpointReason
    """periodic, best or last."""
    path: str
    """Relative to the run directory."""
    score: float | None
    """What `best` is judged by; null if it has not been measured."""


@dataclass(frozen=True, slots=True)
class EvaluationFinished:
    """A policy was judged on cases that it does not train on."""

    kind: ClassVar[str] = "evaluation_finished"
    round: int
    """After which."""
    env_steps: int
    """Steps of training behind the policy."""
    policy: str
    """Who was judged: `learned`, or a rule's name."""
    suite: str
    """What it was judged on."""
    episodes: int
    """That count."""
    mean_return: float | None
    """Over the episodes."""
    mean_utility: float | None
    """Over the episodes."""
    mean_gain: float | None
    """Over the wait-only control."""
    gain_low: float | None
    """Lower end of the 95 % interval of the mean gain."""
    gain_high: float | None
    """Upper end of it."""
    mean_accuracy: float | None
    """Validation accuracy of the products, 0..1."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last word of a run. A run without it, that nobody writes to, has crashed."""

    kind: ClassVar[str] = "run_finished"
    status: RunStatus
    """finished, interrupted (by a person or a signal) or failed."""
    reason: str | None
    """Of an interruption or failure."""
    rounds: int
    """Finished."""
    env_steps: int
    """Taken over all envs."""
    seconds: float
    """Wall time since this start of the run."""


RunEvent = (
    RunStarted
    | RoundFinished
    | EpisodeFinished
    | DecisionTaken
    | AnomalyRaised
    | CheckpointSaved
    | EvaluationFinished
    | RunFinished
)


@dataclass(frozen=True, slots=True)
class SeedGerminated:
    """A seed was born."""

    kind: ClassVar[str] = "seed_germinated"
    slot: str
    """Where."""
    blueprint: str
    """What it is."""
    style: Style
    """How it composes."""
    parameters: int
    """Added by it and its gate."""


@dataclass(frozen=True, slots=True)
class StageChanged:
    """A slot moved on in the life of its seed."""

    kind: ClassVar[str] = "stage_changed"
    slot: str
    """Which."""
    before: Stage
    """The stage it left."""
    after: Stage
    """The stage it entered."""
    operation: LifecycleOp | None
    """What was asked for; None when the stage changed by itself on a tick."""


@dataclass(frozen=True, slots=True)
class SeedFading:
    """A seed that is being pruned begins to lose its alpha."""

    kind: ClassVar[str] = "seed_fading"
    slot: str
    """Where."""
    alpha: float
    """That it fades from."""
    epochs: int
    """Until it is gone."""


@dataclass(frozen=True, slots=True)
class NonFiniteSeedOutput:
    """A seed put out NaN or Inf since the last tick. It was kept out of the forward, its updates skipped."""

    kind: ClassVar[str] = "non_finite_seed_output"
    slot: str
    """Where."""
    stage: Stage
    """The seed's."""


@dataclass(frozen=True, slots=True)
class HostRolledBack:
    """The governor took a host back to its last good epoch."""

    kind: ClassVar[str] = "host_rolled_back"
    host: int
    """Index in its world."""
    case: str
    """The task instance, as text."""
    epoch: int
    """The epoch that condemned it."""
    verdict: str
    """Why."""
    rollbacks: int
    """Of this host so far, this one included."""


HostEvent = SeedGerminated | StageChanged | SeedFading | NonFiniteSeedOutput | HostRolledBack
"""Told by whoever owns a host, who does not know what run it is part of."""
Event = HostEvent | RunEvent


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run something happened. What does not apply is None."""

    round: int | None = None
    """Of PPO, from 1."""
    env: int | None = None
    """Index of the environment, or of the host."""
    episode: int | None = None
    """Count of that env's episodes, from 0."""
    epoch: int | None = None
    """Of that episode, from 1."""


NOWHERE = Place()


class EventSink(Protocol):
    """Where events go. Emitters are handed one and know nothing else of recording."""

    def emit(self, event: Event) -> None: ...


class RunSink(EventSink, Protocol):
    """Where the events of a run go. Those that do not say where they happened can be given a place."""

    def emit(self, event: Event, place: Place = NOWHERE) -> None: ...


HostSinks = Callable[[int], EventSink]
"""Index of a host -> where what happens to it is told."""


class HostLog:
    """Keeps what hosts tell until somebody takes it, who then says where in a run it happened."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: list[tuple[int, HostEvent]] = []

    def sink(self, host_idx: int) -> EventSink:
        return _OneHost(self._told, host_idx)

    def take(self) -> list[tuple[int, HostEvent]]:
        """(host, what happened to it) since the last time, in order."""
        told = self._told[:]
        self._told.clear()  # the list itself stays: sinks hold on to it
        return told


class _OneHost:
    __slots__ = ("_host_idx", "_told")

    def __init__(self, told: list[tuple[int, HostEvent]], host_idx: int) -> None:
        self._told, self._host_idx = told, host_idx

    def emit(self, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self._told.append((self._host_idx, event))


class PlacedSink:
    """Hands a host's events on to a run, with their place; whoever steps the host moves `place` along."""

    __slots__ = ("place", "sink")

    def __init__(self, sink: RunSink, place: Place = NOWHERE) -> None:
        self.sink, self.place = sink, place

    def emit(self, event: Event) -> None:
        self.sink.emit(event, self.place)


# Where checkpoints are kept, as whoever writes them knows it.


class CheckpointStore(Protocol):
    """A folder of checkpoints: some periodic ones, the best and the last."""

    @property
    def folder(self) -> Path: ...

    def save(self, write: Callable[[Path], None], *, round_number: int, reason: CheckpointReason) -> Path:
        """Have `write` fill a file and put it in its place; returns where. Older periodic ones may go."""
        ...
