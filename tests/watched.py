"""Hosts to watch: one whose numbers are set by hand, and real growing models without a training loop."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import nn

import esper
from esper.kasmina import Blueprint, GrowingModel, GrowthRules, all_blueprints
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import (
    ActionSpec,
    BlueprintCard,
    BlueprintKind,
    EpochReport,
    Layout,
    LegalOperations,
    LifecycleOp,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
    Stage,
)
from esper.tamiyo import GrowthSpace, Observer, illegal_choice
from esper.tamiyo.actions import encode
from esper.tamiyo.rules import RulePolicy
from esper.tamiyo.rules.policy import decisions_of

DORMANT = SlotReading(
    stage=int(Stage.DORMANT),
    fading=False,
    alpha=0.0,
    alpha_target=math.nan,
    epochs_to_target=0,
    age=0,
    epochs_in_stage=0,
    blueprint=-1,
    style=-1,
    parameters=0,
    legal=1 << LifecycleOp.WAIT | 1 << LifecycleOp.GERMINATE,
    contribution=math.nan,
    probe=math.nan,
    gradient_norm=math.nan,
    gradient_health=math.nan,
)

HOLDING = SlotReading(
    stage=int(Stage.HOLDING),
    fading=False,
    alpha=0.7,
    alpha_target=0.7,
    epochs_to_target=0,
    age=6,
    epochs_in_stage=2,
    blueprint=1,
    style=0,
    parameters=50,
    legal=0b011101,
    contribution=0.03,
    probe=math.nan,
    gradient_norm=0.2,
    gradient_health=0.75,
)


def report(
    epoch: int, accuracy: float | None = 0.5, *, loss: float = 1.0, **others: float | None
) -> EpochReport:
    """A report of an epoch: validation as given, the rest unknown unless it is named."""
    return EpochReport(
        epoch=epoch,
        train_loss=others.get("train_loss"),
        train_accuracy=others.get("train_accuracy"),
        validation_loss=loss,
        validation_accuracy=accuracy,
        gradient_norm=others.get("gradient_norm"),
        rolled_back=None,
    )


@dataclass
class PaperHost:
    """A host that is only what is written here."""

    slot_config: SlotConfig
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    host_parameters: int = 1000
    training_samples: int = 1000
    parameter_budget: int | None = None
    report: EpochReport = field(default_factory=lambda: report(0))
    rows: list[SlotReading] = field(default_factory=list)
    channels: tuple[int, ...] = ()

    @property
    def added_parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    def readings(self) -> Sequence[SlotReading]:
        return self.rows

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        return tuple(
            SlotSnapshot(
                name=name,
                layout=Layout.FLAT,
                channels=channels,
                stage=Stage(row.stage),
                fading=row.fading,
                alpha=row.alpha,
                alpha_target=None if math.isnan(row.alpha_target) else row.alpha_target,
                epochs_to_target=row.epochs_to_target,
                age=row.age,
                epochs_in_stage=row.epochs_in_stage,
                blueprint=None if row.blueprint < 0 else self.cards[name][row.blueprint].name,
                style=None,
                parameters=row.parameters,
                contribution=None if math.isnan(row.contribution) else row.contribution,
                gradients_finite=None,
            )
            for name, row, channels in zip(self.slot_config.slot_ids, self.rows, self.channels, strict=True)
        )

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        return {
            name: LegalOperations(frozenset(op for op in LifecycleOp if row.legal >> op & 1), (), (), ())
            for name, row in zip(self.slot_config.slot_ids, self.rows, strict=True)
        }


def paper_host(*slots: str, blueprints: Sequence[str] = ("conv", "norm"), **options: object) -> PaperHost:
    """All slots dormant, each 2, 4, 6, ... channels wide and offering the same blueprints for 10, 20, ... ."""
    kinds = {kind.value: kind for kind in BlueprintKind}
    offered = tuple(
        BlueprintCard(name, kinds.get(name, BlueprintKind.OTHER), 10 * (number + 1))
        for number, name in enumerate(blueprints)
    )
    make: Callable[..., PaperHost] = PaperHost
    return make(
        SlotConfig(slots),
        dict.fromkeys(slots, offered),
        rows=[DORMANT] * len(slots),
        channels=tuple(2 * (number + 1) for number in range(len(slots))),
        **options,
    )


KINDS = ("flat", "series", "image", "tokens")
_EXAMPLES = {
    "flat": torch.zeros(3, 7),
    "series": torch.zeros(3, 1, 16),
    "image": torch.zeros(3, 1, 8, 8),
    "tokens": torch.zeros(3, 7, dtype=torch.int64),
}


def small_model(kind: str, rules: GrowthRules | None = None, slots: int = 3) -> GrowingModel:
    """A growing model of one layout with `slots` slots named blocks.0, blocks.1, ...; of each kind one is wrapped."""
    return copy.deepcopy(_wrapped(kind, rules, slots, all_blueprints()))


@cache
def _wrapped(
    kind: str, rules: GrowthRules | None, slots: int, _offered: tuple[Blueprint, ...]
) -> GrowingModel:
    widths = (3, 4, 5, 4, 3)[:slots]
    hosts: dict[str, Callable[[], nn.Module]] = {
        "flat": lambda: MLP(7, 3, widths),
        "series": lambda: ConvNet(1, 3, dims=1, widths=widths, pools=(1,) * slots),
        "image": lambda: ConvNet(1, 3, dims=2, widths=widths, pools=(1,) * slots),
        "tokens": lambda: GPT(11, 7, layers=slots, heads=2, width=8),
    }
    return esper.wrap(hosts[kind](), ["blocks.*"], _EXAMPLES[kind], causal=kind == "tokens", rules=rules)


class ModelHost:
    """A growing model under a pretended training loop: nothing is trained, all measurements are told.

    measure  (epoch, slot, blueprint) -> the contribution a blending or holding seed is said to have
    """

    def __init__(
        self,
        model: GrowingModel,
        *,
        measure: Callable[[int, str, str], float | None] = lambda *_: 0.0,
        accuracy: Callable[[int], float] = lambda epoch: 1.0 - 0.5**epoch,
    ) -> None:
        self.model = model
        self.measure, self.accuracy = measure, accuracy
        self.weigh_fossils = False
        self.training_samples = 1000
        self.parameter_budget: int | None = None
        self.report = report(0, accuracy(0))

    @property
    def slot_config(self) -> SlotConfig:
        return self.model.slot_config

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        return {name: slot.cards for name, slot in self.model.slots.items()}

    @property
    def host_parameters(self) -> int:
        return self.model.host_parameters

    @property
    def added_parameters(self) -> int:
        return self.model.added_parameters

    def readings(self) -> Sequence[SlotReading]:
        return self.model.readings()

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        return tuple(slot.snapshot() for slot in self.model.slots.values())

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        return self.model.legal_operations()

    def apply(self, action: ActionSpec) -> None:
        """Execute an action; an illegal one raises."""
        self.model.execute(action)

    def epoch(self) -> None:
        """Tick, and report what an epoch would have measured."""
        self.model.tick()
        epoch = self.report.epoch + 1
        for name, slot in self.model.slots.items():
            if slot.stage.is_live:
                assert slot.seed is not None
                self.model.report(name, gradients_finite=True, gradient_norm=0.5, gradient_health=1.0)
                told = self.measure(epoch, name, slot.seed.blueprint_name)
                if slot.stage is Stage.TRAINING:
                    self.model.report(name, probe=told)
                else:
                    self.model.report(name, contribution=told)
            elif slot.stage is Stage.FOSSILIZED and self.weigh_fossils:
                assert slot.seed is not None
                self.model.report(name, contribution=self.measure(epoch, name, slot.seed.blueprint_name))
        self.report = report(
            epoch,
            self.accuracy(epoch),
            train_accuracy=self.accuracy(epoch),
            train_loss=1.0,
            gradient_norm=1.0,
        )


def live(
    policy: RulePolicy, host: ModelHost, *, horizon: int = 30, budget: int | None = None
) -> list[tuple[int, str]]:
    """Let a rule-based policy lead a host to its horizon; (epoch, what it did) without the waiting.

    An illegal action fails here, and so does one that the masks would not let through.
    """
    observer = Observer(GrowthSpace.covering([host]), 1, decisions=decisions_of(policy))
    space, host.weigh_fossils = observer.space, observer.decisions.retire
    observer.begin(0, host, horizon=horizon, parameter_budget=budget)
    policy.reset()
    done = []
    for epoch in range(horizon):
        action = policy.act(observer.situation(0))
        told = illegal_choice(encode(action, space, host.slot_config), observer.masks()[0], space)
        assert told is None, told
        host.apply(action)
        host.epoch()
        observer.record(0, host, action.op)
        if action.op is not LifecycleOp.WAIT:
            place = action.slot if action.blueprint is None else f"{action.blueprint}@{action.slot}"
            done.append((epoch, f"{action.op.name.lower()} {place}"))
    return done
