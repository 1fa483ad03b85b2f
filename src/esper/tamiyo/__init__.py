"""Tamiyo: deciding. The action layout, masked factored distributions, policy networks, the actor."""

from esper.tamiyo.actor import Actor
from esper.tamiyo.actor_critic import ActorCritic, RecurrentActorCritic
from esper.tamiyo.compiled import unwrap
from esper.tamiyo.factored import FactoredDistribution, HeadEvaluation, LayoutTensors
from esper.tamiyo.growth_policy import BLUEPRINT_FEATURES, GrowthPolicy, blueprint_features
from esper.tamiyo.layout import (
    ActionLayout,
    CausalTable,
    discrete_layout,
    growth_actions,
    growth_layout,
    growth_log_probs,
    multi_discrete_layout,
    relevance_table,
)
from esper.tamiyo.masked_categorical import MaskedCategorical
from esper.tamiyo.policy import NO_ACTION, ActorState, Policy, PolicyInputs, PolicyOutput
from esper.tamiyo.sequences import SequencePlan, advance, replay

__all__ = [
    "BLUEPRINT_FEATURES",
    "NO_ACTION",
    "ActionLayout",
    "Actor",
    "ActorCritic",
    "ActorState",
    "CausalTable",
    "FactoredDistribution",
    "GrowthPolicy",
    "HeadEvaluation",
    "LayoutTensors",
    "MaskedCategorical",
    "Policy",
    "PolicyInputs",
    "PolicyOutput",
    "RecurrentActorCritic",
    "SequencePlan",
    "advance",
    "blueprint_features",
    "discrete_layout",
    "growth_actions",
    "growth_layout",
    "growth_log_probs",
    "multi_discrete_layout",
    "relevance_table",
    "replay",
    "unwrap",
]
