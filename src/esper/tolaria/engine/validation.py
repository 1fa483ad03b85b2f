"""Validation under coalitions of seeds: the model as it is, each seed off, none, each TRAINING seed on.

A coalition is a bitmask: bit i is set when the live seed of slot i is on. Fossilised seeds are part of the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline import Stage
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.step import autocast

ROWS_AT_ONCE = 16384
"""Rows (samples x coalitions) of one forward on CUDA."""
ELEMENTS_AT_ONCE = 2**18
"""Elements of the samples in one forward on the CPU: a long text or many pictures would fill its memory at once."""


@dataclass(frozen=True, slots=True)
class CoalitionPlan:
    """The coalitions of one host, no coalition twice, and where to read each seed's worth."""

    masks: tuple[int, ...]
    """First the model as it is."""
    alphas: tuple[tuple[float, ...], ...]
    """(coalition, live seed)"""
    live: tuple[int, ...]
    """Slot index of each live seed."""
    toggled: tuple[int, ...]
    """For each live seed, the coalition in which it alone is switched the other way."""
    training: tuple[bool, ...]
    """For each live seed, whether it is in TRAINING: switched on there, off everywhere else."""


def plan_coalitions(host: TrainedHost) -> CoalitionPlan:
    slots = host.slots
    live = tuple(index for index, slot in enumerate(slots) if slot.stage.is_live)
    training = tuple(slots[index].stage is Stage.TRAINING for index in live)
    as_it_is = sum(1 << index for index, isolated in zip(live, training, strict=True) if not isolated)
    toggles = [as_it_is ^ (1 << index) for index in live]
    masks = tuple(dict.fromkeys((as_it_is, *toggles, 0)))
    on = [
        (slots[index].life.alpha_target or 0.0) if isolated else slots[index].alpha
        for index, isolated in zip(live, training, strict=True)
    ]
    return CoalitionPlan(
        masks=masks,
        alphas=tuple(
            tuple(alpha if mask >> index & 1 else 0.0 for index, alpha in zip(live, on, strict=True))
            for mask in masks
        ),
        live=live,
        toggled=tuple(masks.index(toggle) for toggle in toggles),
        training=training,
    )


def validate_host(host: TrainedHost, plan: CoalitionPlan, alphas: Tensor | None, out: Tensor) -> None:
    """Mean loss and accuracy under each coalition into `out` (coalition, 2). Nothing of the model is changed.

    `alphas` (coalition, live seed) is on the device where coalitions are stacked into one forward, and None on the
    CPU, where each has a pass of its own: a seed that is off costs nothing there.
    """
    validation = host.validation
    samples = len(validation)
    host.model.eval()
    out.zero_()
    size = validation.inputs[0].numel()
    rows = max(ELEMENTS_AT_ONCE // size if alphas is None else ROWS_AT_ONCE // len(plan.masks), 1)
    with torch.inference_mode(), autocast(host):
        for start in range(0, samples, rows):
            inputs = validation.inputs[start : start + rows]
            targets = validation.targets[start : start + rows]
            if alphas is None:
                for row, coalition in zip(out, plan.alphas, strict=True):
                    row += _score(host, plan, coalition, inputs, targets, copies=1)[0] / samples
            else:
                columns = alphas.repeat_interleave(len(inputs), dim=0).unbind(1)
                out += _score(host, plan, columns, inputs, targets, copies=len(plan.masks)) / samples
    host.model.train()


def _score(
    host: TrainedHost,
    plan: CoalitionPlan,
    alphas: Sequence[Tensor | float],
    inputs: Tensor,
    targets: Tensor,
    *,
    copies: int,
) -> Tensor:
    """Summed loss and correct answers of each copy of the batch, (copy, 2)."""
    names = host.model.slot_config.slot_ids
    override = {names[index]: alpha for index, alpha in zip(plan.live, alphas, strict=True)}
    stacked = inputs if copies == 1 else inputs.repeat(copies, *[1] * (inputs.ndim - 1))
    with host.model.override_alpha(override):
        logits = host.model(stacked)
    assert isinstance(logits, Tensor)
    logits = logits.view(copies, len(inputs), -1, logits.shape[-1]).float()  # (copy, sample, position, class)
    wanted = targets.view(1, len(inputs), -1).expand(copies, -1, -1)
    losses = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
    correct = (logits.argmax(-1) == wanted).float()
    return torch.stack((losses.mean(2).sum(1), correct.mean(2).sum(1)), dim=1)
