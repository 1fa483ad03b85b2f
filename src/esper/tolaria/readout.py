"""Reading what an epoch measured: one wait for the device, then plain numbers, host by host."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.kasmina import GrowingModel
from esper.tolaria.population import CoalitionScores, EpochTally


@dataclass(frozen=True, slots=True)
class SeedNumbers:
    """What is known of one live seed. Unknown is None."""

    slot: int
    contribution: float | None
    """Of a blended seed: accuracy with it minus accuracy without it."""
    probe: float | None
    """Of a TRAINING seed: accuracy with it switched on minus accuracy as it is."""
    gradient_norm: float | None
    gradient_health: float | None
    finite: bool | None


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """What is known of one host after an epoch. Before the first, nothing was trained."""

    train_loss: float | None
    train_accuracy: float | None
    gradient_norm: float | None
    validation_loss: float
    validation_accuracy: float
    coalitions: dict[int, tuple[float, float]]
    """bitmask -> (loss, accuracy)"""
    seeds: tuple[SeedNumbers, ...]

    @property
    def seeds_finite(self) -> bool:
        return all(seed.finite is not False for seed in self.seeds)


def read(tally: EpochTally | None, scores: CoalitionScores) -> list[HostNumbers]:
    """Everything two passes over the population measured, with one wait for the device."""
    tensors = [scores.loss, scores.accuracy]
    if tally is not None:
        tensors += [tally.loss, tally.accuracy, tally.gradient_norm, tally.seed_gradient_norm]
        tensors += [tally.seed_gradient_health, tally.seed_finite.float()]
    fetched = _fetch(tensors)
    losses, accuracies = next(fetched), next(fetched)
    trained = None if tally is None else tuple(fetched)
    return [_host_numbers(row, scores, losses, accuracies, trained) for row in range(len(scores.hosts))]


def tell(model: GrowingModel, numbers: HostNumbers) -> None:
    """Report what was measured of the seeds to the model they live in."""
    names = model.slot_config.slot_ids
    for seed in numbers.seeds:
        model.report(
            names[seed.slot],
            contribution=seed.contribution,
            probe=seed.probe,
            gradient_norm=seed.gradient_norm,
            gradient_health=seed.gradient_health,
            gradients_finite=seed.finite,
        )


def _fetch(tensors: list[Tensor]) -> Iterator[list[list[float]]]:
    """Tensors (host, ...) as nested lists, (host, flattened rest)."""
    flat = torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1).cpu()
    widths = [tensor[0].numel() for tensor in tensors]
    return (part.tolist() for part in flat.split(widths, dim=1))


def _host_numbers(
    row: int,
    scores: CoalitionScores,
    losses: list[list[float]],
    accuracies: list[list[float]],
    trained: tuple[list[list[float]], ...] | None,
) -> HostNumbers:
    plan, loss, accuracy = scores.plans[row], losses[row], accuracies[row]
    seeds = []
    for slot, toggled, isolated in zip(plan.live, plan.toggled, plan.training, strict=True):
        difference = _known(accuracy[0] - accuracy[toggled])
        norm, health, finite = (None, None, None) if trained is None else (t[row][slot] for t in trained[3:])
        seeds.append(
            SeedNumbers(
                slot=slot,
                contribution=None if isolated else difference,
                probe=-difference if isolated and difference is not None else None,
                gradient_norm=_known(norm),
                gradient_health=_known(health),
                finite=None if finite is None else bool(finite),
            )
        )
    return HostNumbers(
        train_loss=None if trained is None else trained[0][row][0],
        train_accuracy=None if trained is None else trained[1][row][0],
        gradient_norm=None if trained is None else trained[2][row][0],
        validation_loss=loss[0],
        validation_accuracy=accuracy[0],
        coalitions={mask: (loss[place], accuracy[place]) for place, mask in enumerate(plan.masks)},
        seeds=tuple(seeds),
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
