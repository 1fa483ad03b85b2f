"""Hosts that are stepped together: what an environment needs of whoever runs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from esper.leyline.decisions import ActionSpec
from esper.leyline.slots import BlueprintCard, LegalOperations, SlotConfig, SlotSnapshot


class SlotReading(NamedTuple):
    """A slot in numbers, for tensors. What has not been measured is NaN; what does not exist is -1."""

    stage: int
    """Stage"""
    fading: bool
    alpha: float
    alpha_target: float
    epochs_to_target: int
    age: int
    epochs_in_stage: int
    blueprint: int
    """Index into the slot's cards."""
    style: int
    """Index into STYLES."""
    parameters: int
    legal: int
    """Bit `op` is set when that LifecycleOp can be executed here now (WAIT always can)."""
    contribution: float
    """Validation accuracy with the seed minus without it; of a TRAINING seed unknown."""
    probe: float
    """Validation accuracy with a TRAINING seed switched on at its target, minus without it."""
    gradient_norm: float
    """Of the seed, mean over the epoch's steps."""
    gradient_health: float
    """0..1: the share of the seed's gradient tensors that are finite and neither vanish nor explode."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch of one host measured. Accuracies are 0..1; unknown is None."""

    epoch: int
    """Epochs trained so far, this one included; 0 is the untrained host."""
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float
    validation_accuracy: float | None
    gradient_norm: float | None
    """Of the host, before clipping, mean over the epoch's steps."""
    rolled_back: str | None
    """Why the governor restored the host in this epoch; the numbers are then those that condemned it."""


class HostProtocol(Protocol):
    """One host of a world, for reading."""

    @property
    def slot_config(self) -> SlotConfig: ...

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]: ...

    @property
    def host_parameters(self) -> int: ...

    @property
    def added_parameters(self) -> int: ...

    @property
    def training_samples(self) -> int:
        """Training samples of the data as it is now (it may change in a task that shifts)."""
        ...

    @property
    def report(self) -> EpochReport:
        """The latest."""
        ...

    def readings(self) -> Sequence[SlotReading]:
        """One per slot, in the order of `slot_config`."""
        ...

    def snapshots(self) -> tuple[SlotSnapshot, ...]: ...

    def legal_operations(self) -> Mapping[str, LegalOperations]: ...


class HostsLost(RuntimeError):
    """Raised by a world that lost hosts (a worker died), after it did what was asked for all the others.

    The lost ones must be begun anew; their episodes have no final state.
    """

    def __init__(self, host_idxs: Sequence[int], reason: str) -> None:
        self.host_idxs, self.reason = tuple(host_idxs), reason
        super().__init__(f"lost hosts {', '.join(map(str, host_idxs))}: {reason}")


class Beginning(NamedTuple):
    """A host that is to begin."""

    host_idx: int
    case: str
    seed: int


class World(Protocol):
    """K hosts on one device, stepped together one epoch at a time.

    A host's numbers depend on its case, its seed and what was done to it: not on its index, nor on the others.
    """

    def begin(self, host_idx: int, case: str, seed: int) -> None:
        """Replace a host by a new, untrained one of the task instance `case`, and validate it (epoch 0)."""
        ...

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """The same for several hosts, all at work at once where that is possible."""
        ...

    def host(self, host_idx: int) -> HostProtocol: ...

    def apply(self, host_idx: int, action: ActionSpec) -> None:
        """Execute a legal action. Its effect on alphas is seen from the next epoch on."""
        ...

    def epoch(self, host_idxs: Sequence[int]) -> None:
        """For these hosts: tick, train one epoch, validate, govern. Their reports and readings are new after it."""
        ...

    def settle(self, host_idx: int, rent: float, *, committed_only: bool) -> None:
        """At the end: remove what is not part of the product and validate again if it changed."""
        ...

    def settle_many(self, host_idxs: Sequence[int], rent: float, *, committed_only: bool) -> None:
        """The same for several hosts, all at work at once where that is possible."""
        ...

    def state_dict(self, host_idx: int) -> dict[str, object]:
        """Everything of one host mid-episode, loadable with `weights_only=True`."""
        ...

    def load_state_dict(self, host_idx: int, state: Mapping[str, object]) -> None: ...


@dataclass(frozen=True, slots=True)
class BaselineCurve:
    """What an instance measures when nothing is grown, at epochs 0, 1, ... Unknown accuracies are None."""

    accuracies: tuple[float | None, ...]
    losses: tuple[float, ...]


class Baselines(Protocol):
    """Where wait-only control curves come from."""

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """Of the host that `World.begin(_, case, seed)` makes, from epoch 0 to the horizon."""
        ...

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """Of several (case, seed); those that must be trained first are trained at once where that is possible."""
        ...
