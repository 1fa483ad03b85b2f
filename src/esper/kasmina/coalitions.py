"""Coalitions of seeds: which are scored, at which alphas, what scores say of each seed, what is kept at the end."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from esper.kasmina.blueprints.registry import main_tensor
from esper.kasmina.model import GrowingModel
from esper.kasmina.probing import ExampleInput, batch_size, call_with, rebatched
from esper.leyline import Settle, Stage
from esper.leyline.utility import utility

Coalition = frozenset[str]
"""The slots whose seeds are switched on. Fossils are part of the host and always on, unless they are weighed too."""


@dataclass(frozen=True, slots=True)
class SeedWorth:
    """What validation says of one seed, as a difference of scores. At most one is known."""

    contribution: float | None
    """Of a blended seed or a fossil: the score with it minus the score without it."""
    probe: float | None
    """Of a TRAINING seed: the score with it switched on minus the score as it is."""


@dataclass(frozen=True, slots=True)
class CoalitionPlan:
    """The coalitions of one model whose scores show what each seed is worth; none is there twice."""

    coalitions: tuple[Coalition, ...]
    """First the model as it is."""
    weighed: tuple[str, ...]
    """The slots whose seeds are switched: those with live seeds, then those with fossils if these are weighed."""
    places: tuple[int, ...]
    """The index of each of those slots in the model."""
    alphas: tuple[tuple[float, ...], ...]
    """(coalition, weighed seed)"""
    toggled: tuple[int, ...]
    """For each weighed seed, the coalition in which it alone is switched the other way."""
    training: tuple[bool, ...]
    """For each weighed seed, whether it is in TRAINING: switched on there, off everywhere else."""

    def worths(self, scores: Sequence[float | None]) -> dict[str, SeedWorth]:
        """Slot -> what leaving its seed out, or switching it on, does to the score; unknown ones are None or NaN."""
        as_it_is, worths = scores[0], {}
        for name, toggled, training in zip(self.weighed, self.toggled, self.training, strict=True):
            other = scores[toggled]
            if as_it_is is None or other is None or not math.isfinite(as_it_is - other):
                worths[name] = SeedWorth(None, None)
            elif training:
                worths[name] = SeedWorth(contribution=None, probe=other - as_it_is)
            else:
                worths[name] = SeedWorth(contribution=as_it_is - other, probe=None)
        return worths


def plan_coalitions(model: GrowingModel, *, bare: bool = True, fossils: bool = False) -> CoalitionPlan:
    """The model as it is, each blended seed off, each TRAINING seed on; with `bare`, also every live seed off.

    fossils  weigh these too: each is switched off in turn
    """
    kept = model.fossils if fossils else ()
    weighed = (*model.live_slots, *kept)
    training = tuple(model.slots[name].stage is Stage.TRAINING for name in weighed)
    as_it_is = frozenset(name for name, isolated in zip(weighed, training, strict=True) if not isolated)
    toggles = [as_it_is ^ {name} for name in weighed]
    nothing = [frozenset(kept)] if bare else []
    coalitions = tuple(dict.fromkeys((as_it_is, *toggles, *nothing)))
    on = {name: switched_on_alpha(model, name) for name in weighed}
    return CoalitionPlan(
        coalitions=coalitions,
        weighed=weighed,
        places=tuple(map(model.slot_config.index, weighed)),
        alphas=tuple(
            tuple(on[name] if name in members else 0.0 for name in weighed) for members in coalitions
        ),
        toggled=tuple(coalitions.index(toggle) for toggle in toggles),
        training=training,
    )


def standard_coalitions(model: GrowingModel) -> list[Coalition]:
    """The model as it is, each blended seed off, each TRAINING seed on, and none; no coalition twice."""
    return list(plan_coalitions(model).coalitions)


def switched_on_alpha(model: GrowingModel, name: str) -> float:
    """A seed's own alpha; a TRAINING seed, which has none yet, is probed at its target."""
    life = model.slots[name].life
    if life.stage is Stage.TRAINING:
        assert life.alpha_target is not None
        return life.alpha_target
    return life.alpha


def coalition_alphas(
    model: GrowingModel,
    coalitions: Sequence[Iterable[str]],
    samples: int,
    weighed: Sequence[str] | None = None,
) -> dict[str, Tensor | float]:
    """Slot -> alpha of each row when `coalitions` copies of a batch are stacked, (coalition x sample,).

    Where all coalitions agree it is one float, so that a seed which is off everywhere costs nothing.

    weighed  the slots whose seeds are switched, as in a `CoalitionPlan`; None is those with live seeds
    """
    switched = model.live_slots if weighed is None else weighed
    members = [frozenset(coalition) for coalition in coalitions]
    for name in sorted(frozenset[str]().union(*members) - set(switched)):
        what = "has no live seed; live" if weighed is None else "is not weighed; weighed"
        raise ValueError(f"coalition names {name!r}, which {what}: {', '.join(switched) or 'none'}")
    alphas: dict[str, Tensor | float] = {}
    for name in switched:
        seed, on = model.slots[name].seed, switched_on_alpha(model, name)
        assert seed is not None
        column = [on if name in member else 0.0 for member in members]
        agreed = len(set(column)) == 1
        alphas[name] = column[0] if agreed else seed.alpha.new_tensor(column).repeat_interleave(samples)
    return alphas


def switched_slots(
    model: GrowingModel, one: Mapping[str, Tensor | float], other: Mapping[str, Tensor | float]
) -> list[str]:
    """The slots whose seeds are at another alpha in one forward than in another, both as `override_alpha` takes them.

    Tensors, which hold an alpha for each row, count as different.
    """

    def differ(name: str) -> bool:
        alphas = [alphas.get(name, model.slots[name].alpha) for alphas in (one, other)]
        return any(isinstance(alpha, Tensor) for alpha in alphas) or len(set(alphas)) > 1

    return [name for name in dict.fromkeys((*one, *other)) if differ(name)]


def forward_coalitions(
    model: GrowingModel,
    example: ExampleInput,
    coalitions: Sequence[Iterable[str]],
    *,
    chunk: int | None = None,
) -> Tensor:
    """The host's output under each coalition, (coalition, sample, ...), `chunk` of them stacked in one forward.

    Nothing of the model is changed. It must be in eval mode, where a sample's output is its own. By default each
    coalition has its own pass on the CPU, where that is fastest (a seed that is off costs nothing), and where a slot
    does not keep the samples in order; all are stacked on other devices.
    """
    if model.training:
        raise ValueError(
            "forward_coalitions needs eval mode, or batch statistics mix coalitions: call model.eval()"
        )
    if not coalitions:
        raise ValueError(
            "coalitions is empty: give at least one set of slots, frozenset() for none switched on"
        )
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    if chunk is None:
        slots = model.slots.values()
        apart = next(iter(slots)).placement()[0].type == "cpu" or not all(
            slot.site.samples_in_order for slot in slots
        )
        chunk = 1 if apart else len(coalitions)
    samples, outputs = batch_size(example), []
    for start in range(0, len(coalitions), chunk):
        part = coalitions[start : start + chunk]
        with model.override_alpha(coalition_alphas(model, part, samples)):
            stacked = rebatched(example, samples, lambda tensor: torch.cat([tensor] * len(part)))  # noqa: B023
            output = main_tensor(call_with(model, stacked))
        if output is None:
            raise ValueError("forward_coalitions: the model returned no tensor")
        outputs.append(output.view(len(part), output.shape[0] // len(part), *output.shape[1:]))
    return torch.cat(outputs)


Scores = Mapping[Coalition, float]
"""Validation accuracy, or another score, by the slots whose seeds are switched on."""


def require_settle(settle: str) -> None:
    """Raise unless it is one of the ways to settle."""
    if settle not in get_args(Settle):
        raise ValueError(f"settle is {settle!r}; expected one of {', '.join(get_args(Settle))}")


def settle(
    models: Sequence[GrowingModel],
    rent: float,
    *,
    settle: Settle,
    measure: Callable[[Sequence[int]], Sequence[Scores]],
) -> list[int]:
    """Remove TRAINING and fading seeds, then greedily any live seed without which utility is higher now.

    No adaptation is left, so leave-one-out is the right question here. What stays, stays at its alpha.

    rent     utility that it costs to add as many parameters as the host has
    settle   "worth" as above; "committed" keeps just the fossilised seeds
    measure  places in `models` -> for each, coalition -> validation score: the model as it is, and with each live
             seed off in turn

    Returns the places of the models that lost a seed.
    """
    require_settle(settle)
    if not 0.0 <= rent < math.inf:
        raise ValueError(f"rent must be a finite number >= 0, not {rent!r}")
    changed = {row for row, model in enumerate(models) if _drop_unfinished(model, settle)}
    unsettled = [row for row, model in enumerate(models) if model.live_slots]
    while unsettled:
        measured = zip(unsettled, measure(unsettled), strict=True)
        dropped = [row for row, scores in measured if _drop_worst(models[row], rent, scores)]
        changed |= set(dropped)
        unsettled = [row for row in dropped if models[row].live_slots]
    return sorted(changed)


def _drop_unfinished(model: GrowingModel, settle: Settle) -> bool:
    unfinished = [
        name
        for name in model.live_slots
        if settle == "committed" or model.slots[name].stage is Stage.TRAINING or model.slots[name].life.fading
    ]
    for name in unfinished:
        model.remove(name)
    return bool(unfinished)


def _drop_worst(model: GrowingModel, rent: float, scores: Scores) -> bool:
    """Remove the live seed without which utility rises most, if there is one."""
    everything, host = frozenset(model.live_slots), model.host_parameters
    added = model.added_parameters
    now = utility(scores[everything], rent, added, host)
    gains = {}
    for name in model.live_slots:
        left = added - model.slots[name].parameter_count
        gains[name] = utility(scores[everything - {name}], rent, left, host) - now
    worst = max(gains, key=gains.__getitem__)
    if not gains[worst] > 0.0:
        return False
    model.remove(worst)
    return True
