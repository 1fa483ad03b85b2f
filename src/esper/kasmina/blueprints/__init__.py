"""Blueprints: what a seed can be. Importing this package registers the built-in ones."""

from esper.kasmina.blueprints import attention, convolutions, mixing, pointwise, widening  # noqa: F401
from esper.kasmina.blueprints.registry import Blueprint, all_blueprints, blueprint, forget
from esper.kasmina.blueprints.site import Site

__all__ = ["Blueprint", "Site", "all_blueprints", "blueprint", "forget"]
