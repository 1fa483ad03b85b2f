"""Hosts of the toy, and their world: real stages and rules, learning curves in closed form instead of training.

Epochs are counted as trained so far; 0 is the untrained host.

host      a(t) = p - (p - a0) exp(-t / tau), anew from half its accuracy when the task changes
seed      effect = alpha gain (1 - exp(-clock / tau_b))
clock     epochs blended in + ISOLATED_SHARE x epochs trained in isolation
accuracy  host + effects - scars
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from esper.kasmina.stage_machine import GrowthRules, Life, LivingHost, LivingSlot, require_choice
from esper.leyline import (
    CAUSAL_TABLE,
    CHOICES,
    ActionSpec,
    BaselineCurve,
    Beginning,
    BlueprintCard,
    Composition,
    EpochReport,
    HostState,
    HostStep,
    Layout,
    LifecycleOp,
    Settling,
    Stage,
    gate_parameters,
)
from esper.leyline.utility import rent_due
from esper.tolaria.worlds.toy.instance import (
    CHANCE,
    HOST_PARAMETERS,
    WIDTHS,
    ToyInstance,
    toy_cards,
    toy_instance,
)

ISOLATED_SHARE = 0.5
"""What an epoch of isolated training is worth beside one that is blended in."""
SCAR = 0.01
"""Accuracy that is lost for good when a seed is pruned or retired at alpha 1."""
UNTRAINED_LOSS = -math.log(CHANCE)
BLOCK = 32
"""Epochs of noise that are drawn at once."""
_NOISE_ENTROPY = 0xE59E3


def host_curve(instance: ToyInstance, epochs: int) -> tuple[float, ...]:
    """Noise-free accuracy of the bare host at epochs 0..epochs."""
    curve = [CHANCE]
    ends = [*(phase.start_epoch for phase in instance.phases[1:]), epochs]
    for phase, end in zip(instance.phases, ends, strict=True):
        level = 0.5 * curve[-1] if phase.start_epoch else CHANCE
        rise = phase.plateau - level
        curve += [
            phase.plateau - rise * math.exp(-passed / instance.host_epochs)
            for passed in range(1, min(end, epochs) - phase.start_epoch + 1)
        ]
    return tuple(curve)


def maturity(clock: float, epochs_to_learn: float) -> float:
    """The share of its gain that a seed has learned to give."""
    return 1.0 - math.exp(-clock / epochs_to_learn)


def loss_of(accuracy: float) -> float:
    """A loss that falls linearly with accuracy: log 10 at chance, 0 at 1."""
    return UNTRAINED_LOSS * (1.0 - accuracy) / (1.0 - CHANCE)


def generalisation_gap(instance: ToyInstance, epoch: int) -> float:
    """Train minus validation accuracy: large where samples are few."""
    return 0.25 * math.sqrt(500.0 / instance.training_samples) * (1.0 - math.exp(-epoch / 6.0))


def host_gradient_norm(instance: ToyInstance, epoch: int) -> float:
    """Shows the structure: shuffled inputs keep the gradient large."""
    structure = instance.phase_at(epoch).structure
    return (1.0 + 2.0 * structure) * (0.5 + 0.5 * math.exp(-epoch / instance.host_epochs))


@lru_cache(maxsize=4096)
def noise_block(draw: int, seed: int, block: int, slots: int) -> tuple[tuple[float, ...], ...]:
    """Standard normal (epoch in block, column); the same whatever is grown, so that no state is carried.

    Columns: validation untouched, validation touched, training, gradient, then contribution and probe a slot.
    """
    rng = np.random.default_rng((_NOISE_ENTROPY, draw, seed, block))
    values = rng.standard_normal((BLOCK, 4 + 2 * slots))
    return tuple(tuple(row) for row in values.tolist())


CONDEMNED = -0.32
"""A seed that takes this much accuracy in every phase of the instance makes the governor roll back."""


class ToySlot(LivingSlot):
    """A slot's life, what grows there, and what was measured of it."""

    layout = Layout.SERIES

    def __init__(self, index: int, name: str, rules: GrowthRules) -> None:
        self.index, self.name, self.channels = index, name, WIDTHS[index]
        self.life = Life(rules)
        self._cards = toy_cards()[index]
        self.clear()

    def clear(self) -> None:
        """Empty the slot."""
        self.blueprint, self.clock = -1, 0.0
        self.contribution = self.probe = self.gradient_norm = self.gradient_health = None
        self.weighed = False

    @property
    def cards(self) -> tuple[BlueprintCard, ...]:
        """The blueprints offered here with what each would cost."""
        return self._cards

    @property
    def card_index(self) -> int:
        """The place of the seed's blueprint in `cards`; -1 without a seed."""
        return self.blueprint

    @property
    def parameter_count(self) -> int:
        """Parameters of the seed and its gate; 0 without a seed."""
        style = self.life.style
        if self.blueprint < 0 or style is None:
            return 0
        gate = gate_parameters(self.channels) if style.composition is Composition.GATE else 0
        return self._cards[self.blueprint].parameters + gate

    def gradients_finite(self) -> bool:
        """Closed forms are."""
        return True

    def tick(self) -> None:
        """Begin an epoch: the life moves on, and the seed has learned for one epoch more."""
        life = self.life
        life.tick()
        if life.stage is Stage.DORMANT or life.stage is Stage.EMBARGOED:
            self.clear()
        elif life.stage is Stage.TRAINING:
            self.clock += ISOLATED_SHARE
        elif not life.fading:
            self.clock += 1.0

    def remove(self) -> None:
        """Take the seed out without an embargo."""
        self.life = Life(self.life.rules, births=self.life.births)
        self.clear()

    def state_dict(self) -> dict[str, object]:
        """Plain data that `load_state_dict` goes on from."""
        measured = {name: getattr(self, name) for name in _SLOT_FIELDS}
        return {"life": _LIFE.dump_python(self.life, mode="json"), **measured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of the same slot."""
        self.life = _LIFE.validate_python(state["life"])
        for name in _SLOT_FIELDS:
            setattr(self, name, state[name])


_LIFE = TypeAdapter(Life)
_SLOT_FIELDS = ("blueprint", "clock", "contribution", "weighed", "probe", "gradient_norm", "gradient_health")


class ToyHost(LivingHost):
    """One instance with one rng seed of its noise (a `HostProtocol`)."""

    host_parameters = HOST_PARAMETERS

    def __init__(self, instance: ToyInstance, seed: int, rules: GrowthRules) -> None:
        self.instance, self.seed = instance, seed
        self.slot_config = instance.slot_config
        names = self.slot_config.slot_ids
        self.slots: dict[str, ToySlot] = {name: ToySlot(i, name, rules) for i, name in enumerate(names)}
        self._bare = host_curve(instance, BLOCK)
        """Noise-free accuracy of the bare host by epoch, made longer when it is needed."""
        self._phase = instance.phases[0]
        """What holds now."""
        self._scars = 0.0
        self._touched = False
        """A seed has been blended in: from here on the host's noise is its own, not the baseline's."""
        self.report: EpochReport
        self._measure(0)

    @property
    def parameter_budget(self) -> None:
        """The toy has no cap."""
        return

    @property
    def training_samples(self) -> int:
        """Training samples of the instance."""
        return self.instance.training_samples

    # What is done to it

    def apply(self, action: ActionSpec) -> None:
        """Execute one operation; WAIT does nothing, an illegal one is refused."""
        op = action.op
        if op is LifecycleOp.WAIT:
            return
        slot = self._require(action)
        life = slot.life
        if op is LifecycleOp.GERMINATE:
            slot.blueprint = [card.name for card in slot.cards].index(str(action.blueprint))
            life.germinate(action.style, action.tempo, action.alpha_target)
        elif op is LifecycleOp.ADVANCE:
            life.advance()
        elif op is LifecycleOp.FOSSILIZE:
            life.fossilize()
        elif op is LifecycleOp.SET_ALPHA_TARGET:
            life.set_alpha_target(action.alpha_target, action.style, action.alpha_speed, action.alpha_curve)
        else:
            self._scars += SCAR * life.alpha
            life.take_out(action.alpha_speed, action.alpha_curve)
            if not life.fading:
                slot.clear()

    def epoch(self, *, weigh_fossils: bool = False) -> None:
        """Live through one epoch and measure it, what fossils contribute included if they are weighed."""
        for slot in self.slots.values():
            slot.tick()
            slot.weighed = weigh_fossils and slot.stage is Stage.FOSSILIZED
        self._measure(self.report.epoch + 1)

    def settle(self, settling: Settling) -> None:
        """Keep what is worth its rent. Effects add up, so each seed can be judged alone.

        That is by their true effects, which no measurement flatters: here one validation is observed and judged by.
        All the way from the untrained loss to 0 is 1 by loss, and 1 - CHANCE by accuracy (see `loss_of`).
        """
        removed, whole = 0, 1.0 if settling.family == "contribution" else 1.0 - CHANCE
        for slot in self.slots.values():
            life = slot.life
            if not life.stage.is_live:
                continue
            rent = rent_due(settling.rent, slot.parameter_count, self.host_parameters)
            unfinished = life.stage is Stage.TRAINING or life.fading
            if settling.settle == "committed" or unfinished or self._effect(slot, life.alpha) / whole < rent:
                slot.remove()
                removed += 1
        if removed:
            self._measure(self.report.epoch)
            self.report = replace(self.report, seeds_settled=removed)

    def _require(self, action: ActionSpec) -> ToySlot:
        if action.slot is None:
            raise ValueError(
                f"{action.op.name} names no slot; the slots are {', '.join(self.slot_config.slot_ids)}"
            )
        self.slot_config.index(action.slot)
        slot, free = self.slots[action.slot], self.free_places
        slot.require_legal(action.op, free_places=free)
        legal = slot.legal(free_places=free)
        choices: dict[str, Sequence[object]] = {
            **CHOICES,
            "blueprint": legal.blueprints,
            "style": legal.styles,
            "alpha_target": legal.alpha_targets,
        }
        for name in CAUSAL_TABLE[action.op]:
            if name in choices:
                require_choice(name, getattr(action, name), choices[name])
        return slot

    # The curves

    def _effect(self, slot: ToySlot, alpha: float, gain: float | None = None) -> float:
        """What the seed adds to accuracy at this alpha, without noise; with another gain, what it would."""
        if alpha == 0.0 or slot.blueprint < 0:
            return 0.0
        if gain is None:
            gain = self._phase.gains[slot.index][slot.blueprint]
        return alpha * gain * maturity(slot.clock, self.instance.epochs_to_learn[slot.blueprint])

    def expected_at(self, epoch: int) -> float:
        """Validation accuracy without noise, at an epoch, of what has grown until now."""
        effects = sum(self._effect(slot, slot.life.alpha) for slot in self.slots.values())
        return self._bare[epoch] + effects - self._scars

    def _measure(self, epoch: int) -> None:
        instance = self.instance
        if epoch >= len(self._bare):
            self._bare = host_curve(instance, 2 * epoch)
        self._phase = instance.phase_at(epoch)
        self._touched = self._touched or any(slot.life.alpha > 0.0 for slot in self.slots.values())
        noise = noise_of(instance, self.seed, epoch)
        expected = self.expected_at(epoch)
        accuracy = measured(expected, instance.noise, noise[1 if self._touched else 0])
        train_accuracy = measured(expected + generalisation_gap(instance, epoch), instance.noise, noise[2])
        for slot in self.slots.values():
            self._read(slot, noise)
        untrained = epoch == 0
        gradient = host_gradient_norm(instance, epoch) * (1.0 + instance.noise * noise[3])
        self.report = EpochReport(
            epoch=epoch,
            train_loss=None if untrained else loss_of(train_accuracy),
            train_accuracy=None if untrained else train_accuracy,
            validation_loss=loss_of(accuracy),
            validation_accuracy=accuracy,
            gradient_norm=None if untrained else gradient,
            rolled_back=None,
        )
        self._govern()

    def _read(self, slot: ToySlot, noise: Sequence[float]) -> None:
        """Measure one seed: its contribution or probe, and its gradient."""
        life, sd = slot.life, self.instance.noise
        if slot.blueprint < 0 or life.age == 0:
            return
        slot.probe = slot.gradient_norm = slot.gradient_health = None
        if life.stage is Stage.FOSSILIZED:  # part of the host: no gradient is measured of it on its own
            if slot.weighed:
                slot.contribution = self._effect(slot, life.alpha) + sd * noise[4 + 2 * slot.index]
            return
        grown_up = maturity(slot.clock, self.instance.epochs_to_learn[slot.blueprint])
        slot.gradient_norm, slot.gradient_health = 0.1 + (1.0 - grown_up), 1.0
        if life.stage is Stage.TRAINING:
            assert life.alpha_target is not None
            slot.probe = self._effect(slot, life.alpha_target) + sd * noise[5 + 2 * slot.index]
        else:
            slot.contribution = self._effect(slot, life.alpha) + sd * noise[4 + 2 * slot.index]

    def _govern(self) -> None:
        """Remove every live seed where one does too much harm in each phase."""
        worst = 0.0
        for slot in self.slots.values():
            least_harm = max(phase.gains[slot.index][slot.blueprint] for phase in self.instance.phases)
            worst = min(worst, self._effect(slot, slot.life.alpha, least_harm))
        if worst > CONDEMNED:
            return
        reason = f"validation accuracy {self.report.validation_accuracy:.3f} after a seed took {-worst:.3f}"
        for slot in self.slots.values():
            if slot.life.stage.is_live:
                slot.remove()
        self.report = replace(self.report, rolled_back=reason)

    # Going on later

    def state_dict(self) -> dict[str, object]:
        """Plain data that `from_state` goes on from."""
        return {
            "case": self.instance.case,
            "seed": self.seed,
            "scars": self._scars,
            "touched": self._touched,
            "report": asdict(self.report),
            "slots": [slot.state_dict() for slot in self.slots.values()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], rules: GrowthRules) -> "ToyHost":
        """The host that `state_dict` was taken of."""
        self = cls(toy_instance(state["case"]), state["seed"], rules)
        self._scars, self._touched = state["scars"], state["touched"]
        self.report = EpochReport(**state["report"])
        self._bare = host_curve(self.instance, max(2 * self.report.epoch, BLOCK))
        self._phase = self.instance.phase_at(self.report.epoch)
        for slot, saved in zip(self.slots.values(), state["slots"], strict=True):
            slot.load_state_dict(saved)
        return self


def measured(expected: float, noise: float, draw: float) -> float:
    """An accuracy as validation shows it."""
    return min(max(expected + noise * draw, 0.0), 1.0)


def noise_of(instance: ToyInstance, seed: int, epoch: int) -> tuple[float, ...]:
    """The standard normal draws of one epoch, in the columns of `noise_block`."""
    return noise_block(instance.draw, seed, epoch // BLOCK, instance.slots)[epoch % BLOCK]


class ToyWorld:
    """`num_hosts` hosts with closed-form learning curves, tens of microseconds an epoch, and their baselines."""

    def __init__(self, num_hosts: int, rules: GrowthRules | None = None) -> None:
        if num_hosts < 1:
            raise ValueError(f"num_hosts is {num_hosts}; expected >= 1")
        self.rules = GrowthRules() if rules is None else rules
        self._hosts: list[ToyHost | None] = [None] * num_hosts

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones."""
        for host_idx, case, seed in beginnings:
            self._hosts[host_idx] = ToyHost(toy_instance(case), seed, self.rules)

    def host(self, host_idx: int) -> ToyHost:
        """One host."""
        host = self._hosts[host_idx]
        if host is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin_many first")
        return host

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Apply the actions of all, then an epoch of each, and settle those that are to be settled."""
        for step in steps:
            if step.action is not None:
                self.host(step.host_idx).apply(step.action)
        for host_idx, action, settling, weigh_fossils in steps:
            host = self.host(host_idx)
            if action is not None:
                host.epoch(weigh_fossils=weigh_fossils)
            if settling is not None and host.report.rolled_back is None:
                host.settle(settling)

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """The states of these hosts, by host index."""
        return {host_idx: self.host(host_idx).state_dict() for host_idx in host_idxs}

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""
        for host_idx, state in states.items():
            self._hosts[host_idx] = ToyHost.from_state(state, self.rules)


class ToyBaselines:
    """What each instance and seed measures when nothing is grown, in closed form, to epoch `horizon`."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """The curve of one instance and rng seed."""
        instance = toy_instance(case)
        bare = host_curve(instance, self.horizon)
        accuracies = tuple(
            measured(accuracy, instance.noise, noise_of(instance, seed, epoch)[0])
            for epoch, accuracy in enumerate(bare)
        )
        return BaselineCurve(accuracies, tuple(loss_of(accuracy) for accuracy in accuracies))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """The curves of several (case, seed)."""
        return [self.curve(case, seed) for case, seed in wanted]
