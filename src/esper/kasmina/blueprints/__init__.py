"""Blueprints: what a seed can be. Importing this package registers the built-in ones."""

from esper.kasmina.blueprints import catalogue  # noqa: F401  registers the built-in ones
from esper.kasmina.blueprints.registry import Blueprint, Site, all_blueprints, blueprint, forget

__all__ = ["Blueprint", "Site", "all_blueprints", "blueprint", "forget"]
