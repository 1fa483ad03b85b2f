"""Worlds: hosts that are stepped together, and what can be read of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from esper.leyline.decisions import ActionSpec
from esper.leyline.slots import BlueprintCard, LegalOperations, SlotConfig, SlotSnapshot
from esper.leyline.utility import Family


class SlotReading(NamedTuple):
    """A slot in numbers, for tensors. What has not been measured is NaN; what does not exist is -1."""

    stage: int
    """The number of its `Stage`."""
    fading: bool
    alpha: float
    alpha_target: float
    epochs_to_target: int
    age: int
    """Epochs since the seed was germinated."""
    epochs_in_stage: int
    blueprint: int
    """Index into the slot's cards."""
    style: int
    """Index into STYLES."""
    parameters: int
    legal: int
    """Bit `op` is set when that LifecycleOp can be executed here now (WAIT always can)."""
    contribution: float
    """Validation accuracy with the seed minus without it; of a TRAINING seed, and a fossil not weighed, unknown."""
    probe: float
    """Validation accuracy with a TRAINING seed switched on at its target, minus without it."""
    gradient_norm: float
    """Gradient norm of the seed, mean over the epoch's steps."""
    gradient_health: float
    """0..1: the share of the seed's gradient tensors that are finite and neither vanish nor explode."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch of one host measured. Accuracies are 0..1; unknown is None.

    Validation is on the observed half: deciders, the governor and settling see it, and with it would be flattered.
    """

    epoch: int
    """Epochs trained so far, this one included; 0 is the untrained host."""
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float
    validation_accuracy: float | None
    gradient_norm: float | None
    """Gradient norm of the host before clipping, mean over the epoch's steps."""
    rolled_back: str | None
    """Why the governor restored the host in this epoch; the numbers are then those that condemned it."""
    judged_loss: float | None = None
    """Validation loss on the judged half, by which nothing is decided or settled; None where there is one set."""
    judged_accuracy: float | None = None
    """Validation accuracy on the judged half."""
    seeds_settled: int = 0
    """Seeds that settling took out after this epoch."""
    score: float | None = None
    """How well validation goes on a scale of the loop's own, NaN unknown; None: accuracy, or else minus the loss."""
    learning_rate: float | None = None
    """Of the host after the epoch."""
    highest_learning_rate: float | None = None
    """That the host has had so far."""
    validation_samples: int | None = None
    """That were observed; None unknown."""

    @property
    def judged(self) -> tuple[float, float | None]:
        """(loss, accuracy) to reward and to select by."""
        if self.judged_loss is None:
            return self.validation_loss, self.validation_accuracy
        return self.judged_loss, self.judged_accuracy


class HostProtocol(Protocol):
    """One host of a world, for reading."""

    @property
    def slot_config(self) -> SlotConfig:
        """The names of its slots, in order."""

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        """The blueprints that each slot offers."""

    @property
    def host_parameters(self) -> int:
        """Parameters of the bare host."""

    @property
    def added_parameters(self) -> int:
        """Parameters of the seeds that it has now."""

    @property
    def parameter_budget(self) -> int | None:
        """Parameters that its instance lets be added in all; None is any number."""

    @property
    def training_samples(self) -> int:
        """Training samples of the latest epoch (of the first one, before that); a task that shifts changes them."""

    @property
    def report(self) -> EpochReport:
        """What the latest epoch measured."""

    def readings(self) -> Sequence[SlotReading]:
        """One per slot, in the order of `slot_config`."""

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        """Every slot in words, in the order of `slot_config`."""

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        """What can be done in each slot now."""


class HostsLost(RuntimeError):
    """Raised by a world that lost hosts (a worker died), after it did what was asked for all the others.

    The lost ones must be begun anew; their episodes have no final state.
    """

    def __init__(self, host_idxs: Sequence[int], reason: str) -> None:
        self.host_idxs, self.reason = tuple(host_idxs), reason
        super().__init__(f"lost hosts {', '.join(map(str, host_idxs))}: {reason}")


class Beginning(NamedTuple):
    """A host that is to begin: a new, untrained one of the task instance `case`."""

    host_idx: int
    case: str
    seed: int


Settle = Literal["worth", "committed"]
"""What stays of a finished run: the seeds that are worth their rent now, or just the fossilised ones."""


class Settling(NamedTuple):
    """How a host is made into the product at the end of its episode."""

    rent: float
    settle: Settle = "worth"
    family: Family = "contribution"
    """The score that rent is weighed against: the one that is paid."""


class HostStep(NamedTuple):
    """One step of one host: apply the action, tick, train one epoch, validate, govern, settle."""

    host_idx: int
    action: ActionSpec | None = ActionSpec()
    """By default WAIT. None skips the epoch and only settles, for callers that read the host in between."""
    settle: Settling | None = None
    """Given in the last step. A host that the governor rolled back is not settled."""
    weigh_fossils: bool = False
    """Whether what fossils contribute is measured too: a validation pass more for each."""


HostState = Mapping[str, object]
"""Everything of one host in the middle of an episode, loadable with `weights_only=True`."""


class World(Protocol):
    """K hosts that are stepped together, one epoch at a time.

    A host's numbers depend on its case, its rng seed and what was done to it: not on its index, nor on the others.
    """

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones and validate them (epoch 0)."""

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Do one step of each of these hosts. Their reports and readings are new afterwards."""

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """The states of these hosts, by host index."""

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""

    def host(self, host_idx: int) -> HostProtocol:
        """One host, for reading."""


@runtime_checkable
class SpreadWorld(Protocol):
    """A world whose hosts live in several workers."""

    def take_worker_seconds(self) -> Mapping[str, float]:
        """Worker, with its node where there are several -> seconds it was at work since this was last asked."""


@dataclass(slots=True)
class WorkDone:
    """What one worker did."""

    epochs: int = 0
    """Epochs that it trained hosts for, each host counted."""
    lost: int = 0
    """Hosts lost with it."""
    replayed: int = 0
    """Epochs of hosts that it repeated, after they were lost elsewhere."""


@runtime_checkable
class ClusteredWorld(Protocol):
    """A world whose workers are on nodes of a cluster."""

    def take_work(self) -> Mapping[str, WorkDone]:
        """Worker with its node, as in "worker 0 on NODE" -> what it did since this was last asked."""


@runtime_checkable
class PunctualWorld(Protocol):
    """A world that need not wait for its slowest worker."""

    def wait_until(self, moment: float | None) -> None:
        """Let steps wait for no worker beyond this moment of `time.monotonic`: its hosts are lost. None waits."""


@dataclass(frozen=True, slots=True)
class BaselineCurve:
    """Validation, on the judged half, when nothing is grown, at epochs 0, 1, ... Unknown accuracies are None."""

    accuracies: Sequence[float | None]
    losses: Sequence[float]

    def whole(self) -> "BaselineCurve":
        """The same as plain data: what is trained as it is looked at is trained to its end."""
        return BaselineCurve(tuple(self.accuracies), tuple(self.losses))


class Baselines(Protocol):
    """Where baseline curves come from."""

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """The curve of the host that `Beginning(_, case, seed)` makes, from epoch 0 to the horizon."""

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """The curves of several (case, seed); missing ones are trained at once, or as far as they are looked at."""
