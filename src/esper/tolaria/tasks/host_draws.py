"""What the suite `hosts` draws: a network, how it is trained, and its data, so that what and where to grow differ.

Some kinds and sizes of hosts, and the corner of few samples with many wrong labels, are never drawn to train on: they
are in the held-out list at the share that they have in the ranges.
"""

from collections.abc import Callable, Mapping

import numpy as np

from esper.kasmina.hosts.drawn import OVER_TOKENS
from esper.tolaria.data.drawn import FIGURE_CLASSES, MOST_SEQUENCE_CLASSES, RULES
from esper.tolaria.data.functions import SHAPES
from esper.tolaria.tasks.drawn import MOST_SLOTS
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.task import Parameter, task

Parameters = dict[str, Parameter]

HOST_KINDS = ("mlp", "conv", "attention", "mixer")
HELD_OUT_KIND = "mixer"
_WIDTHS = {"mlp": (6, 48), "conv": (4, 20), "attention": (6, 24), "mixer": (6, 24)}
_DEPTHS = {"mlp": 8, "conv": 7, "attention": 4, "mixer": 5}
_TRAINED_WIDTHS = {"mlp": 32, "conv": 14, "attention": 16}
_TRAINED_DEPTHS = {"mlp": 6, "conv": 5, "attention": 3}
"""kind -> the largest that controllers are trained on."""
_SMALL, _NOISY = 800, 0.3

REPARAMETRISED: Mapping[str, float] = {"lr": 2.0, "width": 1.5, "steps": 2.0}
"""parameter -> the largest factor, either way, that `reparametrised` draws for it."""


def draw_any(rng: np.random.Generator, permutations: tuple[int, int]) -> tuple[str, Parameters]:
    """(task, parameters) from the whole ranges, without the seed of the samples."""
    task = str(rng.choice(tuple(_DATA)))
    data = _DATA[task](rng)
    if data.get("shuffled"):
        data["permutation"] = int(rng.integers(*permutations))
    flat = task in ("drawn_tables", "drawn_functions")
    kinds = tuple(kind for kind in HOST_KINDS if not (flat and kind == "conv"))
    # tables are mostly met by an mlp, which is what they are for
    kind = "mlp" if flat and rng.random() < 0.5 else str(rng.choice(kinds))
    host = _host(rng, kind, large=task != "drawn_pictures")
    return task, host | _training(rng, kind, quantity=task == "drawn_functions") | data


def held_out_only(parameters: Mapping[str, Parameter]) -> bool:
    """Whether no controller is trained on such an instance."""
    return of_other_kind(parameters) or of_other_size(parameters) or in_corner(parameters)


def of_other_kind(parameters: Mapping[str, Parameter]) -> bool:
    """Whether the host is of a kind that is never trained on."""
    return parameters.get("host") == HELD_OUT_KIND


def of_other_size(parameters: Mapping[str, Parameter]) -> bool:
    """Whether the host, of a kind that is trained on, is wider or deeper than any of those."""
    kind = str(parameters.get("host", "mlp"))
    if kind == HELD_OUT_KIND:
        return False
    width, depth = int(parameters.get("width", 16)), int(parameters.get("depth", 3))
    return width > _TRAINED_WIDTHS[kind] or depth > _TRAINED_DEPTHS[kind]


def in_corner(parameters: Mapping[str, Parameter]) -> bool:
    """Few training samples with many wrong labels: a corner of the ranges that no draw enters, of any suite."""
    size, noise = parameters.get("size"), parameters.get("noise")
    return size is not None and noise is not None and int(size) < _SMALL and float(noise) > _NOISY


def reparametrised(instance: Instance, rng: np.random.Generator) -> Instance:
    """The same data and kind of network, its learning rate, width and steps an epoch times a factor each.

    Factors are log-uniform up to those of REPARAMETRISED, either way; no instance becomes one that is only held out.
    The task must have these parameters.
    """
    row, others = task(instance.task), dict(instance.parameters)
    complete = row.complete(others)
    while True:
        for name, most in REPARAMETRISED.items():
            spec, factor = row.parameters[name], np.exp(rng.uniform(-np.log(most), np.log(most)))
            value = float(np.clip(float(complete[name]) * factor, spec.low, spec.high))
            others[name] = float(f"{value:.2g}") if spec.kind == "float" else round(value)
        if complete["host"] in OVER_TOKENS:
            others["width"] = int(others["width"]) + int(others["width"]) % 2
        if held_out_only(others) == held_out_only(complete):
            return Instance.of(instance.task, others)


def covering() -> tuple[Instance, ...]:
    """Hosts that between them have as many slots, and are offered as many blueprints, as any."""
    largest = {"depth": MOST_SLOTS, "slots": MOST_SLOTS, "width": 4}
    return tuple(Instance.of("drawn_sequences", {**largest, "host": kind}) for kind in HOST_KINDS)


# The network


def _host(rng: np.random.Generator, kind: str, *, large: bool) -> Parameters:
    low, high = _WIDTHS[kind]
    if kind == "conv" and not large:  # a convolution of pictures costs the most
        high = _TRAINED_WIDTHS[kind]
    width, depth = _log_uniform(rng, low, high), int(rng.integers(1, _DEPTHS[kind] + 1))
    norms = ("layer", "layer", "none") if kind in OVER_TOKENS else ("layer", "layer", "batch", "none")
    host: Parameters = {
        "host": kind,
        "width": width + width % 2 if kind in OVER_TOKENS else width,
        "depth": depth,
        "slots": int(rng.integers(1, depth + 1)),
        "norm": str(rng.choice(norms)),
    }
    if kind != "mlp":
        host["pool"] = str(rng.choice(("mean", "max")))
    if kind == "conv":
        host["kernel"] = int(rng.choice((1, 3, 3, 5)))
    return host


def _training(rng: np.random.Generator, kind: str, *, quantity: bool) -> Parameters:
    optimiser = str(rng.choice(("adam", "adamw", "sgd")))
    low, high = (0.02, 0.1) if optimiser == "sgd" else (0.003, 0.012)
    rate = float(np.exp(rng.uniform(np.log(low), np.log(high)))) * (0.5 if kind in OVER_TOKENS else 1.0)
    if quantity and optimiser == "sgd":
        rate *= 0.25  # gradients of a squared error have no bound: deep hosts diverge at more
    return {
        "optimiser": optimiser,
        "lr": float(f"{rate:.2g}"),
        "schedule": str(rng.choice(("constant", "cosine", "one_cycle"))),
    }


# The data


def _series(rng: np.random.Generator) -> Parameters:
    classes = 10 if rng.random() < 0.5 else int(rng.integers(3, 10))
    return {
        "size": _log_uniform(rng, 500, 4000),
        "noise": _noise(rng, 0.4),
        "classes": classes,
        **_order(rng),
    }


def _digits(rng: np.random.Generator) -> Parameters:
    return {"size": _log_uniform(rng, 200, 1000), "noise": _noise(rng, 0.4), **_order(rng)}


def _tables(rng: np.random.Generator) -> Parameters:
    return {**_functions(rng), "noise": _noise(rng, 0.4), "classes": int(rng.integers(2, 7))}


def _functions(rng: np.random.Generator) -> Parameters:
    return {
        "shape": str(rng.choice(SHAPES)),
        "features": int(rng.integers(4, 17)),
        "size": _log_uniform(rng, 300, 4000),
        "noise": _noise(rng, 0.8),
    }


def _pictures(rng: np.random.Generator) -> Parameters:
    return {
        "classes": int(rng.integers(3, FIGURE_CLASSES + 1)),
        "clutter": round(float(rng.uniform(0.1, 0.6)), 2),
        "size": _log_uniform(rng, 400, 4000),
        "noise": _noise(rng, 0.4),
        **_order(rng),
    }


def _sequences(rng: np.random.Generator) -> Parameters:
    return {
        "rule": str(rng.choice(RULES)),
        "classes": int(rng.integers(3, MOST_SEQUENCE_CLASSES + 1)),
        "size": _log_uniform(rng, 400, 4000),
        "noise": _noise(rng, 0.4),
    }


def _order(rng: np.random.Generator) -> Parameters:
    """Positions in order, some of them shuffled, or all; in order half of the time."""
    shuffled = (0.0, 0.0, round(float(rng.uniform(0.1, 0.9)), 2), 1.0)[int(rng.integers(4))]
    return {"shuffled": shuffled}


def _noise(rng: np.random.Generator, most: float) -> float:
    """None in a third of the cases."""
    return 0.0 if rng.random() < 1 / 3 else round(float(rng.uniform(0.0, most)), 2)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


_DATA: dict[str, Callable[[np.random.Generator], Parameters]] = {
    "drawn_series": _series,
    "drawn_digits": _digits,
    "drawn_tables": _tables,
    "drawn_functions": _functions,
    "drawn_pictures": _pictures,
    "drawn_sequences": _sequences,
}
