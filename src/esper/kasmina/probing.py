"""One forward of the example through the bare host, to see what passes through each slot."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from esper.kasmina.errors import WrapError
from esper.kasmina.outputs import main_tensor
from esper.leyline import Layout

ExampleInput = Tensor | tuple[object, ...] | list[object] | Mapping[str, object]

_SERIES_MODULES = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.AvgPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)
_TOKEN_MODULES = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_CHANNELS_LAST_MODULES = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass(slots=True)
class Sighting:
    """What a submodule put out in the example forward, over all its calls."""

    order: int
    shapes: list[torch.Size] = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    plain_arguments: bool = True
    """Called with tensors, numbers and the like alone: nothing that a second call could change."""
    telling: nn.Module | None = None
    """The last submodule inside whose type tells what the axes of this very output mean."""
    time_major: bool = False
    unusable: str | None = None


def call_with(model: nn.Module, example: ExampleInput) -> object:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple | list):
        return model(*example)
    return model(example)


def batch_size(example: ExampleInput) -> int:
    tensor = next((leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.ndim > 0), None)
    if tensor is None:
        raise WrapError(f"example_input holds no tensor with a batch axis: {type(example).__name__}")
    return tensor.shape[0]


def probe(model: nn.Module, slots: Mapping[str, nn.Module], example: ExampleInput) -> dict[str, Sighting]:
    """Run the example once, in eval mode and leaving no trace; what fired, by slot name, in firing order."""
    watch = _Watch(slots)
    with (
        _untouched(model),
        watch.hooks(model),
        torch.no_grad(),
    ):  # no inference_mode: caches may meet autograd
        try:
            call_with(model, example)
        except Exception as error:
            error.add_note("while running example_input through the host to find out about its slots")
            raise
    return dict(sorted(watch.sightings.items(), key=lambda item: item[1].order))


class _Watch:
    """Temporary hooks that fill the sightings."""

    def __init__(self, slots: Mapping[str, nn.Module]) -> None:
        self.names = {id(module): name for name, module in slots.items()}
        self.sightings: dict[str, Sighting] = {}
        self.calls = 0
        self.leaves: list[tuple[nn.Module, torch.Size]] = []
        self.began: list[int] = []

    @contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_hook(self._saw_part))
            if id(module) in self.names:
                handles.append(module.register_forward_pre_hook(self._entered))
                handles.append(module.register_forward_hook(self._saw_slot, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        del module, args
        self.began.append(len(self.leaves))

    def _saw_part(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        del args
        tensor = main_tensor(output)
        if tensor is not None:
            self.leaves.append((module, tensor.shape))

    def _saw_slot(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        inside = self.leaves[self.began.pop() :]
        seen = self.sightings.setdefault(self.names[id(module)], Sighting(order=self.calls))
        self.calls += 1
        tensor = main_tensor(output)
        if tensor is None or not tensor.is_floating_point():
            what = type(output).__name__ if tensor is None else f"a {tensor.dtype} tensor"
            seen.unusable = f"it returns {what}; a slot needs a floating-point tensor, first in any tuple"
            return
        seen.shapes.append(tensor.shape)
        seen.dtype, seen.device = tensor.dtype, tensor.device
        seen.plain_arguments &= all(
            leaf is None or isinstance(leaf, Tensor | bool | int | float | str)
            for leaf in tree_leaves((args, kwargs))
        )
        seen.telling = next(
            (
                part
                for part, shape in reversed(inside)
                if shape == tensor.shape and isinstance(part, _SERIES_MODULES + _TOKEN_MODULES)
            ),
            seen.telling,
        )
        seen.time_major |= any(getattr(part, "batch_first", True) is False for part, _ in inside)


def read_layout(name: str, seen: Sighting, asked: Layout | None) -> Layout:
    """What the axes of a slot's output mean: as asked, else by the number of axes and the module's type."""
    axes = len(seen.shapes[0])
    fitting = {2: (Layout.FLAT,), 3: (Layout.SERIES, Layout.TOKENS), 4: (Layout.IMAGE,)}.get(axes, ())
    if not fitting:
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(seen.shapes[0])}; a slot needs 2 axes (flat), 3 (series or "
            "tokens) or 4 (image)"
        )
    if asked is not None:
        if asked not in fitting:
            raise WrapError(
                f"layout {str(asked)!r} does not fit slot {name!r} with output shape {tuple(seen.shapes[0])}; "
                f"fitting: {', '.join(fitting)}"
            )
        layout = asked
    elif axes == 3:
        if seen.telling is None:
            raise WrapError(
                f"slot {name!r} puts out shape {tuple(seen.shapes[0])} and its type does not tell which axis holds "
                f"the channels: pass layout={{{name!r}: 'series'}} (batch, channel, position) or 'tokens' (batch, "
                "position, channel)"
            )
        layout = Layout.SERIES if isinstance(seen.telling, _SERIES_MODULES) else Layout.TOKENS
    else:
        layout = fitting[0]
    if layout is Layout.TOKENS and seen.time_major:
        raise WrapError(
            f"slot {name!r} holds a module with batch_first=False, so its first axis is time: make it "
            "batch_first=True, or name a slot where the batch comes first"
        )
    if layout is Layout.IMAGE and isinstance(seen.telling, _CHANNELS_LAST_MODULES):
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(seen.shapes[0])} with the channels last (a "
            f"{type(seen.telling).__name__}): name an enclosing block that puts out (batch, channel, height, width)"
        )
    return layout


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; training flags and random states as before afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            yield
        finally:
            for module, training in flags:
                module.training = training
