"""Policies without learning: controls, heuristics and schedules, for comparison and for the start."""

from esper.tamiyo.rules.growing import FitRatioPolicy, PeriodicPolicy, PlateauPolicy
from esper.tamiyo.rules.plain import RandomLegalPolicy, WaitPolicy
from esper.tamiyo.rules.policy import RulePolicy
from esper.tamiyo.rules.probing import DetectThenProbePolicy, ProbeAndKeepPolicy
from esper.tamiyo.rules.registry import RULE_POLICIES, rule_policy
from esper.tamiyo.rules.schedule import Clause, Schedule
from esper.tamiyo.rules.scheduled import SchedulePolicy

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
