"""What a frozen prefix of a host computes, remembered by sample: it is then computed once and not every epoch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel
from esper.kasmina.tree import bare_modules, bare_parameters, names_a_seed
from esper.leyline.errors import EsperError


class FeatureCacheError(EsperError, ValueError):
    """What a submodule computes cannot be remembered by sample."""


class FeatureCache:
    """The outputs of one slot's submodule for the samples of a data set, each as it was computed first.

        features = FeatureCache(model, "encoder.1", samples=len(labels))
        for rows in torch.randperm(len(labels)).split(64):
            with features.of(rows):
                loss = cross_entropy(model(images[rows]), labels[rows])

    Inside `of` the submodule is not computed for samples that are remembered, and neither is what stands before it in
    its `Sequential`. The seed of the slot itself, and all behind it, work and learn as always. While a seed grows
    before the slot, everything is computed; when a frozen tensor of the host has changed, what is remembered is
    forgotten.

    It is right where a sample's features depend on that sample alone and are the same each time it is seen: no random
    augmentation, and the submodule in evaluation mode. The caller vouches for the first, the second is checked.
    """

    def __init__(self, model: GrowingModel, slot: str, samples: int) -> None:
        model.slot_config.index(slot)  # an unknown name is refused with the names
        if type(samples) is not int or samples < 1:
            raise FeatureCacheError(
                f"samples is {samples!r}; expected how many there are, a whole number >= 1"
            )
        self._model, self._slot = model, slot
        names = list(model.slots)
        self._earlier = [model.slots[name] for name in names[: names.index(slot)]]
        self._module = model.host.get_submodule(slot)
        self._skipped = _before(model.host, slot)
        self._known = torch.zeros(samples, dtype=torch.bool)
        self._features: Tensor | None = None
        self._mark: tuple[object, ...] = ()
        self.computed = self.remembered = 0
        """Samples that were computed, and that were not."""
        learning = [
            name
            for part in self._parts
            for name, parameter in part.named_parameters()
            if parameter.requires_grad and not names_a_seed(name)
        ]
        if learning:
            raise FeatureCacheError(
                f"{learning[0]} in the prefix up to {slot!r} is trained: call requires_grad_(False) on it first"
            )

    @property
    def _parts(self) -> tuple[nn.Module, ...]:
        return (*self._skipped, self._module)

    @contextmanager
    def of(self, rows: Tensor) -> Iterator[None]:
        """One forward inside, of the samples with these indices in this order (batch,)."""
        rows = self._require_rows(rows)
        self._require_evaluation()
        mark = self._tensors()
        if mark != self._mark:
            self._mark = mark
            self._known.zero_()
        steady = all(slot.seed is None for slot in self._earlier)
        known = steady and self._features is not None and bool(self._known[rows].all())
        with ExitStack() as undo:
            if known:
                for part in self._skipped:
                    undo.enter_context(_replaced(part, lambda _, given, *__, **___: given))
                undo.enter_context(
                    _replaced(self._module, lambda _, given, *__, **___: self._look_up(rows, given))
                )
            elif steady:
                undo.enter_context(
                    _replaced(self._module, lambda forward, *a, **k: self._note(rows, forward(*a, **k)))
                )
            yield
            if known:
                self.remembered += len(rows)
            else:
                self.computed += len(rows)

    def _look_up(self, rows: Tensor, given: Tensor) -> Tensor:
        assert self._features is not None
        if given.shape[:1] != rows.shape:
            raise FeatureCacheError(f"{len(given)} samples went in where of() was given {len(rows)} rows")
        return self._features[rows.to(self._features.device)]

    def _note(self, rows: Tensor, output: object) -> object:
        """Remember what was computed, unless something before has learned."""
        if not isinstance(output, Tensor) or output.shape[:1] != rows.shape:
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise FeatureCacheError(
                f"{self._slot!r} returned {found} for {len(rows)} samples: only a tensor with the samples first can "
                "be remembered"
            )
        if output.requires_grad:
            raise FeatureCacheError(
                f"what {self._slot!r} computes depends on parameters before it that are trained: freeze them first"
            )
        with torch.inference_mode(False), torch.no_grad():  # what is kept may meet autograd later
            if self._features is None or self._features.shape[1:] != output.shape[1:]:
                shape = (len(self._known), *output.shape[1:])
                self._features = torch.empty(shape, dtype=output.dtype, device=output.device)
                self._known.zero_()
            self._features[rows.to(output.device)] = output
            self._known[rows] = True
        return output

    def _require_rows(self, rows: Tensor) -> Tensor:
        if rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32):
            raise FeatureCacheError(
                f"rows is {rows.dtype} {tuple(rows.shape)}; expected a tensor of indices, one for each sample"
            )
        rows = rows.cpu().long()
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < len(self._known):
            worst = int(rows.max()) if int(rows.max()) >= len(self._known) else int(rows.min())
            raise FeatureCacheError(f"rows has {worst}; there are {len(self._known):,} samples, from 0")
        return rows

    def _require_evaluation(self) -> None:
        for part in self._parts:
            if any(module.training for module in bare_modules(part)):
                raise FeatureCacheError(
                    f"the prefix up to {self._slot!r} is in training mode, where dropout and batch norm vary: call "
                    "eval() on it after train()"
                )

    def _tensors(self) -> tuple[object, ...]:
        """Changes whenever a frozen tensor of the host does."""
        host = self._model.host
        frozen = [each for each in bare_parameters(host) if not each.requires_grad]
        buffers = [each for name, each in host.named_buffers() if not names_a_seed(name)]
        return tuple((id(each), each._version) for each in (*frozen, *buffers))


def _before(host: nn.Module, name: str) -> list[nn.Module]:
    """What runs before a submodule and leads to nothing but it: earlier children of the `Sequential`s around it."""
    counts: dict[int, int] = {}
    for _, module in host.named_modules(remove_duplicate=False):
        counts[id(module)] = counts.get(id(module), 0) + 1
    found: list[nn.Module] = []
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        around = host.get_submodule(".".join(parts[:depth]))
        if type(around) is not nn.Sequential:
            break
        children = list(around._modules)
        earlier = list(around)[: children.index(parts[depth])]
        # One that is held twice may be called behind the slot too.
        if any(counts[id(part)] > 1 for part in earlier):
            break
        found = [*earlier, *found]
    return found


@contextmanager
def _replaced(module: nn.Module, call: Callable[..., object]) -> Iterator[None]:
    """`call(forward, *args, **kwargs)` in the place of a module's forward, inside; once."""
    if "forward" in vars(module):
        raise FeatureCacheError(
            f"the forward of a {type(module).__name__} in the prefix was replaced by another library"
        )
    forward, calls = module.forward, 0

    def once(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise FeatureCacheError(
                "the prefix ran twice inside of(): write one forward inside, of a module called once"
            )
        return call(forward, *args, **kwargs)

    vars(module)["forward"] = once
    try:
        yield
    finally:
        del vars(module)["forward"]
