"""Rules: policies without learning. Baselines, heuristics and open-loop schedules."""

from esper.tamiyo.rules.policy import RulePolicy, SavableRule
from esper.tamiyo.rules.registry import RULE_NAMES, RULE_POLICIES, rule_policy
from esper.tamiyo.rules.schedule import Clause, Schedule, SchedulePolicy

__all__ = [
    "RULE_NAMES",
    "RULE_POLICIES",
    "Clause",
    "RulePolicy",
    "SavableRule",
    "Schedule",
    "SchedulePolicy",
    "rule_policy",
]
