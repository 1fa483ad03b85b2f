"""Kasmina: the growing model. Host, slots, seeds, alpha, care of optimisers, governor, settling."""

from esper.kasmina.blueprints import Blueprint, Site, all_blueprints, blueprint, forget
from esper.kasmina.blueprints.registry import BlueprintError
from esper.kasmina.coalitions import Coalition, forward_coalitions, standard_coalitions
from esper.kasmina.export import export_with_keys
from esper.kasmina.model import GrowingModel
from esper.kasmina.probing import WrapError
from esper.kasmina.slot import Slot
from esper.kasmina.stage_machine import GrowthRules, IllegalOperation
from esper.kasmina.wrapping import wrap

__all__ = [
    "Blueprint",
    "BlueprintError",
    "Coalition",
    "GrowingModel",
    "GrowthRules",
    "IllegalOperation",
    "Site",
    "Slot",
    "WrapError",
    "all_blueprints",
    "blueprint",
    "export_with_keys",
    "forget",
    "forward_coalitions",
    "standard_coalitions",
    "wrap",
]
