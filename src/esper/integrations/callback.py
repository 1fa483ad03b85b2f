"""What the callbacks of all trainers share: the options they pass on to `esper.Grower`, and the Grower itself."""

import os

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_map_only

from esper.grower import Grower
from esper.grower.measuring import Mode, Validate
from esper.grower.validating import Loss, Metric
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
    """A callback that makes a Grower when training begins."""

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


def on_device(example: ExampleInput, device: torch.device) -> ExampleInput:
    """The example with its tensors on the device."""
    moved: ExampleInput = tree_map_only(Tensor, lambda tensor: tensor.to(device), example)
    return moved


def scaler_of(owner: object) -> GradScaler | None:
    """The gradient scaler that a trainer's plugin or optimiser holds, if there is one."""
    scaler = getattr(owner, "scaler", None)
    return scaler if isinstance(scaler, GradScaler) else None
