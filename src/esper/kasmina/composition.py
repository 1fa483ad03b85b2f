"""How a seed joins the host: y = h + alpha delta(h), and the isolation of a seed in TRAINING."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from esper.leyline import Composition, Layout


def compose_delta(composition: Composition, h: Tensor, d: Tensor, gate: Tensor | None) -> Tensor:
    """What the seed would add to h at alpha 1.

    add       d
    multiply  h tanh d           so that y = h (1 + alpha tanh d)
    gate      sigmoid(g) d       g is born with the seed

    The skip h is always live: everything upstream keeps its gradient at alpha 1.
    """
    if composition is Composition.MULTIPLY:
        return h * torch.tanh(d)
    if composition is Composition.GATE:
        assert gate is not None
        return torch.sigmoid(gate) * d
    return d


def per_channel(scale: Tensor, layout: Layout) -> Tensor:
    """(channel,) -> ready to broadcast over an activation."""
    return scale.view({Layout.IMAGE: (-1, 1, 1), Layout.SERIES: (-1, 1)}.get(layout, (-1,)))


def finite_mask(delta: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Where delta is finite all along `axes`, kept as axes of size 1. One reduction: a sum carries NaN and Inf."""
    accumulator = torch.promote_types(delta.dtype, torch.float32)
    total = delta.detach().sum(dim=axes, keepdim=True, dtype=accumulator)
    return total - total == 0.0  # isfinite in two kernels instead of four


def per_sample(values: Tensor, ndim: int) -> Tensor:
    """(batch,) -> (batch, 1, ...) with `ndim` axes."""
    return values.view(-1, *([1] * (ndim - 1)))


def isolate(h: Tensor, delta: Tensor, penalty: Tensor | float) -> Tensor:
    """y = h + (delta - stop(delta)), with the gradient of penalty/2 mean(delta^2) added to delta's.

    The forward and the host's gradient are the bare host's. The seed receives dL/dh, whose objective alone
    is linear and has no optimum; with the penalty, delta fits the negative functional gradient.
    """
    isolated: Tensor = _Isolate.apply(h, delta, penalty)  # type: ignore[no-untyped-call]
    return isolated


def drop_non_finite_gradient(x: Tensor) -> Tensor:
    """x, with NaN and Inf in its gradient replaced by 0.

    It stands between the host and a live seed: whatever breaks inside the seed, the host's gradient stays
    the one that came through the skip.
    """
    guarded: Tensor = _DropNonFiniteGradient.apply(x)  # type: ignore[no-untyped-call]
    return guarded


class _Isolate(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor, delta: Tensor, penalty: Tensor | float) -> Tensor:  # noqa: ARG004
        return h.clone()  # not a view of h: the host may go on in place

    @staticmethod
    def setup_context(
        ctx: FunctionCtx,
        inputs: tuple[Tensor, Tensor, Tensor | float],
        output: Tensor,  # noqa: ARG004
    ) -> None:
        _, delta, penalty = inputs
        if isinstance(penalty, Tensor):
            ctx.save_for_backward(delta, penalty)
        else:
            ctx.save_for_backward(delta)
            ctx.penalty = penalty  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        delta, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        penalty = rest[0] if rest else ctx.penalty  # type: ignore[attr-defined]
        return grad, grad + delta * (penalty / max(delta.numel(), 1)), None


class _DropNonFiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:  # noqa: ARG004
        return torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)
