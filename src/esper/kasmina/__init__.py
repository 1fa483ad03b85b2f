"""Kasmina: the growing model. Host, slots, seeds, alpha, care of optimisers, governor, settling."""

from esper.kasmina.axes import WrapError as WrapError
from esper.kasmina.blueprints import Blueprint as Blueprint
from esper.kasmina.blueprints import Site as Site
from esper.kasmina.blueprints import all_blueprints as all_blueprints
from esper.kasmina.blueprints import blueprint as blueprint
from esper.kasmina.blueprints import forget as forget
from esper.kasmina.blueprints.registry import BlueprintError as BlueprintError
from esper.kasmina.coalitions import Coalition as Coalition
from esper.kasmina.coalitions import forward_coalitions as forward_coalitions
from esper.kasmina.coalitions import standard_coalitions as standard_coalitions
from esper.kasmina.export import export_with_keys as export_with_keys
from esper.kasmina.model import GrowingModel as GrowingModel
from esper.kasmina.replicas import ReplicaError as ReplicaError
from esper.kasmina.slot import Slot as Slot
from esper.kasmina.stage_machine import GrowthRules as GrowthRules
from esper.kasmina.stage_machine import IllegalOperation as IllegalOperation
from esper.kasmina.wrapping import wrap as wrap
