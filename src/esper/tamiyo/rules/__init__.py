"""Policies without learning: controls, heuristics and schedules, for comparison and for the start."""

from esper.tamiyo.rules.policy import RulePolicy
from esper.tamiyo.rules.probing import DetectThenProbePolicy, ProbeAndKeepPolicy
from esper.tamiyo.rules.registry import RULE_POLICIES, rule_policy
from esper.tamiyo.rules.schedule import Clause, Schedule, SchedulePolicy
from esper.tamiyo.rules.simple import (
    FitRatioPolicy,
    PeriodicPolicy,
    PlateauPolicy,
    RandomLegalPolicy,
    WaitPolicy,
)

__all__ = [
    "RULE_POLICIES",
    "Clause",
    "DetectThenProbePolicy",
    "FitRatioPolicy",
    "PeriodicPolicy",
    "PlateauPolicy",
    "ProbeAndKeepPolicy",
    "RandomLegalPolicy",
    "RulePolicy",
    "Schedule",
    "SchedulePolicy",
    "WaitPolicy",
    "rule_policy",
]
