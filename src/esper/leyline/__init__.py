"""Leyline: the contracts every other part agrees on. Plain data and protocols; nothing heavy is imported."""

from esper.leyline.decisions import ActionOutcome, ActionSpec, IllegalChoice, Situation
from esper.leyline.events import (
    Event,
    EventSink,
    HostRolledBack,
    NonFiniteSeedOutput,
    SeedFading,
    SeedGerminated,
    StageChanged,
)
from esper.leyline.heads import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    CAUSAL_TABLE,
    HEAD_NAMES,
    STYLES,
    TEMPOS,
    ActionDict,
    Composition,
    Curve,
    HeadEntropies,
    HeadLogProbs,
    Style,
)
from esper.leyline.lifecycle import LIVE_STAGES, LifecycleOp, Stage
from esper.leyline.protocols import GrowingModelProtocol, SeedSlotProtocol
from esper.leyline.signals import HostSignals, RewardInputs, Standing
from esper.leyline.slots import (
    BlueprintCard,
    BlueprintKind,
    Layout,
    LegalOperations,
    SlotConfig,
    SlotSnapshot,
)
from esper.leyline.worlds import EpochReport, HostProtocol, SlotReading, World

__all__ = [
    "ALPHA_CURVES",
    "ALPHA_SPEEDS",
    "ALPHA_TARGETS",
    "CAUSAL_TABLE",
    "HEAD_NAMES",
    "LIVE_STAGES",
    "STYLES",
    "TEMPOS",
    "ActionDict",
    "ActionOutcome",
    "ActionSpec",
    "BlueprintCard",
    "BlueprintKind",
    "Composition",
    "Curve",
    "EpochReport",
    "Event",
    "EventSink",
    "GrowingModelProtocol",
    "HeadEntropies",
    "HeadLogProbs",
    "HostProtocol",
    "HostRolledBack",
    "HostSignals",
    "IllegalChoice",
    "Layout",
    "LegalOperations",
    "LifecycleOp",
    "NonFiniteSeedOutput",
    "RewardInputs",
    "SeedFading",
    "SeedGerminated",
    "SeedSlotProtocol",
    "Situation",
    "SlotConfig",
    "SlotReading",
    "SlotSnapshot",
    "Stage",
    "StageChanged",
    "Standing",
    "Style",
    "World",
]
