"""Adapters as files: what was added to a frozen base, and nothing of the base itself.

A folder holds `adapter.safetensors` (the seeds, the host's parameters that were trained and the statistics of its
normalising layers) and `adapter.json` (which base it belongs to, where the seeds sit, a card). Nothing in it can
execute.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from esper.kasmina.blueprints import Site
from esper.kasmina.blueprints.registry import BlueprintError, OutputForm, find_blueprint
from esper.kasmina.describing import unique_tensors
from esper.kasmina.model import GrowingModel
from esper.kasmina.norm_statistics import norm_statistics
from esper.kasmina.replicas import whole
from esper.kasmina.seed import Seed, bear_seed, birth_randomness
from esper.kasmina.slot import Slot
from esper.kasmina.stage_machine import Count, Share
from esper.kasmina.tree import bare_parameters, names_a_seed
from esper.leyline import Composition, Layout, Stage
from esper.leyline.errors import EsperError, first_finding
from esper.leyline.files import write_atomically, write_json

CONFIG, TENSORS = "adapter.json", "adapter.safetensors"
VERSION = 1


class AdapterError(EsperError, ValueError):
    """An adapter cannot be written, or its files are damaged or belong to another base."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BaseRecord(_Record):
    """The base that an adapter belongs to."""

    id: Annotated[str, Field(min_length=1)]
    """What people call it: the name of its class, a path or the name of a repository."""
    sha256: str
    """Of `tensors`, as written here."""
    tensors: dict[str, str]
    """name -> dtype, shape and digest of every tensor that the adapter leaves as it is"""


class SeedRecord(_Record):
    """One seed, and the slot it was grown in."""

    blueprint: Annotated[str, Field(min_length=1)]
    composition: Composition
    alpha: Share
    layout: Layout
    channels: Annotated[int, Field(ge=1)]
    positions: tuple[Count, ...] | None
    causal: bool
    form: OutputForm
    positional: Count
    keywords: tuple[str, ...]

    def site(self, module: nn.Module) -> Site:
        """The slot as a blueprint sees it, behind this submodule."""
        return Site(
            layout=self.layout,
            channels=self.channels,
            positions=self.positions,
            causal=self.causal,
            module=module,
            copyable=True,
            form=self.form,
            positional=self.positional,
            keywords=self.keywords,
        )


class AdapterRecord(_Record):
    """Everything about an adapter that is not a tensor."""

    format: Literal["esper adapter"]
    version: int
    base: BaseRecord
    slots: dict[str, SeedRecord]
    sha256: str
    """Of the file with the tensors."""
    card: dict[str, JsonValue]


# Writing


def save_adapter(
    model: GrowingModel,
    folder: str | os.PathLike[str],
    *,
    base_id: str | None = None,
    card: Mapping[str, JsonValue] | None = None,
) -> None:
    """Write what a growing model has beside its frozen base to `folder`, which is made where it is missing.

    base_id  what people call the base; by default the name of its class
    card     what is worth knowing of the adapter, as JSON

    Seeds count as the output shows them now: at their alpha, and not while they are in TRAINING. Where parameters are
    sharded, the tensors are gathered: all processes must call this together.
    """
    model.replicas.rest()
    host, seeds = model.host, shown_seeds(model)
    require_frozen(host)
    brought = brought_along(host)
    left = {
        name: whole(tensor.detach())
        for name, tensor in unique_tensors(host).items()
        if name not in brought and not names_a_seed(name)
    }
    tensors = {f"host/{name}": tensor for name, tensor in brought.items()}
    for name, (_, seed) in seeds.items():
        tensors |= {f"seed/{name}/{part}": tensor for part, tensor in unique_tensors(seed).items()}
    tensors = {name: whole(tensor.detach()).contiguous() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise AdapterError(f"{name} is not finite: prune that seed, or go back to a healthy epoch, first")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / TENSORS, lambda partial: save_file(tensors, partial))
    described = describe_tensors(left)
    record = AdapterRecord(
        format="esper adapter",
        version=VERSION,
        base=BaseRecord(id=base_id or type(host).__name__, sha256=_sha256(described), tensors=described),
        slots={name: _describe(slot, seed) for name, (slot, seed) in seeds.items()},
        sha256=hashlib.sha256((target / TENSORS).read_bytes()).hexdigest(),
        card=dict(card or {}),
    )
    write_json(target / CONFIG, record.model_dump(mode="json"))


def shown_seeds(model: GrowingModel) -> dict[str, tuple[Slot, Seed]]:
    """Slot -> the seeds that the model's output shows: all but those in TRAINING."""
    return {
        name: (slot, slot.seed)
        for name, slot in model.slots.items()
        if slot.seed is not None and slot.stage is not Stage.TRAINING
    }


def require_frozen(host: nn.Module) -> None:
    """Raise where nothing of the host is frozen: an adapter would hold all of it."""
    parameters = list(bare_parameters(host))
    if all(parameter.requires_grad for parameter in parameters):
        count = sum(parameter.numel() for parameter in parameters)
        raise AdapterError(
            f"none of the host's {count:,} parameters is frozen, and an adapter would hold them all: call "
            "requires_grad_(False) on the base before it grows, or write the whole with model.save(path)"
        )


def brought_along(host: nn.Module) -> dict[str, Tensor]:
    """The host's tensors that belong to the adapter: trained parameters, and statistics of normalising layers."""
    statistics = norm_statistics(host)
    return {
        name: tensor
        for name, tensor in unique_tensors(host).items()
        if not names_a_seed(name) and (tensor.requires_grad or name in statistics)
    }


def _describe(slot: Slot, seed: Seed) -> SeedRecord:
    site = slot.site
    return SeedRecord(
        blueprint=seed.blueprint_name,
        composition=seed.composition,
        alpha=slot.alpha,
        layout=site.layout,
        channels=site.channels,
        positions=site.positions,
        causal=site.causal,
        form=site.form,
        positional=site.positional,
        keywords=site.keywords,
    )


def describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """name -> dtype, shape and a digest of the values"""
    return {name: f"{_kind(tensor)} {_digest(tensor)}" for name, tensor in tensors.items()}


def _kind(tensor: Tensor) -> str:
    """The dtype and the shape, as "float32 (16, 3)"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _digest(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(values.data, digest_size=8).hexdigest()


def _sha256(described: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


# Reading


class ReadAdapter:
    """The files of an adapter, read and found whole. `fit` builds its seeds for a base, or says why it cannot.

    folder   where they are, which errors name
    record   what `adapter.json` holds
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.record = _read_record(self.folder / CONFIG)
        path = self.folder / TENSORS
        try:
            content = path.read_bytes()
        except OSError as error:
            raise AdapterError(
                f"{path} cannot be read: {error.strerror}; expected a file of the folder that save_adapter wrote"
            ) from None
        if hashlib.sha256(content).hexdigest() != self.record.sha256:
            raise AdapterError(f"{path} is damaged: its sha256 is not the one that {CONFIG} names")
        try:
            tensors = load_tensors(content)
        except SafetensorError as error:
            raise AdapterError(f"{path} is not a whole safetensors file: {error}") from None
        self.host = {
            name.removeprefix("host/"): tensor for name, tensor in tensors.items() if name.startswith("host/")
        }
        """The base's tensors that the adapter brings along, by name."""
        self._seeds = {name: tensor for name, tensor in tensors.items() if name.startswith("seed/")}

    def fit(self, base: nn.Module) -> dict[str, Seed]:
        """Slot -> its seed, for the base that the adapter was made for; another one is refused by name."""
        ours = {name: whole(tensor.detach()) for name, tensor in unique_tensors(base).items()}
        self._require_same_names(ours)
        kinds = {name: _kind(tensor) for name, tensor in self.host.items()}
        digests = {}
        for name, described in self.record.base.tensors.items():
            kinds[name], _, digests[name] = described.rpartition(" ")
        for name, tensor in ours.items():
            if kinds[name] != _kind(tensor):
                raise self._other_base(f"{name} is {kinds[name]} there and {_kind(tensor)} in this model")
        for name, digest in digests.items():
            if digest != _digest(ours[name]):
                raise self._other_base(f"{name} has other values in this model")
        modules = dict(base.named_modules(remove_duplicate=False))
        for name in self.record.slots:
            if name not in modules:
                raise self._other_base(f"this model has no submodule {name}")
        seeds = {name: self._bear(name, saved, modules[name]) for name, saved in self.record.slots.items()}
        expected = {f"seed/{slot}/{part}" for slot, seed in seeds.items() for part in unique_tensors(seed)}
        for name in sorted(set(self._seeds) ^ expected):
            raise AdapterError(f"{self.folder}: {name} does not fit the seeds that {CONFIG} names")
        for slot, seed in seeds.items():
            self._fill(slot, seed)
            seed.part_of_host = True
        return seeds

    def _require_same_names(self, ours: Iterable[str]) -> None:
        theirs = {*self.record.base.tensors, *self.host}
        for name in sorted(set(ours) ^ theirs):
            problem = f"this model has no {name}" if name in theirs else f"it knows no {name}"
            raise self._other_base(problem)

    def _other_base(self, difference: str) -> AdapterError:
        return AdapterError(
            f"{self.folder} is an adapter of another base ({self.record.base.id}): {difference}"
        )

    def _bear(self, name: str, saved: SeedRecord, module: nn.Module) -> Seed:
        like = next(bare_parameters(module), None)
        device = torch.device("cpu") if like is None else like.device
        scale = self._seeds.get(f"seed/{name}/scale")
        dtype = torch.float32 if scale is None else scale.dtype
        try:
            with birth_randomness(0, name, 0):  # drawn and then overwritten
                return bear_seed(
                    find_blueprint(saved.blueprint),
                    saved.site(module),
                    saved.composition,
                    device=device,
                    dtype=dtype,
                )
        except BlueprintError as error:
            raise AdapterError(
                f"{self.folder}: slot {name!r} holds a {saved.blueprint!r}: {error}. A blueprint of your own must be "
                "defined before an adapter with it is loaded"
            ) from None

    def _fill(self, slot: str, seed: Seed) -> None:
        tensors = unique_tensors(seed)
        for part, tensor in tensors.items():
            found = self._seeds[f"seed/{slot}/{part}"]
            if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                raise AdapterError(
                    f"{self.folder}: slot {slot!r}: {part} is {_kind(found)}, its blueprint makes {_kind(tensor)}"
                )
        with torch.no_grad():
            for part, tensor in tensors.items():
                tensor.copy_(self._seeds[f"seed/{slot}/{part}"])
            seed.alpha.fill_(self.record.slots[slot].alpha)


def _read_record(path: Path) -> AdapterRecord:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise AdapterError(
            f"{path} cannot be read: {error.strerror}; expected a file of the folder that save_adapter wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is damaged: {error}") from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise AdapterError(f"{path} has version {version!r}; this Esper reads version {VERSION}")
    try:
        record = AdapterRecord.model_validate(document)
    except ValidationError as error:
        raise AdapterError(f"{path}: {first_finding(error)}") from None
    if record.base.sha256 != _sha256(record.base.tensors):
        raise AdapterError(f"{path} is damaged: base.sha256 is not that of base.tensors")
    return record
