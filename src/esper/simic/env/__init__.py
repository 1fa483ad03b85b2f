"""Environments: growth episodes in any world, for one host or many, as Gymnasium knows them."""

from esper.simic.env.cases import CaseList, CaseSource
from esper.simic.env.episodes import IllegalActionError
from esper.simic.env.flat import FlatGrowthEnv, FlatVectorEnv
from esper.simic.env.making import Setting, make_env, make_single_env, make_world
from esper.simic.env.single import GrowthEnv
from esper.simic.env.vector import GrowthVectorEnv

__all__ = [
    "CaseList",
    "CaseSource",
    "FlatGrowthEnv",
    "FlatVectorEnv",
    "GrowthEnv",
    "GrowthVectorEnv",
    "IllegalActionError",
    "Setting",
    "make_env",
    "make_single_env",
    "make_world",
]
