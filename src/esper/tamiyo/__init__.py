"""Tamiyo: deciding. The action layout, masked factored distributions, policy networks, the actor."""

from esper.tamiyo.actions import GrowthSpace, decode, encode, illegal_choice
from esper.tamiyo.actor import Actor
from esper.tamiyo.actor_critic import ActorCritic, RecurrentActorCritic
from esper.tamiyo.distributions import FactoredDistribution, HeadEvaluation, LayoutTensors, MaskedCategorical
from esper.tamiyo.features import (
    BLUEPRINT_FEATURES,
    HOST_FEATURES,
    SLOT_FEATURES,
    blueprint_features,
    flatten_observation,
    observation_size,
)
from esper.tamiyo.growth_policy import GrowthPolicy
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
from esper.tamiyo.observation import Observer
from esper.tamiyo.policy import NO_ACTION, ActorState, Policy, PolicyInputs, PolicyOutput, unwrap
from esper.tamiyo.sequences import SequencePlan, advance, replay
from esper.tamiyo.tracker import SignalTracker

__all__ = [
    "BLUEPRINT_FEATURES",
    "HOST_FEATURES",
    "NO_ACTION",
    "SLOT_FEATURES",
    "ActionLayout",
    "Actor",
    "ActorCritic",
    "ActorState",
    "CausalTable",
    "FactoredDistribution",
    "GrowthPolicy",
    "GrowthSpace",
    "HeadEvaluation",
    "LayoutTensors",
    "MaskedCategorical",
    "Observer",
    "Policy",
    "PolicyInputs",
    "PolicyOutput",
    "RecurrentActorCritic",
    "SequencePlan",
    "SignalTracker",
    "advance",
    "blueprint_features",
    "decode",
    "discrete_layout",
    "encode",
    "flatten_observation",
    "growth_actions",
    "growth_layout",
    "growth_log_probs",
    "illegal_choice",
    "multi_discrete_layout",
    "observation_size",
    "relevance_table",
    "replay",
    "unwrap",
]
