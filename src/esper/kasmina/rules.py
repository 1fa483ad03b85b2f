"""The waiting times and limits of a seed's life."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRules:
    """When an operation becomes legal. Epochs are counted in calls of `GrowingModel.tick()`."""

    max_live_seeds: int = 2
    """Seeds that may be TRAINING, BLENDING or HOLDING at once; fossilised ones do not count."""
    min_training_epochs: int = 1
    """Epochs a seed trains in isolation before ADVANCE."""
    min_prune_age: int = 3
    """Epochs of life before PRUNE."""
    min_holding_epochs: int = 1
    """Epochs at the alpha target before FOSSILIZE."""
    embargo_epochs: int = 2
    """Epochs a slot stays empty after a seed was removed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "max_live_seeds" else 0
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"GrowthRules.{field.name} must be an integer >= {least}, not {value!r}")
