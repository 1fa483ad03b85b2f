"""What the controller sees of many hosts at once, in memory that is allocated once and written in place."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import (
    BlueprintCard,
    DecisionSettings,
    HostProtocol,
    LegalOperations,
    LifecycleOp,
    Situation,
    SlotReading,
    SlotSnapshot,
    Style,
    gate_parameters,
)
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import (
    FIELD,
    KINDS,
    PADDING,
    HostReading,
    blueprint_features,
    observation_parts,
    observation_size,
    symlog_losses,
    write_features_of_retiring,
    write_host_features,
    write_slot_features,
)
from esper.tamiyo.masks import GrowthMasks, without_germination
from esper.tamiyo.tracker import HISTORY, TRACKED, FossilWatch, Origin, SignalTracker, trend
from esper.tamiyo.units import Scales, write_features_of_ratios

Array = NDArray[np.float64]
_SERIES = len(TRACKED)


@dataclass(slots=True)
class _Env:
    """One host of the batch, as last read."""

    host: HostProtocol
    tracker: SignalTracker
    parameter_budget: int | None
    last_operation: LifecycleOp
    settings: DecisionSettings
    fossils: FossilWatch
    slot_readings: list[SlotReading] = field(default_factory=list)
    """Padded to the space's slots."""
    host_reading: tuple[float, ...] = ()
    """The numbers of a HostReading."""
    origin: Origin = field(default_factory=Origin)
    """What ratios are to."""

    @property
    def room(self) -> float:
        """Parameters that may still be added; too few for any seed before growth may begin."""
        if self.host.report.epoch < self.settings.first_growth:
            return -1.0
        budget = self.parameter_budget
        return math.inf if budget is None else budget - self.host.added_parameters

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        """What may be germinated, room or not."""
        cards, menu = self.host.cards, self.settings.menu
        if menu is None:
            return cards
        return {slot: tuple(card for card in offered if card.name in menu) for slot, offered in cards.items()}

    @property
    def is_limited(self) -> bool:
        """Whether less may be germinated than the host's own rules allow."""
        return self.settings.menu is not None or self.room < math.inf

    def read(self, slot_count: int, *, new_epoch: bool) -> None:
        """Read the host once, for everything that is asked until the next epoch."""
        host, tracker = self.host, self.tracker
        report, readings = host.report, list(host.readings())
        self.slot_readings = readings + [PADDING] * (slot_count - len(readings))
        if new_epoch:
            tracker.record(report, self.slot_readings)
            self.origin.record(tracker.latest, report.gradient_norm)
            if self.settings.retire:
                self.fossils.record(self.slot_readings, host.host_parameters)
        self.host_reading = HostReading(
            report.epoch,
            tracker.horizon,
            host.training_samples,
            tracker.plateau,
            host.host_parameters,
            math.nan if self.parameter_budget is None else self.parameter_budget,
            math.nan if report.gradient_norm is None else report.gradient_norm,
            self.last_operation,
            math.nan if report.validation_samples is None else report.validation_samples,
        )


class Observer:
    """Watches `num_envs` hosts and gives the batch that a policy decides from.

    >>> observer.begin(env_idx, host, horizon=20)           # a new episode, validated at epoch 0
    >>> observation, mask = observer.observe(), observer.masks()
    >>> observer.record(env_idx, host, LifecycleOp.WAIT)    # after the epoch that followed an operation

    What `observe` and `masks` return is the same memory each time: copy what must last.

    decisions  what may be decided, and when validation is on a plateau
    """

    def __init__(
        self, space: GrowthSpace, num_envs: int, *, decisions: DecisionSettings = DecisionSettings()
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; expected >= 1")
        self.space, self.decisions = space.under(decisions), decisions
        space = self.space
        self.flat = torch.zeros(num_envs, observation_size(space))
        """(env, feature) float32: host | slots | blueprints, what `observe` writes into."""
        self._parts = _views(self.flat, space)
        self._masks = GrowthMasks(space, num_envs, decisions.frozen_choices)
        self._envs: list[_Env | None] = [None] * num_envs
        slots, blueprints = space.slot_count, len(space.blueprints)
        self._costs = np.full((num_envs, slots, blueprints), np.nan)  # parameters; NaN where not offered
        # Kind of each card of each slot; the last entry, -1, is what "nothing grows" points at.
        self._cards = np.full((num_envs, slots, blueprints + 1), -1, dtype=np.int64)
        self._gate_costs = np.zeros((num_envs, slots))  # parameters
        self._places = np.zeros((num_envs, slots, 2))  # relative width and depth
        self._each_slot = np.ogrid[:num_envs, :slots]
        self._readings: Array | None = None

    @property
    def num_envs(self) -> int:
        """Hosts that are watched."""
        return len(self._envs)

    def begin(
        self, env_idx: int, host: HostProtocol, *, horizon: int, parameter_budget: int | None = None
    ) -> None:
        """Forget what was there and watch a new host, whose report is that of epoch 0.

        parameter_budget  parameters that may be added in all, if its task allows as many; None is as many as those
        """
        budgets = [budget for budget in (parameter_budget, host.parameter_budget) if budget is not None]
        parameter_budget = min(budgets, default=None)
        tracker = SignalTracker(horizon, plateau_threshold=self.decisions.plateau_threshold)
        watch = FossilWatch(self.decisions)
        env = _Env(host, tracker, parameter_budget, LifecycleOp.WAIT, self.decisions, watch)
        self._watch(env_idx, env, new_epoch=True)

    def record(self, env_idx: int, host: HostProtocol, operation: LifecycleOp) -> None:
        """Take in the epoch that followed an operation."""
        env = self._env(env_idx)
        if host is not env.host:
            env.host.slot_config.require_same(host.slot_config, ours=f"env {env_idx}", theirs="the host")
        env.host, env.last_operation = host, operation
        env.read(self.space.slot_count, new_epoch=True)
        self._readings = None

    def observe(self) -> dict[str, NDArray[np.float32]]:
        """host (env, feature), slots (env, slot, feature), blueprints (env, slot, blueprint, feature)."""
        envs, readings = self._watched(), self._slot_readings()
        hosts = _array(
            chain.from_iterable(env.host_reading for env in envs), len(envs), len(HostReading._fields)
        )
        window = _array(
            chain.from_iterable(env.tracker.window for env in envs),
            len(envs),
            HISTORY,
            _SERIES + self.space.slot_count,
        )
        host_parameters = hosts[:, HostReading._fields.index("host_parameters")]
        scales = (
            None if self.space.units == "absolute" else Scales.of([env.origin for env in envs], hosts, window)
        )
        if scales is not None:
            write_features_of_ratios(readings, scales, self._parts["host"], self._parts["slots"])
            readings = scales.as_ratios(hosts, window, readings)
        symlog_losses(window)
        change, slope = trend(window)
        if scales is not None:
            scales.count_by_noise(change, slope)
        write_host_features(
            hosts,
            window[:, -1, :_SERIES],
            change[:, :_SERIES],
            slope[:, :_SERIES],
            readings[..., FIELD["parameters"]].sum(axis=-1),
            self._parts["host"],
        )
        growing = readings[..., FIELD["blueprint"]].astype(np.int64)
        write_slot_features(
            readings,
            slope[:, _SERIES:],
            self._cards[*self._each_slot, growing],
            self._places,
            host_parameters,
            hosts[:, HostReading._fields.index("gradient_norm")],
            self._parts["slots"],
        )
        if self.decisions.retire:
            retired_last = [env.last_operation is LifecycleOp.RETIRE for env in envs]
            write_features_of_retiring(
                readings,
                np.array([env.fossils.epochs for env in envs]),
                np.array([env.fossils.decayed for env in envs]),
                np.array(retired_last),
                host_parameters,
                self._parts["host"],
                self._parts["slots"],
            )
        return self._parts

    def masks(self) -> NDArray[np.bool_]:
        """(env, layout.width) in the flat layout of the space's actions, True where legal."""
        readings = self._slot_readings()
        return self._masks.write(
            readings[..., FIELD["legal"]],
            readings[..., FIELD["style"]],
            readings[..., FIELD["alpha_target"]],
            *self._affordable(),
        )

    def situation(self, env_idx: int) -> Situation:
        """The same env in words, for a rule-based policy."""
        env = self._env(env_idx)
        slots, legal, cards = self.slots(env_idx), env.host.legal_operations(), env.cards
        if not self.decisions.retire:
            legal = unretired(legal)
        if env.is_limited:
            gates = {slot.name: gate_parameters(slot.channels) for slot in slots}
            legal = legal_within(legal, cards, gates, env.room)
        return Situation(
            signals=env.tracker.signals(env.host, env.last_operation, env.parameter_budget),
            slots=slots,
            legal=legal,
            cards=cards,
        )

    def slots(self, env_idx: int) -> tuple[SlotSnapshot, ...]:
        """What there is to see of each slot; where fossils may be retired, also which have decayed."""
        env = self._env(env_idx)
        slots = env.host.snapshots()
        if not self.decisions.retire:
            return slots
        return tuple(
            replace(slot, decay_epochs=epochs, decayed=decayed)
            for slot, epochs, decayed in zip(slots, env.fossils.epochs, env.fossils.decayed, strict=False)
        )

    def extend(self, env_idx: int, horizon: int) -> None:
        """The episode will be longer than it was said when it began."""
        env = self._env(env_idx)
        env.tracker.horizon = max(env.tracker.horizon, horizon)
        env.read(self.space.slot_count, new_epoch=False)

    def state_dict(self, env_idx: int) -> dict[str, object]:
        """What this env's observation depends on beside the host itself: plain numbers and lists."""
        env = self._env(env_idx)
        state: dict[str, object] = {
            "tracker": env.tracker.state_dict(),
            "parameter_budget": env.parameter_budget,
            "last_operation": int(env.last_operation),
        }
        state |= {"decay": list(env.fossils.epochs)} if self.decisions.retire else {}
        return state | {"origin": env.origin.state_dict()} if self.space.units == "ratios" else state

    def load_state_dict(self, env_idx: int, host: HostProtocol, state: Mapping[str, object]) -> None:
        """Watch a host that stands where it stood when `state_dict` was taken."""
        tracked, budget, operation = (
            state[name] for name in ("tracker", "parameter_budget", "last_operation")
        )
        if not isinstance(tracked, Mapping) or not isinstance(operation, int):
            raise TypeError(f"tracker is {tracked!r}, last_operation {operation!r}; expected state_dict's")
        if budget is not None and not isinstance(budget, int):
            raise TypeError(f"parameter_budget is {budget!r}; expected an integer or None")
        tracker = SignalTracker.from_state(tracked)
        if tracker.row != _SERIES + self.space.slot_count:
            raise ValueError(
                f"the tracker has {tracker.row - _SERIES} slots; expected the {self.space.slot_count} of the space"
            )
        watch = FossilWatch(self.decisions, self._decay_of(state))
        origin = Origin.from_state(state.get("origin")) if self.space.units == "ratios" else Origin()
        env = _Env(host, tracker, budget, LifecycleOp(operation), self.decisions, watch, origin=origin)
        self._watch(env_idx, env, new_epoch=False)

    def _decay_of(self, state: Mapping[str, object]) -> list[int]:
        """The epochs below rent of each slot, where fossils may be retired."""
        if not self.decisions.retire:
            return []
        decay, places = state.get("decay"), self.space.slot_count
        if not isinstance(decay, list) or len(decay) != places:
            raise ValueError(f"decay is {decay!r}; expected epochs below rent for each of {places} slots")
        return [int(epochs) for epochs in decay]

    def _watch(self, env_idx: int, env: _Env, *, new_epoch: bool) -> None:
        self._place(env_idx, env)
        env.read(self.space.slot_count, new_epoch=new_epoch)
        self._envs[env_idx] = env
        self._readings = None

    def _place(self, env_idx: int, env: _Env) -> None:
        """Write what stays as it is for a host's whole life."""
        host, count = env.host, len(env.host.slot_config)
        self.space.require_fits(host)
        offered = [host.cards[slot] for slot in host.slot_config.slot_ids]
        features = self._parts["blueprints"][env_idx]
        features[:count] = blueprint_features(offered, self.space.blueprints, host.host_parameters)
        features[count:] = 0.0
        for slot, slot_cards in enumerate(offered):
            self._cards[env_idx, slot, : len(slot_cards)] = [KINDS.index(card.kind) for card in slot_cards]
        self._costs[env_idx] = np.nan
        for slot, slot_cards in enumerate(env.cards[name] for name in host.slot_config.slot_ids):
            for card in slot_cards:
                self._costs[env_idx, slot, self.space.blueprint_index[card.name]] = card.parameters
        channels = np.array([snapshot.channels for snapshot in host.snapshots()])
        self._gate_costs[env_idx, :count] = [gate_parameters(int(here)) for here in channels]
        self._places[env_idx] = 0.0
        self._places[env_idx, :count, 0] = channels / channels.max()
        self._places[env_idx, :count, 1] = (np.arange(count) + 0.5) / count

    def _affordable(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(env, slot, blueprint): offered, on the menu, and with room; (env, slot): also for the dearest's gate."""
        room = np.array([env.room for env in self._watched()])[:, np.newaxis]
        affordable: NDArray[np.bool_] = self._costs <= room[..., np.newaxis]
        dearest = np.where(affordable, self._costs, 0.0).max(axis=-1)
        return affordable, dearest + self._gate_costs <= room

    def _slot_readings(self) -> Array:
        """(env, slot, field of SlotReading), made once an epoch."""
        if self._readings is None:
            envs = self._watched()
            rows = chain.from_iterable(env.slot_readings for env in envs)
            self._readings = _array(
                chain.from_iterable(rows), len(envs), self.space.slot_count, len(SlotReading._fields)
            )
            legal = self._readings[..., FIELD["legal"]]
            legal[:] = without_germination(legal, self._affordable()[0])
        return self._readings

    def _env(self, env_idx: int) -> _Env:
        env = self._envs[env_idx]
        if env is None:
            raise RuntimeError(f"env {env_idx} has no host yet: call begin first")
        return env

    def _watched(self) -> list[_Env]:
        envs = [env for env in self._envs if env is not None]
        if len(envs) != self.num_envs:
            self._env(self._envs.index(None))  # says which one
        return envs


def _array(numbers: Iterable[float], *shape: int) -> Array:
    # Twice as fast as np.array on lists of tuples, and it demands exactly this many.
    return np.fromiter(numbers, np.float64, count=math.prod(shape)).reshape(shape)


def _views(flat: Tensor, space: GrowthSpace) -> dict[str, NDArray[np.float32]]:
    """The parts of the flat observation as arrays that share its memory."""
    parts = observation_parts(space)
    pieces = flat.split([math.prod(shape) for shape in parts.values()], dim=1)
    return {
        name: piece.unflatten(1, shape).numpy()
        for (name, shape), piece in zip(parts.items(), pieces, strict=True)
    }


def unretired(legal: Mapping[str, LegalOperations]) -> dict[str, LegalOperations]:
    """What is legal, slot by slot, without RETIRE: for deciders that know no such choice."""
    without = {LifecycleOp.RETIRE}
    return {
        slot: replace(here, operations=here.operations - without) if without & here.operations else here
        for slot, here in legal.items()
    }


def legal_within(
    legal: Mapping[str, LegalOperations],
    cards: Mapping[str, Sequence[BlueprintCard]],
    gates: Mapping[str, int],
    room: float,
) -> dict[str, LegalOperations]:
    """What is legal with so much room: no blueprint that needs more, nor GERMINATE where each does, nor a gate where
    `gates` (slot -> its parameters) has no room beside the dearest."""
    kept: dict[str, LegalOperations] = {}
    for slot, here in legal.items():
        costs = {card.name: card.parameters for card in cards[slot] if card.parameters <= room}
        blueprints = tuple(name for name in here.blueprints if name in costs)
        operations, styles = here.operations, here.styles
        if not blueprints:
            operations -= {LifecycleOp.GERMINATE}
        elif max(costs.values()) + gates[slot] > room:
            styles = tuple(style for style in styles if style is not Style.GATE)
        kept[slot] = replace(here, operations=operations, blueprints=blueprints, styles=styles)
    return kept
