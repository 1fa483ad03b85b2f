"""What a forward computes before seeds, computed once: a frozen prefix by sample and not every epoch, and what is
before the first seed that is switched for all coalitions of a batch."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel
from esper.kasmina.seed import Seed
from esper.kasmina.surroundings import are_same, surroundings
from esper.kasmina.tree import bare_children, bare_modules, bare_parameters, names_a_seed
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
    augmentation, and the submodule in evaluation mode. The caller vouches for the first, and that nothing is left for
    later modules but the output; the second is checked.
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


# For the coalitions of a batch


_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.Size)
Forward = Callable[..., object]
Restless = WeakKeyDictionary[nn.Module, int]
"""Part -> in how many validations it left something behind. Keeps no part alive."""
_GIVEN_UP = 2
"""Times after which a part is looked at no more; once may be what is cached in the first call."""


class SharedPrefix:
    """Notes what the parts of a model put out in one forward, for others of the same batch that switch seeds.

        with SharedPrefix(model).installed() as prefix:
            for batch in batches:
                with prefix.noting():
                    as_it_is = model(batch)
                with prefix.reusing(["blocks.1"]), model.override_alpha({"blocks.1": 0.0}):
                    without = model(batch)

    Until a switched slot fires, everything is as it was: a part that ran before it puts out what was noted. A part is
    a submodule with no seed inside, or a seed. Just the forward of parts is spared: hooks on them, and the host's
    code between them, run each time. What cannot be spared is computed: a part whose call in the first forward
    changed something that it can reach beside its output, or may have; one whose output was changed in place since;
    and all of them where the forward drew random numbers.

    Not all that a part may do can be seen: what is left where `surroundings` does not look, what is written through
    `.data`, what is left in later calls only. So whoever uses it computes some forwards in full as well.

    It is for evaluation mode without gradients.

    restless  what is known of the parts from earlier uses, and is added to
    """

    def __init__(self, model: GrowingModel, restless: Restless | None = None) -> None:
        self._model = model
        self._restless = Restless() if restless is None else restless
        self._parts = [
            _Part(module, spared=self._restless.get(module, 0) < _GIVEN_UP) for module in _find_parts(model)
        ]
        self._fired: dict[str, int] = {}
        """Slot -> how many calls of parts were noted when it fired first."""
        self._calls = 0

    @contextmanager
    def installed(self) -> Iterator["SharedPrefix"]:
        """The model's parts are watched inside."""
        with ExitStack() as undo:
            for part in self._parts:
                vars(part.module)["forward"] = part.forward
                undo.callback(vars(part.module).pop, "forward")
            for name, slot in self._model.slots.items():
                if slot.seed is not None:
                    assert slot.site.module is not None
                    handle = slot.site.module.register_forward_hook(self._note_firing(name), prepend=True)
                    undo.callback(handle.remove)
            yield self
            for part in self._parts:
                part.notes.clear()

    def _note_firing(self, name: str) -> Callable[..., None]:
        def fires(*_: object) -> None:
            self._fired.setdefault(name, self._calls)

        return fires

    @contextmanager
    def noting(self) -> Iterator[None]:
        """One forward inside: what it computes is noted, in place of what was before."""
        self._fired, self._calls = {}, 0
        drawn = _random_state(self._model)
        for part in self._parts:
            part.notes, part.act = [], self._note
        yield
        for part in self._parts:
            part.act = _compute
        # A call that was spared would leave out its numbers, and shift all later ones.
        if drawn != _random_state(self._model):
            for part in self._parts:
                part.notes.clear()

    @contextmanager
    def reusing(self, switched: Iterable[str]) -> Iterator[None]:
        """One forward inside, of the noted batch; all slots but the `switched` ones are at the noted alphas."""
        until = min((self._fired[name] for name in switched if name in self._fired), default=self._calls)
        for part in self._parts:
            waiting = iter([note for note in part.notes if note.place < until])
            part.act = _Reuse(waiting) if part.spared else _compute
        yield
        for part in self._parts:
            part.act = _compute

    def _note(self, part: "_Part", args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        given = _given(part.module, args, kwargs)
        before, calls = _versions(given), self._calls
        first, part.called = not part.called and part.spared, True
        around = surroundings(part.module, (_Part,)) if first else None
        output = part.compute(*args, **kwargs)
        if first:
            self._judge(part, around)
        versions = _versions((output,))
        # One that calls another part is computed, so that each call of that one meets its own note.
        spared = before is not None and before == _versions(given) and calls == self._calls
        spared = spared and versions is not None
        part.notes.append(_Note(self._calls, output if spared else None, versions if spared else None))
        self._calls += 1
        return output

    def _judge(self, part: "_Part", around: list[object] | None) -> None:
        """Whether a part left what it can reach as it was in its first call."""
        part.spared = around is not None and are_same(around, surroundings(part.module, (_Part,)))
        if not part.spared:
            times = _GIVEN_UP if around is None else 1
            self._restless[part.module] = self._restless.get(part.module, 0) + times


@dataclass(slots=True)
class _Note:
    """One call of a part."""

    place: int
    """Among the calls of all parts in the forward."""
    output: object
    versions: tuple[int, ...] | None
    """Of the output's tensors; None if the call has to be computed again."""


@dataclass(slots=True, eq=False)
class _Part:
    """A submodule, and what is done in the place of its forward."""

    module: nn.Module
    compute: Forward = field(init=False)
    act: "Callable[[_Part, tuple[object, ...], dict[str, object]], object]" = field(init=False)
    notes: list[_Note] = field(default_factory=list)
    spared: bool = True
    called: bool = False

    def __post_init__(self) -> None:
        self.compute, self.act = self.module.forward, _compute

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.act(self, args, kwargs)


def _compute(part: _Part, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return part.compute(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Reuse:
    """Puts out what was noted, call by call; then, and where the note does not hold any more, computes."""

    notes: Iterator[_Note]

    def __call__(self, part: _Part, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        note = next(self.notes, None)
        if note is None or note.versions is None or note.versions != _versions((note.output,)):
            return part.compute(*args, **kwargs)
        return note.output


# What a part is


def _find_parts(model: GrowingModel) -> list[nn.Module]:
    """The seeds, and the largest submodules whose inside holds neither a slot with a seed nor a hook of others."""
    ours = {slot.hook.id for slot in model.slots.values()}
    seeds = [slot.seed for slot in model.slots.values() if slot.seed is not None]
    growing = {id(slot.site.module) for slot in model.slots.values() if slot.seed is not None}
    found: dict[int, nn.Module] = {}

    def is_part(module: nn.Module) -> bool:
        inside = list(bare_modules(module))[1:]
        hooks = {key for inner in inside for key in (*inner._forward_hooks, *inner._forward_pre_hooks)}
        return _replaceable(module) and hooks <= ours and not any(id(inner) in growing for inner in inside)

    def walk(module: nn.Module) -> None:
        for _, child in bare_children(module):
            if is_part(child):
                found[id(child)] = child
            else:
                walk(child)

    walk(model.host)
    # What is held in two places may be in a part as well: its calls there would not be seen.
    nested = {id(inner) for part in found.values() for inner in list(bare_modules(part))[1:]}
    return [*(part for key, part in found.items() if key not in nested), *filter(is_part, seeds)]


def _replaceable(module: nn.Module) -> bool:
    """Whether a module is called by a forward of its class's own."""
    forward = type(module).forward
    return (
        forward is not nn.Module.forward
        and "forward" not in vars(module)
        and not isinstance(module, torch.jit.ScriptModule)
    )


# Whether a call can be spared


def _given(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
    """What a call is given, without the containers that are made for the call itself."""
    if isinstance(module, Seed):
        h, read, read_by_name = args
        assert isinstance(read, tuple)
        assert isinstance(read_by_name, dict)
        return (h, *read, *read_by_name.values()) if module.reads_input else (h,)
    return (*args, *kwargs.values())


def _versions(tree: tuple[object, ...]) -> tuple[int, ...] | None:
    """How often each tensor was changed in place; None if there is something else in it that can be changed."""
    found: list[int] = []
    for leaf in tree:
        if isinstance(leaf, Tensor):
            if leaf.is_inference():
                return None
            found.append(leaf._version)
        elif type(leaf) is tuple:
            inner = _versions(leaf)
            if inner is None:
                return None
            found += inner
        elif leaf is not None and not isinstance(leaf, _PLAIN):
            return None
    return tuple(found)


def _random_state(model: GrowingModel) -> list[object]:
    """Of the generators that a forward draws from."""
    device = next(model.parameters()).device
    torchs = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    numpys = np.random.get_state(legacy=False)["state"].values()  # noqa: NPY002
    return [
        *(state.numpy().tobytes() for state in torchs),
        *(each.tobytes() if isinstance(each, np.ndarray) else each for each in numpys),
        random.getstate(),
    ]
