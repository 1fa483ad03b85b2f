"""Which axis of an activation holds the channels and which the batch: by types, widths and numbers, not by names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import activation
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from esper.leyline import Layout
from esper.leyline.errors import EsperError

FIRST, LAST = 1, -1
"""Where the channels may be: behind the batch, or at the end."""

_CHANNELS_FIRST = (
    *(_ConvNd, _NormBase, nn.GroupNorm),
    *(_MaxPoolNd, _AvgPoolNd, _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd),
)
_CHANNELS_LAST = (nn.Linear, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_NORMS = (nn.LayerNorm, nn.RMSNorm)
_TRANSPARENT = (*_CHANNELS_FIRST, *_CHANNELS_LAST, *_NORMS, nn.Sequential)
"""Modules that do not transpose anything between their parts."""


class WrapError(EsperError, ValueError):
    """The model, a slot name or the example cannot be wrapped as asked."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of a submodule: what it put out, and where that has its channels as far as the submodule shows."""

    module: nn.Module
    shape: torch.Size
    channels: int | None


def looks_transposed(shape: Sequence[int]) -> bool:
    """Whether the channels could be first and last and the shape would be the same."""
    return len(shape) > 2 and shape[FIRST] == shape[LAST]


def put_out_channels(module: nn.Module, output: Tensor) -> int | None:
    """Where a module's output has its channels, as the module alone shows it."""
    axis = taken_channels(module, output)
    if axis is None and isinstance(module, _NORMS) and looks_transposed(output.shape):
        normalised = [axis for axis in (FIRST, LAST) if _is_normalised(module, output, axis)]
        return normalised[0] if len(normalised) == 1 else None
    return axis


def taken_channels(module: nn.Module, tensor: Tensor) -> int | None:
    """Where a tensor that a module takes, or puts out in the shape it took, has its channels."""
    if tensor.ndim < 3:
        return None
    if isinstance(module, _CHANNELS_FIRST):
        return FIRST
    if isinstance(module, _CHANNELS_LAST) or (
        type(module) in _NORMS and len(module.normalized_shape) == 1  # type: ignore[arg-type]
    ):
        return LAST
    return axis_of_widths(own_widths(module), tensor.shape)


def own_widths(module: nn.Module) -> set[int]:
    """How long the vectors are that a module learns itself: biases, scales and the like."""
    if isinstance(module, _NORMS):
        return {module.normalized_shape[0]} if len(module.normalized_shape) == 1 else set()
    return {parameter.shape[0] for parameter in module.parameters(recurse=False) if parameter.ndim == 1}


def axis_of_widths(widths: Iterable[int], shape: torch.Size) -> int | None:
    """The one axis, first or last, that is as long as one of these widths."""
    found = [axis for axis in (FIRST, LAST) if shape[axis] > 1 and shape[axis] in set(widths)]
    return found[0] if len(found) == 1 else None


def _is_normalised(norm: nn.Module, output: Tensor, axis: int) -> bool:
    """Whether an output, with the norm's scale and shift undone, has mean square 1 along an axis (and mean 0)."""
    scale, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    rows = output.movedim(axis, -1).double()
    if isinstance(shift, Tensor):
        rows = rows - shift.double()
    if isinstance(scale, Tensor):
        rows = rows / scale.double()
    centred = not isinstance(norm, nn.LayerNorm) or bool((rows.mean(-1).abs() < 0.01).all())
    return centred and bool(((rows.square().mean(-1) - 1).abs() < 0.05).all())


def keeps_axes(module: nn.Module, shape: Sequence[int]) -> bool:
    """Whether what comes out of a module in the shape that went in has its axes where they were."""
    if not looks_transposed(shape):
        return True
    elementwise = type(module).__module__ == activation.__name__ and not isinstance(
        module, nn.MultiheadAttention
    )
    return elementwise or isinstance(module, _DropoutNd | nn.Identity)


def channels_inside(slot: nn.Module, shape: torch.Size, parts: Sequence[Part]) -> int | None:
    """What the parts of a submodule show of its output: the last one that put out the same shape and shows it."""
    showing = [part for part in parts if part.channels is not None and len(part.shape) == len(shape)]
    # A square looks the same transposed, and a convolution may stand between two transpositions.
    opaque = looks_transposed(shape) and not isinstance(slot, _TRANSPARENT)
    if opaque and any(part.channels == FIRST for part in showing):
        return None
    return next((part.channels for part in reversed(showing) if part.shape == shape), None)


def growing_axes(shapes: Sequence[torch.Size], larger: Sequence[torch.Size]) -> frozenset[int] | None:
    """The axes that are longer with a sample more; None if the number of axes or of calls changes too."""
    if [len(shape) for shape in shapes] != [len(shape) for shape in larger]:
        return None
    return frozenset(
        axis
        for shape, other in zip(shapes, larger, strict=True)
        for axis in range(len(shape))
        if shape[axis] != other[axis]
    )


def in_order(output: Tensor, reversed_output: Tensor, axis: int, samples: int) -> bool:
    """Whether reversing the samples reverses the entries of an axis, several entries a sample together."""
    if output.shape != reversed_output.shape or output.shape[axis] % samples:
        return False
    ours, theirs = (t.movedim(axis, 0).reshape(samples, -1).float() for t in (output, reversed_output))
    tolerance = 1e-3 * float(ours.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if ours.numel() else 0.0
    alike = {"rtol": 0.0, "atol": tolerance, "equal_nan": True}
    if output.shape[axis] != samples and torch.allclose(ours.flip(0), ours, **alike):  # type: ignore[arg-type]
        return False  # all samples look alike: several entries a sample may lie in any order
    return torch.allclose(ours.flip(0), theirs, **alike)  # type: ignore[arg-type]


_BY_AXES = {
    2: (Layout.FLAT, Layout.ROWS),
    3: (Layout.SERIES, Layout.TOKENS, Layout.TIME_MAJOR, Layout.ROWS),
    4: (Layout.IMAGE, Layout.IMAGE_LAST, Layout.ROWS),
    5: (Layout.VOLUME, Layout.VOLUME_LAST, Layout.ROWS),
}


def read_layout(
    name: str,
    shape: torch.Size,
    asked: Layout | None,
    *,
    channels: int | None,
    batch: frozenset[int],
    samples_in_order: bool,
) -> Layout:
    """What the axes of a slot's output mean: as asked, else by where the channels and the samples are.

    channels  where they are; None if nothing shows it
    batch     the axes that grow with the samples
    """
    if len(shape) < 2:
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(shape)}; a slot needs 2 axes or more, "
            "the first of them the samples': has example_input a batch axis?"
        )
    fitting = _BY_AXES.get(len(shape), (Layout.ROWS,))
    if asked is not None and asked not in fitting:
        raise WrapError(
            f"layout {str(asked)!r} does not fit slot {name!r} with output shape {tuple(shape)}; "
            f"fitting: {', '.join(fitting)}"
        )
    if len(shape) == 2:
        layout = asked or (Layout.FLAT if batch == {0} and samples_in_order else Layout.ROWS)
    else:
        layout = asked or _layout_of(name, shape, channels, batch)
    if layout.channel_axis % len(shape) in batch:
        raise WrapError(
            f"slot {name!r} puts out {tuple(shape)}, and the axis of its channels ({layout}) grows with the batch: "
            "seeds would mix samples. Name an enclosing block, or pass layout="
        )
    if batch and layout is not Layout.ROWS and layout.batch_axis not in batch:
        raise WrapError(
            f"slot {name!r} puts out {tuple(shape)} and its axis {layout.batch_axis} is not the batch, as layout "
            f"{str(layout)!r} has it. Seeds would mix samples: name an enclosing block, or pass layout='rows' if the "
            "channels are last"
        )
    return layout


def _only_axis(shape: torch.Size) -> int | None:
    """Of the two axes behind the batch, the one with several entries where the other has a single one."""
    several = [axis for axis in (FIRST, LAST) if shape[axis] > 1]
    return several[0] if len(several) == 1 else None


def _layout_of(name: str, shape: torch.Size, channels: int | None, batch: frozenset[int]) -> Layout:
    """The layout of three axes and more."""
    if channels is None and len(shape) == 3 and batch == {0}:
        channels = _only_axis(shape)
    if channels is None and len(shape) == 3:
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(shape)} and nothing shows which axis holds the channels: pass "
            f"layout={{{name!r}: 'series'}} (batch, channel, position) or 'tokens' (batch, position, channel)"
        )
    if channels == LAST:
        if batch == {0} and len(shape) <= 5:
            return {3: Layout.TOKENS, 4: Layout.IMAGE_LAST, 5: Layout.VOLUME_LAST}[len(shape)]
        return Layout.TIME_MAJOR if batch == {1} and len(shape) == 3 else Layout.ROWS
    if len(shape) > 5:
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(shape)}: more than 5 axes are served where the channels are last, "
            f"with layout={{{name!r}: 'rows'}}"
        )
    return {3: Layout.SERIES, 4: Layout.IMAGE, 5: Layout.VOLUME}[len(shape)]
