"""The events of a run as typed records, and the sinks they are emitted to.

`docs/events.md` is generated from the docstrings here. A number that is unknown is None; a number that is NaN or Inf
was measured and is recorded as measured. Accuracies are 0..1, losses are means over samples, times are seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from esper.leyline.heads import Curve, LifecycleOp, Style
from esper.leyline.slots import Stage

SCHEMA_VERSION = 1
"""Version of the recorded form. Raised when old readers would misread new files, not for new kinds or fields."""
CheckpointReason = Literal["periodic", "best", "last"]
"""Why a checkpoint was written."""
RunStatus = Literal["finished", "interrupted", "failed"]
"""How a run ended."""

# Events of a training run: rounds, episodes, decisions, anomalies, and how it ended.


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run started, or resumed from a checkpoint."""

    kind: ClassVar[str] = "run_started"
    name: str
    """Name of the run and of its directory."""
    esper: str
    """Version of Esper that runs it."""
    resumed_from: int | None = None
    """Last round of the checkpoint it resumed from; records after that round no longer count. Null at a new start."""
    note: str | None = None
    """Settings that changed and checkpoints that were damaged since the start before. Null if there are none."""
    schema_version: int = SCHEMA_VERSION
    """Schema version of the events that follow."""


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """One round of PPO: a rollout in every env and the update computed from it."""

    kind: ClassVar[str] = "round_finished"
    round: int
    """Number of the round, from 1."""
    env_steps: int
    """Environment steps over all envs since the run started. One step trains one host for one epoch."""
    seconds: float
    """Wall time of the round, in seconds."""
    env_epochs_per_second: float | None
    """Environment steps of this round that were not lost, per second of wall time."""
    episodes: int
    """Episodes that ended in the round, without the lost ones."""
    lost_episodes: int
    """Episodes whose worker process died; the steps before that are learned from."""
    mean_return: float | None
    """Mean undiscounted return of the episodes that ended; null if none did."""
    mean_gain: float | None
    """Mean gain (utility minus the baseline's) of the episodes that have a baseline; null if none has."""
    mean_accuracy: float | None
    """Mean validation accuracy of the final models of these episodes, 0..1."""
    mean_control_accuracy: float | None
    """Mean validation accuracy of their baselines at the same epoch, 0..1."""
    policy_loss: float | None
    """Policy loss, mean over the minibatches applied; null if none was."""
    value_loss: float | None
    """Value loss, mean over the minibatches applied; null if none was."""
    entropy: float | None
    """Joint entropy of all heads in nats, mean over steps that had a choice."""
    entropy_by_head: Mapping[str, float | None]
    """Head -> entropy in nats, mean over steps where the head was used and had a choice; null if there was none."""
    approx_kl: float | None
    """KL divergence of the new policy from the one that acted, in nats (k3 estimate, all heads)."""
    clip_fraction: float | None
    """Share of choices whose probability ratio left the clip range, 0..1."""
    ratio_max: float | None
    """Largest probability ratio of new to old policy."""
    ratio_min: float | None
    """Smallest probability ratio of new to old policy."""
    explained_variance: float | None
    """Share of the variance of returns explained by the critic before the update; null if returns hardly vary."""
    grad_norm: float | None
    """Gradient norm before clipping, of the last minibatch applied."""
    learning_rate: float
    """Learning rate of this update."""
    entropy_coef: float | None
    """Weight of the entropy bonus as it was used, mean over choices; null if there was none."""
    minibatches_applied: int
    """Optimiser steps taken."""
    minibatches_skipped: int
    """Minibatches not applied because a ratio, the loss or the gradient norm was NaN or Inf."""
    had_non_finite: bool
    """Whether a ratio, the loss or the gradient norm was NaN or Inf anywhere in the update."""
    kl_stopped: bool
    """Whether the update ended early because the KL divergence passed its limit."""
    operations: Mapping[str, int]
    """LifecycleOp -> times it was executed in the round."""
    reward_components: Mapping[str, float]
    """Component of the reward -> its mean per step; empty if nothing was measured."""
    host_seconds: float | None = None
    """Seconds of the round spent creating, training, validating and settling hosts; null if not measured."""
    seconds_by_part: Mapping[str, float] | None = None
    """Part of the round (`outer/inner`) -> seconds it took; null if not measured."""
    peak_memory_bytes: int | None = None
    """Peak memory of the training process since it started, without its workers, in bytes; null if not measured."""
    entropy_coef_by_head: Mapping[str, float | None] | None = None
    """Head -> weight of its entropy bonus, mean over steps where it had a choice; null where there was none."""
    q_loss: float | None = None
    """Squared error of both critics of actions, mean over the batches of an offline run; null in any other."""
    advantage_weight: float | None = None
    """Weight of a recorded step in the policy's loss, mean over the batches of an offline run; null in any other."""
    epochs_by_worker: Mapping[str, int] | None = None
    """Worker of a cluster, with its node -> epochs that it trained hosts for in the round; null without a cluster."""
    lost_by_worker: Mapping[str, int] | None = None
    """Worker of a cluster, with its node -> hosts lost with it in the round; null without a cluster."""
    replayed_by_worker: Mapping[str, int] | None = None
    """Worker of a cluster, with its node -> epochs of hosts that it repeated after a loss; null without a cluster."""


@dataclass(frozen=True, slots=True)
class EpisodeFinished:
    """One host reached the end of its episode."""

    kind: ClassVar[str] = "episode_finished"
    round: int | None
    """Round in which it ended; null outside of a training run."""
    env: int
    """Index of the environment."""
    episode: int
    """Number of the episode in its env, from 0."""
    case: str
    """Task instance, as text."""
    host_seed: int
    """Rng seed the host was created and trained with. The baseline is the same instance with the same rng seed."""
    epochs: int
    """Epochs trained."""
    utility: float | None
    """Utility of the final model: validation score (judged half) minus rent. Null for a lost or condemned host."""
    gain: float | None
    """Utility (condemned: worst score) minus the baseline's at the horizon, on the judged half; null if unknown."""
    validation_accuracy: float | None
    """Validation accuracy of the final model on the judged half, 0..1."""
    control_accuracy: float | None
    """Validation accuracy of the baseline at the same epoch on the judged half, 0..1; null without a baseline."""
    validation_loss: float | None
    """Validation loss of the final model on the judged half."""
    added_parameters: int | None
    """Parameters of the final model that growth added."""
    episode_return: float
    """Sum of rewards, not discounted."""
    operations: Mapping[str, int]
    """LifecycleOp -> times it was executed."""
    illegal_actions: int
    """Actions requested that were illegal and became WAIT."""
    rolled_back: str | None
    """Why the governor ended the episode; null if it did not."""
    lost: bool
    """Whether its worker process died; there is then no final model."""
    observed_accuracy: float | None = None
    """Validation accuracy of the final model on the half that was observed and settled by, 0..1."""
    seeds_settled: int = 0
    """Seeds that settling took out at the end."""
    parameter_budget: int | None = None
    """Parameters that its instance let be added; null where it had no cap."""
    changes: str | None = None
    """What changed in its data and when, as kind@epoch between slashes; null where nothing did."""


@dataclass(frozen=True, slots=True)
class DecisionTaken:
    """One decision about one host: the action executed, the state it was chosen in, and the reward it got.

    Parts of the action that its operation does not use are null.
    """

    kind: ClassVar[str] = "decision_taken"
    round: int
    """Round in which it was taken."""
    env: int
    """Index of the environment."""
    episode: int
    """Number of the episode in its env, from 0."""
    epoch: int
    """Epoch that was trained after the decision, from 1."""
    op: LifecycleOp
    """Operation executed."""
    slot: str | None
    """Slot it was executed on."""
    blueprint: str | None
    """Blueprint of the seed germinated."""
    style: Style | None
    """How the germinated seed's output is combined with the host's."""
    tempo: int | None
    """Epochs of the germinated seed's first alpha ramp."""
    alpha_target: float | None
    """Alpha at which the ramp ends, 0..1."""
    alpha_speed: int | None
    """Epochs of a later ramp; 0 changes alpha at once."""
    alpha_curve: Curve | None
    """Shape of a later ramp."""
    illegal: str | None
    """Why the requested action was illegal and became WAIT; null if it was legal."""
    contribution: float | None
    """Last known contribution of the seed acted on: observed accuracy with it minus without it. Null if unknown."""
    value: float | None
    """Critic's value estimate before the step; null for a rule."""
    log_prob: float | None
    """Joint log-probability of the action in nats; null for a rule."""
    reward: float
    """Reward of the step, on the judged half: the sum of its components."""
    reward_components: Mapping[str, float]
    """Component of the reward -> its amount."""
    validation_accuracy: float | None
    """Validation accuracy of the host after the epoch on the observed half, 0..1."""
    stages: Mapping[str, str] | None = None
    """Slot -> its Stage at the decision, by name; null if not recorded."""
    alphas: Mapping[str, float] | None = None
    """Slot that holds a seed -> the seed's alpha at the decision, 0..1; null if not recorded."""
    contributions: Mapping[str, float] | None = None
    """Slot -> the seed's contribution, where it was known at the decision; null if not recorded."""
    probabilities: Mapping[str, Mapping[str, float]] | None = None
    """Head that was used -> legal choice -> its probability. Choices not listed were masked. Null for a rule."""
    observation: Mapping[str, float | None] | None = None
    """Feature -> the value the policy saw, null if unknown. Recorded only with run_telemetry debug."""
    added_parameters: int | None = None
    """Parameters of all seeds at the decision; null if not recorded."""


@dataclass(frozen=True, slots=True)
class AnomalyRaised:
    """A check of the learner found a sign of failing PPO training."""

    kind: ClassVar[str] = "anomaly_raised"
    round: int
    """Round whose update was checked."""
    name: str
    """Name of the check."""
    value: float | None
    """Value measured; null if the check has no single value."""
    threshold: float | None
    """Threshold the value was compared with; null if there is none."""
    detail: str
    """What was found, in words."""
    advice: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint was written, from which the run can be resumed."""

    kind: ClassVar[str] = "checkpoint_saved"
    round: int
    """Last round the checkpoint contains."""
    reason: CheckpointReason
    """Why it was written: at an interval, as the best so far, or at the end."""
    path: str
    """Path relative to the run directory."""
    score: float | None
    """Score that `best` is chosen by; null if not measured."""


@dataclass(frozen=True, slots=True)
class EvaluationFinished:
    """A policy was evaluated on instances it does not train on."""

    kind: ClassVar[str] = "evaluation_finished"
    round: int
    """Round after which it was evaluated."""
    env_steps: int
    """Environment steps the policy was trained for."""
    policy: str
    """`learned`, or the name of a rule."""
    suite: str
    """Suite of instances it was evaluated on."""
    episodes: int
    """Episodes evaluated, without the lost ones."""
    mean_return: float | None
    """Mean undiscounted return; null if no episode counts."""
    mean_utility: float | None
    """Mean utility (judged validation score minus rent; condemned: the worst); null if no episode counts."""
    mean_gain: float | None
    """Mean gain (utility minus the baseline's); null without baselines."""
    gain_low: float | None
    """Lower end of the 95 % interval of the mean gain; null with fewer than six episodes."""
    gain_high: float | None
    """Upper end of the 95 % interval of the mean gain; null with fewer than six episodes."""
    mean_accuracy: float | None
    """Mean validation accuracy of the final models, 0..1."""

    @property
    def score(self) -> tuple[Literal["gain", "utility"], float | None]:
        """What the best checkpoint is chosen by: the mean gain, or where no baseline is measured the mean utility."""
        if self.mean_gain is None and self.mean_utility is not None:
            return "utility", self.mean_utility
        return "gain", self.mean_gain


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended. A run without this event that no process writes to has crashed."""

    kind: ClassVar[str] = "run_finished"
    status: RunStatus
    """finished, interrupted (by a person or a signal) or failed."""
    reason: str | None
    """Reason for an interruption or failure; null if it finished."""
    rounds: int
    """Rounds finished."""
    env_steps: int
    """Environment steps over all envs."""
    seconds: float
    """Wall time since this start of the run, in seconds."""


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


# Events of a host, which does not know the run it is part of.


@dataclass(frozen=True, slots=True)
class SeedGerminated:
    """A seed was created in a slot."""

    kind: ClassVar[str] = "seed_germinated"
    slot: str
    """Slot it grows in."""
    blueprint: str
    """Blueprint it was built from."""
    style: Style
    """How its output is combined with the host's."""
    parameters: int
    """Parameters added by the seed and its gate."""


@dataclass(frozen=True, slots=True)
class StageChanged:
    """A slot changed its stage."""

    kind: ClassVar[str] = "stage_changed"
    slot: str
    """Slot that changed."""
    before: Stage
    """Stage it left."""
    after: Stage
    """Stage it entered."""
    operation: LifecycleOp | None
    """Operation that caused the change; null if it happened by itself at the end of an epoch."""


@dataclass(frozen=True, slots=True)
class SeedFading:
    """A pruned or retired seed starts to fade out."""

    kind: ClassVar[str] = "seed_fading"
    slot: str
    """Slot of the seed."""
    alpha: float
    """Alpha at the start of the fade, 0..1."""
    epochs: int
    """Epochs until the seed is removed."""


@dataclass(frozen=True, slots=True)
class NonFiniteSeedOutput:
    """A seed returned NaN or Inf in the last epoch; its output was not used and its updates were skipped."""

    kind: ClassVar[str] = "non_finite_seed_output"
    slot: str
    """Slot of the seed."""
    stage: Stage
    """Stage of the seed."""


@dataclass(frozen=True, slots=True)
class HostRolledBack:
    """The governor restored a host to its last good epoch."""

    kind: ClassVar[str] = "host_rolled_back"
    host: int
    """Index of the host in its world."""
    case: str
    """Task instance, as text."""
    epoch: int
    """Epoch whose result was rejected."""
    verdict: str
    """Why it was rejected."""
    rollbacks: int
    """Rollbacks of this host so far, including this one."""


HostEvent = SeedGerminated | StageChanged | SeedFading | NonFiniteSeedOutput | HostRolledBack
Event = HostEvent | RunEvent


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an event happened. What does not apply is None."""

    round: int | None = None
    """Round of PPO, from 1."""
    env: int | None = None
    """Index of the environment, or of the host."""
    episode: int | None = None
    """Number of the episode in its env, from 0."""
    epoch: int | None = None
    """Epoch of the episode, from 1."""


NOWHERE = Place()


class EventSink(Protocol):
    """Receives events. Code that emits events is given a sink and knows nothing else of recording."""

    def emit(self, event: Event) -> None:
        """Record one event."""


class RunSink(EventSink, Protocol):
    """Receives the events of a run, with the place of those that do not contain it."""

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        """Record one event, which happened at `place`."""


HostSinks = Callable[[int], EventSink]
"""Index of a host -> the sink for its events."""


class HostLog:
    """Collects the events of several hosts until they are taken and given their place in a run."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[tuple[int, HostEvent]] = []

    def sink(self, host_idx: int) -> EventSink:
        """The sink for one host's events."""
        return PlacedSink(self, Place(env=host_idx))

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        """Record an event of the host `place.env`."""
        assert isinstance(event, HostEvent)
        assert place.env is not None
        self._events.append((place.env, event))

    def take(self) -> list[tuple[int, HostEvent]]:
        """(host index, event) since the last call, in order."""
        taken, self._events = self._events, []
        return taken


class PlacedSink:
    """Passes a host's events on to a run, with `place`, which the code that steps the host keeps up to date."""

    __slots__ = ("place", "sink")

    def __init__(self, sink: RunSink, place: Place = NOWHERE) -> None:
        self.sink, self.place = sink, place

    def emit(self, event: Event) -> None:
        """Record one event at the current place."""
        self.sink.emit(event, self.place)


class CheckpointStore(Protocol):
    """A folder of checkpoints: the periodic ones, the best and the two last."""

    @property
    def folder(self) -> Path:
        """Folder the checkpoints are in."""

    def save(self, write: Callable[[Path], object], *, round_number: int, reason: CheckpointReason) -> Path:
        """Let `write` fill a file and move it into place; returns its path. May remove older periodic checkpoints."""
