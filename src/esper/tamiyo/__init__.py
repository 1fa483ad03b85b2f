"""Tamiyo: deciding. The action layout, masked factored distributions, policy networks, the actor."""

from esper.tamiyo.actions import GrowthSpace as GrowthSpace
from esper.tamiyo.actions import decode as decode
from esper.tamiyo.actions import illegal_choice as illegal_choice
from esper.tamiyo.actor import Actor as Actor
from esper.tamiyo.distributions import MaskedCategorical as MaskedCategorical
from esper.tamiyo.features import HOST_FEATURES as HOST_FEATURES
from esper.tamiyo.features import SLOT_FEATURES as SLOT_FEATURES
from esper.tamiyo.layout import ActionLayout as ActionLayout
from esper.tamiyo.layout import discrete_layout as discrete_layout
from esper.tamiyo.layout import multi_discrete_layout as multi_discrete_layout
from esper.tamiyo.networks import ActorCritic as ActorCritic
from esper.tamiyo.networks import GrowthPolicy as GrowthPolicy
from esper.tamiyo.networks import RecurrentActorCritic as RecurrentActorCritic
from esper.tamiyo.observation import Observer as Observer
from esper.tamiyo.policy import ActorState as ActorState
from esper.tamiyo.policy import Policy as Policy
from esper.tamiyo.policy import PolicyInputs as PolicyInputs
from esper.tamiyo.policy import PolicyOutput as PolicyOutput
from esper.tamiyo.policy import SequencePlan as SequencePlan
from esper.tamiyo.policy import unwrap as unwrap
