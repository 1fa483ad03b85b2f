"""Environments: growth episodes in any world, for one host or many, as Gymnasium knows them."""

from esper.simic.env.cases import CaseList as CaseList
from esper.simic.env.cases import CaseSource as CaseSource
from esper.simic.env.episodes import IllegalActionError as IllegalActionError
from esper.simic.env.flat import FlatGrowthEnv as FlatGrowthEnv
from esper.simic.env.flat import FlatVectorEnv as FlatVectorEnv
from esper.simic.env.growth_env import GrowthEnv as GrowthEnv
from esper.simic.env.growth_env import GrowthVectorEnv as GrowthVectorEnv
from esper.simic.env.making import Setting as Setting
from esper.simic.env.making import make_env as make_env
from esper.simic.env.making import make_single_env as make_single_env
from esper.simic.env.making import make_world as make_world
