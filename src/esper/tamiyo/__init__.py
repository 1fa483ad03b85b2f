"""Tamiyo: deciding. The action layout, masked factored distributions, policy networks, the actor."""

from esper.tamiyo.actions import GrowthSpace, decode, illegal_choice
from esper.tamiyo.actor import Actor
from esper.tamiyo.actor_critic import ActorCritic, RecurrentActorCritic
from esper.tamiyo.distributions import MaskedCategorical
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES
from esper.tamiyo.growth_policy import GrowthPolicy
from esper.tamiyo.layout import ActionLayout, discrete_layout, multi_discrete_layout
from esper.tamiyo.observation import Observer
from esper.tamiyo.policy import ActorState, Policy, PolicyInputs, PolicyOutput, unwrap
from esper.tamiyo.sequences import SequencePlan

__all__ = [
    "HOST_FEATURES",
    "SLOT_FEATURES",
    "ActionLayout",
    "Actor",
    "ActorCritic",
    "ActorState",
    "GrowthPolicy",
    "GrowthSpace",
    "MaskedCategorical",
    "Observer",
    "Policy",
    "PolicyInputs",
    "PolicyOutput",
    "RecurrentActorCritic",
    "SequencePlan",
    "decode",
    "discrete_layout",
    "illegal_choice",
    "multi_discrete_layout",
    "unwrap",
]
