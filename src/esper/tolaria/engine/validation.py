"""Validation under coalitions of seeds, one forward for all of them where that is fastest."""

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.kasmina.coalitions import CoalitionPlan
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.objective import explained, loss_and_hits
from esper.tolaria.engine.step import autocast

ROWS_AT_ONCE = 16384
"""Rows (samples x coalitions) of one forward on CUDA."""
ELEMENTS_AT_ONCE = 2**18
"""Elements of the samples in one forward on the CPU: a long text or many pictures would fill its memory at once."""


def validate_host(host: TrainedHost, plan: CoalitionPlan, alphas: Tensor | None, out: Tensor) -> None:
    """Mean loss and score under each coalition into `out` (coalition, half, 2), the observed half first.

    Both halves come from one pass. Nothing of the model is changed.

    `alphas` (coalition, weighed seed) is on the device where coalitions are stacked into one forward, and None on the
    CPU, where each has a pass of its own: a seed that is off costs nothing there.
    """
    validation, observed = host.validation, host.observed_samples
    samples = len(validation)
    host.model.eval()
    out.zero_()
    size = validation.inputs[0].numel()
    rows = max(ELEMENTS_AT_ONCE // size if alphas is None else ROWS_AT_ONCE // len(plan.coalitions), 1)
    with torch.inference_mode(), autocast(host):
        for start in range(0, samples, rows):
            inputs = validation.inputs[start : start + rows]
            targets = validation.targets[start : start + rows]
            first = min(max(observed - start, 0), len(inputs))  # samples of the observed half
            if alphas is None:
                for row, coalition in zip(out, plan.alphas, strict=True):
                    row += _score(host, plan, coalition, inputs, targets, first, copies=1)[0]
            else:
                columns = alphas.repeat_interleave(len(inputs), dim=0).unbind(1)
                out += _score(host, plan, columns, inputs, targets, first, copies=len(plan.coalitions))
    out[:, 0] /= observed
    out[:, 1] /= samples - observed
    if host.data.source.regression:
        out[..., 1] = explained(out[..., 0], host.validation_variance)
    host.model.train()


def _score(
    host: TrainedHost,
    plan: CoalitionPlan,
    alphas: Sequence[Tensor | float],
    inputs: Tensor,
    targets: Tensor,
    first: int,
    *,
    copies: int,
) -> Tensor:
    """Loss and right answers summed over the `first` samples and over the others, (copy, half, 2)."""
    override = dict(zip(plan.weighed, alphas, strict=True))
    stacked = inputs if copies == 1 else inputs.repeat(copies, *[1] * (inputs.ndim - 1))
    with host.model.override_alpha(override):
        outputs = host.model(stacked)
    assert isinstance(outputs, Tensor)
    outputs = outputs.view(
        copies, len(inputs), -1, outputs.shape[-1]
    ).float()  # (copy, sample, position, class)
    each = loss_and_hits(outputs, targets)  # (copy, sample, 2)
    return torch.stack((each[:, :first].sum(1), each[:, first:].sum(1)), dim=1)
