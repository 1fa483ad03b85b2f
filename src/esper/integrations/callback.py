"""What the callbacks of all trainers share: the options of `esper.Grower`, the Grower, and when it decides."""

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_map_only

from esper.grower import Grower
from esper.grower.measuring import Mode, Validate
from esper.grower.validating import Loss, Metric
from esper.kasmina import WrapError
from esper.kasmina.governor import GovernorRules
from esper.kasmina.probing import ExampleInput
from esper.kasmina.wrapping import WrapOptions
from esper.leyline import Settle
from esper.tamiyo.controller import Controller
from esper.tamiyo.rules import RulePolicy


class GrowerOptions(WrapOptions, total=False):
    """The options of `esper.Grower` that no trainer knows better."""

    controller: str | os.PathLike[str] | Controller | RulePolicy | None
    validate: Validate | None
    loss: Loss | None
    metric: Metric | None
    mode: Mode | None
    parameter_budget: int | None
    rent: float
    training_samples: int | None
    governor: GovernorRules | None
    keep_best: bool
    generator: torch.Generator | None
    seed_lr_multiplier: float


class HasGrower:
    """A callback that makes a Grower when training begins.

    It measures an epoch where the trainer does, and decides on it when training goes on. A checkpoint that is saved
    in between holds the very network that was evaluated, and whoever resumes it makes the decision.
    """

    _grower: Grower | None = None

    @property
    def grower(self) -> Grower:
        """With `history`, `explain()` and `plot()`; there once training has begun."""
        if self._grower is None:
            raise RuntimeError("nothing has been trained yet: the Grower is made when training begins")
        return self._grower

    def finish(self, *, settle: Settle = "worth", best: bool = False) -> nn.Module:
        """Settle, or with `best` go back to the best epoch, and give back an ordinary module."""
        return self.grower.finish(settle=settle, best=best)

    def _go_on(self) -> None:
        """Training goes on: decide on the epoch before."""
        if self.grower.undecided:
            self.grower.decide()

    def _end(self) -> None:
        """Training is over: record the last epoch, and do nothing that no epoch would show."""
        if self.grower.undecided:
            self.grower.epochs = self.grower.epoch
            self.grower.decide()


def require_growth(saved: object, fields: set[str]) -> None:
    """Raise unless a checkpoint's growth is what a callback of this version saves."""
    if not isinstance(saved, Mapping) or set(saved) != fields:
        found = ", ".join(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise WrapError(
            f"the checkpoint's growth holds {found}; this version of Esper reads {', '.join(sorted(fields))}. Resume "
            "with the version that saved it, or train from the start"
        )


def on_device(example: ExampleInput, device: torch.device) -> ExampleInput:
    """The example with its tensors on the device."""
    moved: ExampleInput = tree_map_only(Tensor, lambda tensor: tensor.to(device), example)
    return moved


def scaler_of(owner: object) -> GradScaler | None:
    """The gradient scaler that a trainer's plugin or optimiser holds, if there is one."""
    scaler = getattr(owner, "scaler", None)
    return scaler if isinstance(scaler, GradScaler) else None
