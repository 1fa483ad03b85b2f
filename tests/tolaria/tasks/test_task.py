"""The table of tasks and what a row refuses."""

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from esper.tolaria.tasks import Instance, OptimiserSpec, Task, all_tasks, forget, register, task


@pytest.fixture
def row() -> Iterator[Task]:
    yield register(replace(task("digits"), name="mine"))
    forget("mine")


def test_a_row_is_registered_once_and_found_by_name(row: Task) -> None:
    assert task("mine") is row
    assert row in all_tasks()
    assert len(Instance("mine").load().test) == 797
    with pytest.raises(ValueError, match="a task named 'mine' is registered already"):
        register(replace(row, epochs=3))


def test_an_unknown_name_lists_what_exists() -> None:
    for look in (task, forget):
        with pytest.raises(ValueError, match=r"no task is named 'nothing'; there are digits, mnist1d, shift"):
            look("nothing")


def test_rows_are_pickled_by_name(row: Task) -> None:
    assert pickle.loads(pickle.dumps(row)) is row


def test_loading_fills_in_defaults_and_checks() -> None:
    assert len(task("mnist1d").data({"size": 700}).phases[0].train) == 700
    with pytest.raises(ValueError, match=r"mnist1d.size must be a whole number from 500 to 4000, not 4001"):
        task("mnist1d").data({"size": 4001})


def test_a_row_made_from_another_checks_by_its_own_parameters() -> None:
    row = task("mnist1d")
    smaller = replace(row.parameters["size"], default=600, high=900)
    made = replace(row, name="mine", parameters={**row.parameters, "size": smaller})
    assert len(made.data({}).phases[0].train) == 600
    with pytest.raises(ValueError, match=r"mine.size must be a whole number from 500 to 900, not 1000"):
        made.data({"size": 1000})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a:b"}, "Task.name must be letters.*'a:b'"),
        ({"name": ""}, "Task.name"),
        ({"batch": 0}, "batch must be a whole number >= 1, not 0"),
        ({"epochs": 1.5}, "epochs must be a whole number >= 1, not 1.5"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"rent": -0.1}, "rent must be a finite number >= 0, not -0.1"),
        ({"rent": float("nan")}, "rent must be"),
        ({"clip_host": 0.0}, "clip_host must be a finite number > 0"),
        ({"seed_lr_multiplier": float("inf")}, "seed_lr_multiplier"),
        ({"isolation_penalty": None}, "isolation_penalty"),
        ({"slots": "blocks.*"}, r"slots must be a tuple of names, not 'blocks.\*'"),
        ({"blueprints": ()}, "blueprints must be a tuple"),
        ({"precision": "fp16"}, "precision must be fp32 or bf16, not 'fp16'"),
    ],
)
def test_a_row_refuses_bad_fields(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(task("digits"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lr": 0.0}, "lr must be a finite number > 0, not 0.0"),
        ({"lr": 1e-3, "weight_decay": -1.0}, "weight_decay must be a finite number >= 0"),
        ({"lr": 1e-3, "kind": "lion"}, "kind must be sgd, adam or adamw, not 'lion'"),
    ],
)
def test_an_optimiser_refuses_bad_fields(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OptimiserSpec(**fields)  # type: ignore[arg-type]


def test_growing_takes_its_weights_from_the_seed_alone_and_moves_nobodys_randomness() -> None:
    row, data = task("mnist1d"), Instance("mnist1d").load()
    torch.default_generator.manual_seed(5)
    before = torch.get_rng_state()
    first = row.grow(data, seed=3, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(11)
    again, other = row.grow(data, seed=3, device="cpu"), row.grow(data, seed=4, device="cpu")
    weights = [next(model.parameters()) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert (first.growth_seed, other.growth_seed) == (3, 4)


def test_the_host_of_the_design_has_its_parameters_and_slots() -> None:
    model = task("mnist1d").grow(Instance("mnist1d").load(), seed=0, device="cpu")
    assert model.host_parameters == 1426
    assert model.slot_config.slot_ids == ("blocks.0", "blocks.1", "blocks.2")
