"""What a training loop says of an epoch, checked where it enters."""

import math
from dataclasses import dataclass
from typing import SupportsFloat

from torch import Tensor

ACCURACIES = ("train_accuracy", "val_accuracy")
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """Unknown is None. A loss may be NaN or Inf: that is for the governor to judge."""

    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        """Losses that are no numbers."""
        values = {"train_loss": self.train_loss, "val_loss": self.val_loss}
        return tuple(name for name, value in values.items() if value is not None and not math.isfinite(value))

    @property
    def validated(self) -> bool:
        return self.val_loss is not None or self.val_accuracy is not None


def read_metrics(given: dict[str, SupportsFloat | None]) -> tuple[EpochMetrics, tuple[str, ...]]:
    """The metrics, and the names of accuracies that were NaN and count as unknown."""
    values: dict[str, float | None] = {name: _number(name, value) for name, value in given.items()}
    lost: list[str] = []
    for name in ACCURACIES:
        value = values.get(name)
        if value is None:
            continue
        if math.isnan(value):
            values[name] = None
            lost.append(name)
        elif not -_ROUNDING <= value <= 1.0 + _ROUNDING:
            percent = f": is it in percent? Pass {value / 100:g}" if 1.0 < value <= 100.0 else ""
            raise ValueError(f"{name} is {value:g}; expected a share from 0 to 1{percent}")
        else:
            values[name] = min(max(value, 0.0), 1.0)
    return EpochMetrics(**values), tuple(lost)


def _number(name: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        value = value.detach()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many numbers is a RuntimeError
        raise TypeError(
            f"{name} is a {type(value).__name__} that is no single number; expected a float, or a tensor of one"
        ) from None
