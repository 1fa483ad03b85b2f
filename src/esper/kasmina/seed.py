"""A seed: a blueprint's body behind a zero-initialised scale, how it joins the host and how it is born."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints import Blueprint, Site
from esper.kasmina.blueprints.catalogue import pointwise
from esper.kasmina.blueprints.registry import BlueprintError, main_tensor
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
    behind = 0 if layout.channel_axis == -1 else layout.position_count
    return scale.view(-1, *([1] * behind))


def finite_mask(delta: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Where delta is finite all along `axes`, kept as axes of size 1. One reduction: a sum carries NaN and Inf."""
    accumulator = torch.promote_types(delta.dtype, torch.float32)
    total = delta.detach().sum(dim=axes, keepdim=True, dtype=accumulator)
    return total - total == 0.0  # isfinite in two kernels instead of four


def can_be_read(tensor: Tensor) -> bool:
    """Whether its values can be asked for without a wait: on the CPU, in a program that runs as it is written.

    Where a program is recorded, or stands for many at once, a question about values has no answer or a wrong one.
    """
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None  # torch.jit.trace
        and not torch._C._len_torch_dispatch_stack()  # make_fx, which records through a mode
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def all_finite(tensor: Tensor) -> bool:
    """One reduction, which NaN and Inf pass through; False also of finite entries whose sum is not."""
    return math.isfinite(wide_sum(tensor.detach()))


def wide_sum(tensor: Tensor) -> Tensor:
    """The sum of all entries; a few large ones in float16 would not be finite together, so these are summed wider."""
    return tensor.sum(dtype=torch.float32) if tensor.dtype is torch.float16 else tensor.sum()


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
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    guarded: Tensor = _DropNonFiniteGradient.apply(x)  # type: ignore[no-untyped-call]
    return guarded


class _Isolate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, delta: Tensor, penalty: Tensor | float) -> Tensor:
        if isinstance(penalty, Tensor):
            ctx.save_for_backward(delta, penalty)
        else:
            ctx.save_for_backward(delta)
            ctx.penalty = penalty  # type: ignore[attr-defined]
        return h.clone()  # not a view of h: the host may go on in place

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        delta, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        penalty = rest[0] if rest else ctx.penalty  # type: ignore[attr-defined]
        return grad, grad + delta * (penalty / max(delta.numel(), 1)), None


class _DropNonFiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:  # noqa: ARG004
        if can_be_read(grad) and all_finite(grad):
            return grad
        return torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)


class Seed(nn.Module):
    """delta(h): what a seed would add to the host's activation at alpha 1.

    The scale is the only zero in the chain, so a newborn seed changes nothing and yet learns from its first
    step: the scale gets a gradient at once, everything behind it as soon as the scale has moved.
    """

    alpha: Tensor
    non_finite: Tensor
    """As in `Slot.non_finite`. No buffer: there is nothing in it to average, to send or to save."""

    part_of_host = False
    """Whether it is a fossil: nothing is kept out of its output or its gradients, so what breaks there shows."""

    def __init__(self, blueprint: Blueprint, site: Site, composition: Composition) -> None:
        super().__init__()
        self.blueprint_name = blueprint.name
        self.composition = composition
        self.reads_input = blueprint.reads_input
        self.body = blueprint.construct(site)
        self.scale = nn.Parameter(torch.zeros(site.channels))
        self.gate = pointwise(site, site.channels, 1) if composition is Composition.GATE else None
        # A tensor, so that compiled and captured programs follow it; the slot keeps the same number as a float.
        self.register_buffer("alpha", torch.zeros(()))
        self.non_finite = torch.zeros(2, dtype=torch.bool)
        self._guards_gradients = False
        self._layout, self._guard_axes, self._form = site.layout, site.guard_axes, site.form
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self, h: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[Tensor, Tensor | None]:
        """delta in h's dtype, and where it is finite, sample by sample.

        None in place of the latter says that there is nothing to keep out: all of it is finite, where that can be
        asked without a wait, or the seed is a fossil, whose output is never looked at.
        A body that reads the submodule's input is given `args` and `kwargs`.
        """
        dtype = h.dtype
        if not torch.is_autocast_enabled(h.device.type):
            h = h.to(self.scale.dtype)
        produced: object = self.body(*args, **kwargs) if self.reads_input else self.body(h)
        d = self._form.pick(produced) if self.reads_input else main_tensor(produced)
        if d is None or d.shape != h.shape:
            found = "no tensor" if d is None else f"shape {tuple(d.shape)}"
            raise BlueprintError(
                f"blueprint {self.blueprint_name!r} gave {found} for an activation of shape {tuple(h.shape)}; "
                "its module must keep the shape"
            )
        d = d * per_channel(self.scale, self._layout)
        gate: Tensor | None = None if self.gate is None else self.gate(h)
        delta = compose_delta(self.composition, h, d, gate).to(dtype)
        if self.part_of_host:
            return delta, None
        # tanh hides an infinite d, so there it is d that must be finite
        watched = d if self.composition is Composition.MULTIPLY else delta
        if can_be_read(watched) and all_finite(watched):
            return delta, None
        return delta, finite_mask(watched, self._guard_axes)

    def note(self, finite: Tensor | None) -> None:
        """Note an output that was not finite: for the next step if it is learned from, else for the report."""
        if finite is None:
            return
        flags = self._flags_on(finite.device)
        flags[0 if torch.is_grad_enabled() else 1].logical_or_(~finite.all())

    def guard_gradients(self) -> None:
        """Keep NaN out of the seed's gradients, before clipping or a scaler can see them."""
        self._guards_gradients = True
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._clean_gradient)

    def _clean_gradient(self, gradient: Tensor) -> Tensor:
        """Zero if this or any output since the last step was not finite; the flag stays on the device."""
        if self.part_of_host:
            return gradient
        broken = self._flags_on(gradient.device)[0]
        if can_be_read(gradient) and not broken and all_finite(gradient):
            return gradient
        broken.logical_or_(~torch.isfinite(wide_sum(gradient)))
        return gradient.masked_fill(broken, 0.0)

    def _flags_on(self, device: torch.device) -> Tensor:
        """The flags, which follow the seed to another device."""
        if self.non_finite.device != device:
            self.non_finite = self.non_finite.to(device)
        return self.non_finite

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._guards_gradients:
            self.guard_gradients()  # a copied parameter has no hooks

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: dict[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Weights of a seed at another alpha would compute something else here than where they were saved."""
        theirs = state_dict.get(f"{prefix}alpha")
        if theirs is not None and float(theirs) != float(self.alpha):
            error_msgs.append(
                f"{prefix.rstrip('.')} is at alpha {float(theirs):.3g} in the state and at {float(self.alpha):.3g} "
                "in the model: load_state_dict of the Grower, or load of the growing model, restores seeds with "
                "their stage"
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def train(self, mode: bool = True) -> "Seed":
        """A seed is the same in training and evaluation: a copied submodule may not draw dropout masks.

        Recurrent layers alone stay in training mode, without which cuDNN does not give gradients.
        """
        super().train(False)
        for part in self.modules():
            if isinstance(part, nn.RNNBase):
                part.train(mode)
        return self


@contextmanager
def birth_randomness(growth_seed: int, slot: str, birth: int) -> Iterator[None]:
    """Randomness that belongs to one birth; torch's own generator is left as it was.

    Layers draw their weights from torch's CPU generator, so seeds are built on the CPU and it is put back.
    """
    digest = hashlib.blake2b(f"{growth_seed}/{slot}/{birth}".encode(), digest_size=8).digest()
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(int.from_bytes(digest, "little") >> 1)
    try:
        # A controller may be acting in inference mode; a parameter born there could never be trained.
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_rng_state(before)


def bear_seed(
    blueprint: Blueprint,
    site: Site,
    composition: Composition,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Seed:
    """Build, check and place a seed. Call it inside `birth_randomness`."""
    seed = Seed(blueprint, site, composition)
    for part in seed.modules():
        if isinstance(part, _BatchNorm | _DropoutNd):
            raise BlueprintError(
                f"blueprint {blueprint.name!r} contains {type(part).__name__}: a seed must not move the host's "
                "randomness or mix samples; use a norm over channels and no dropout"
            )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # a seed's gradients are summed, filled and measured as dense ones
    example = None if blueprint.reads_input else site.example(batch=2)
    if example is not None:
        _try_out(seed, example)
    return seed.train(False).to(device=device, dtype=dtype)


@torch.no_grad()  # not inference_mode: what the seed caches in a forward may meet autograd later
def _try_out(seed: Seed, h: Tensor) -> None:
    """One forward, which checks the shape and that the host's activation is left alone."""
    version = h._version
    seed(h, (), {})
    if h._version != version:
        raise BlueprintError(
            f"blueprint {seed.blueprint_name!r} changes its input in place, which is the host's activation: "
            "use inplace=False"
        )
