"""The tasks whose instances choose the host too: its kind, size, norm and slots, and how it is trained.

    drawn_series:depth=4,host=attention,lr=0.004,schedule=cosine,shuffled=1.0,slots=2,width=16

Data are small and are generated, or come with scikit-learn, so that a run of 20 epochs takes seconds on one core.

The suite `hosts` draws a network, how it is trained, and its data, so that what and where to grow differ. Some kinds
and sizes of hosts, and the corner of few samples with many wrong labels, are never drawn to train on: they are in the
held-out list at the share that they have in the ranges.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, cast, get_args

import numpy as np
from torch import nn

from esper.kasmina.hosts.drawn import OVER_TOKENS, DrawnHost, HostShape, Kind, Norm, Pool
from esper.tolaria.data import Phase, SealedTest, Split, TaskData, drawn
from esper.tolaria.data.drawn import FIGURE_CLASSES, MOST_SEQUENCE_CLASSES, RULES, SHAPES, load_largest
from esper.tolaria.data.mnist1d import mislabel, reordering
from esper.tolaria.data.splits import stratified_splits
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.regression import FLAT_BLUEPRINTS, FUNCTION_PARAMETERS, load_functions
from esper.tolaria.tasks.series import MNIST1D_PARAMETERS, SERIES_BLUEPRINTS, load_mnist1d
from esper.tolaria.tasks.task import (
    Loader,
    OptimiserSpec,
    Parameter,
    ParameterError,
    Parameters,
    ParameterSpec,
    RateSchedule,
    Task,
    task,
)

TOKEN_BLUEPRINTS = ("norm", "attention", "depthwise", "lora", "mlp_small", "mlp", "widen")
MOST_SLOTS = 8
_ADAMW_DECAY, _SGD_DECAY = 0.01, 1e-4
_DIGITS_HELD_OUT, _DIGITS_TESTED = 300, 497
_STEPS = 20

HOST_PARAMETERS: Mapping[str, ParameterSpec] = {
    "host": ParameterSpec(kind="str", default="mlp", choices=get_args(Kind), doc="what its blocks are"),
    "width": ParameterSpec(kind="int", default=16, low=2, high=512, doc="channels of every block"),
    "depth": ParameterSpec(kind="int", default=3, low=1, high=MOST_SLOTS, doc="blocks"),
    "slots": ParameterSpec(
        kind="int", default=1, low=1, high=MOST_SLOTS, doc="blocks with a slot behind them, evenly spread"
    ),
    "norm": ParameterSpec(
        kind="str", default="layer", choices=get_args(Norm), doc="mixer and attention have no batch norm"
    ),
    "pool": ParameterSpec(
        kind="str", default="mean", choices=get_args(Pool), doc="how positions are pooled; an mlp has none"
    ),
    "kernel": ParameterSpec(
        kind="int", default=3, low=1, high=7, doc="positions that a convolution reads along each axis, odd"
    ),
    "optimiser": ParameterSpec(
        kind="str", default="adam", choices=("sgd", "adam", "adamw"), doc="sgd has momentum 0.9"
    ),
    "lr": ParameterSpec(kind="float", default=0.005, low=1e-6, high=10.0, doc="learning rate"),
    "schedule": ParameterSpec(
        kind="str",
        default="constant",
        choices=get_args(RateSchedule),
        doc="how the learning rate goes over the epochs",
    ),
    "steps": ParameterSpec(kind="int", default=_STEPS, low=1, high=10_000, doc="minibatches of an epoch"),
}


def drawn_host(data: TaskData, *, shape: HostShape, vocabulary: int | None = None) -> nn.Module:
    sample = data.phases[0].train.inputs.shape[1:]
    return DrawnHost(shape, tuple(sample), data.classes, vocabulary=vocabulary)


def check_host(parameters: Mapping[str, Parameter]) -> None:
    """Raise ParameterError where the parameters of a host do not go together."""
    kind, depth, slots = parameters["host"], int(parameters["depth"]), int(parameters["slots"])
    if slots > depth:
        raise ParameterError(f"slots must be at most depth, which is {depth}, not {slots}")
    idle = (("pool", "mean", kind == "mlp"), ("kernel", 3, kind != "conv"))
    for name, default, is_idle in idle:
        if is_idle and parameters[name] != default:
            raise ParameterError(f"{name} is not read with host={kind}; it is {parameters[name]!r}")
    try:
        host_shape(parameters)
    except ValueError as error:
        raise ParameterError(str(error)) from None


def check_flat_host(parameters: Mapping[str, Parameter]) -> None:
    """The same for samples that are vectors."""
    check_host(parameters)
    if parameters["host"] == "conv":
        raise ParameterError(
            "host must be mlp, mixer or attention for a table, which has no positions, not conv"
        )


def host_shape(parameters: Mapping[str, Parameter]) -> HostShape:
    """The host that parameters describe."""
    return HostShape(
        kind=cast(Kind, parameters["host"]),
        width=int(parameters["width"]),
        depth=int(parameters["depth"]),
        norm=cast(Norm, parameters["norm"]),
        pool=cast(Pool, parameters["pool"]),
        kernel=int(parameters["kernel"]),
    )


def slot_names(depth: int, slots: int) -> tuple[str, ...]:
    """So many of the blocks, evenly spread; the last is always one of them."""
    return tuple(f"blocks.{place * depth // slots - 1}" for place in range(1, slots + 1))


def with_host(row: Task, parameters: Mapping[str, Parameter], *, vocabulary: int | None = None) -> Task:
    """The row with the host and the training that these parameters choose."""
    shape = host_shape(parameters)
    kind = cast(Literal["sgd", "adam", "adamw"], parameters["optimiser"])
    decay = {"adamw": _ADAMW_DECAY, "sgd": _SGD_DECAY}.get(kind, 0.0)
    blueprints = {"mlp": FLAT_BLUEPRINTS, "conv": SERIES_BLUEPRINTS}.get(shape.kind, TOKEN_BLUEPRINTS)
    return replace(
        row,
        host=partial(drawn_host, shape=shape, vocabulary=vocabulary),
        slots=slot_names(shape.depth, int(parameters["slots"])),
        blueprints=blueprints,
        optimiser=OptimiserSpec(kind=kind, lr=float(parameters["lr"]), weight_decay=decay),
        schedule=cast(RateSchedule, parameters["schedule"]),
        steps_per_epoch=int(parameters["steps"]),
    )


# Data


def load_drawn_digits(parameters: Mapping[str, Parameter]) -> TaskData:
    """Scikit-learn's digits as pictures of 8 x 8, split anew by `data`."""
    from sklearn import datasets  # a second's import that few tasks need

    digits = datasets.load_digits()
    size, data = int(parameters["size"]), int(parameters["data"])
    order = reordering(float(parameters["shuffled"]), int(parameters["permutation"]), 64)
    pixels = (digits.data / 16).astype(np.float32)[:, order].reshape(-1, 1, 8, 8)
    labels = digits.target.astype(np.int64)
    known, held_out, tested = stratified_splits(labels, (size, _DIGITS_HELD_OUT, _DIGITS_TESTED), seed=data)
    noisy = mislabel(labels[known], float(parameters["noise"]), 10, data)
    validation, test = (Split.from_arrays(pixels[part], labels[part]) for part in (held_out, tested))
    phase = Phase(0, Split.from_arrays(pixels[known], noisy), validation)
    return TaskData((phase,), SealedTest(test), classes=10)


def load_drawn_tables(parameters: Mapping[str, Parameter]) -> TaskData:
    return load_largest(
        shape=str(parameters["shape"]),
        features=int(parameters["features"]),
        classes=int(parameters["classes"]),
        size=int(parameters["size"]),
        noise=float(parameters["noise"]),
        data=int(parameters["data"]),
    )


def load_drawn_pictures(parameters: Mapping[str, Parameter]) -> TaskData:
    return drawn.load_shapes(
        classes=int(parameters["classes"]),
        size=int(parameters["size"]),
        noise=float(parameters["noise"]),
        clutter=float(parameters["clutter"]),
        shuffled=float(parameters["shuffled"]),
        permutation=int(parameters["permutation"]),
        data=int(parameters["data"]),
    )


def load_drawn_sequences(parameters: Mapping[str, Parameter]) -> TaskData:
    return drawn.load_sequences(
        rule=str(parameters["rule"]),
        classes=int(parameters["classes"]),
        size=int(parameters["size"]),
        noise=float(parameters["noise"]),
        data=int(parameters["data"]),
    )


_SIZE = ParameterSpec(kind="int", default=2000, low=200, high=4000, doc="training samples")
_NOISE = MNIST1D_PARAMETERS["noise"]
_DATA = ParameterSpec(kind="int", default=0, low=0, doc="seed of the generated samples")
_PIXELS: Mapping[str, ParameterSpec] = {
    "shuffled": ParameterSpec(
        kind="float", default=0.0, low=0.0, high=1.0, doc="share of the pixels that change places"
    ),
    "permutation": ParameterSpec(kind="int", default=0, low=0, doc="seed of which pixels go where"),
}


def _classes(most: int) -> ParameterSpec:
    return ParameterSpec(kind="int", default=5, low=2, high=most, doc="how many classes there are")


def _row(
    name: str,
    summary: str,
    load: Loader,
    parameters: Mapping[str, ParameterSpec],
    *,
    vocabulary: int | None = None,
    flat: bool = False,
) -> Task:
    """A row with the default host, which the parameters of an instance replace."""
    row = Task(
        name=name,
        summary=summary,
        host=partial(drawn_host, shape=HostShape(kind="mlp", width=16, depth=3), vocabulary=vocabulary),
        slots=("blocks.2",),
        blueprints=FLAT_BLUEPRINTS,
        load=load,
        parameters={**HOST_PARAMETERS, **parameters},
        check=check_flat_host if flat else check_host,
        tailor=partial(with_host, vocabulary=vocabulary),
        optimiser=OptimiserSpec(lr=0.005),
        batch=32,
        steps_per_epoch=_STEPS,
        epochs=20,
    )
    return replace(row.tailored({}), chosen=None)


ROWS = (
    _row("drawn_series", "MNIST-1D, with a host of your choice", load_mnist1d, MNIST1D_PARAMETERS),
    _row(
        "drawn_digits",
        "8 x 8 handwritten digits as pictures, with a host of your choice; they come with scikit-learn",
        load_drawn_digits,
        {
            "size": replace(_SIZE, default=700, high=1000),
            "noise": _NOISE,
            **_PIXELS,
            "data": replace(_DATA, doc="seed of what is trained and tested on"),
        },
    ),
    _row(
        "drawn_tables",
        "which of several drawn functions is largest, with a host of your choice",
        load_drawn_tables,
        {**FUNCTION_PARAMETERS, "noise": _NOISE, "classes": _classes(8)},
        flat=True,
    ),
    _row(
        "drawn_functions",
        "a drawn function of several numbers, to be predicted, with a host of your choice",
        load_functions,
        FUNCTION_PARAMETERS,
        flat=True,
    ),
    _row(
        "drawn_pictures",
        "figures somewhere on a canvas of 12 x 12, with a host of your choice",
        load_drawn_pictures,
        {
            "size": _SIZE,
            "noise": _NOISE,
            "classes": _classes(drawn.FIGURE_CLASSES),
            "clutter": ParameterSpec(
                kind="float", default=0.3, low=0.0, high=2.0, doc="deviation of the noise on the canvas"
            ),
            **_PIXELS,
            "data": _DATA,
        },
    ),
    _row(
        "drawn_sequences",
        "sequences of 24 tokens, told apart as texts are, with a host of your choice",
        load_drawn_sequences,
        {
            "rule": ParameterSpec(
                kind="str", default="pairs", choices=drawn.RULES, doc="what tells classes apart"
            ),
            "size": _SIZE,
            "noise": _NOISE,
            "classes": _classes(drawn.MOST_SEQUENCE_CLASSES),
            "data": _DATA,
        },
        vocabulary=drawn.VOCABULARY,
    ),
)


# What the suite draws


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
    task = str(rng.choice(tuple(_FAMILIES)))
    data = _FAMILIES[task](rng)
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


_FAMILIES: dict[str, Callable[[np.random.Generator], Parameters]] = {
    "drawn_series": _series,
    "drawn_digits": _digits,
    "drawn_tables": _tables,
    "drawn_functions": _functions,
    "drawn_pictures": _pictures,
    "drawn_sequences": _sequences,
}
