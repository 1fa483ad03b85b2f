"""Tasks whose instances choose the host: the row of an instance is what its parameters say."""

import pickle

import pytest
import torch

from esper.kasmina.hosts import DrawnHost
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Instance, ParameterError, all_tasks, task
from esper.tolaria.tasks.drawn import MOST_SLOTS, slot_names

NAMES = tuple(row.name for row in all_tasks() if row.name.startswith("drawn_"))
CASE = "drawn_series:depth=4,host=conv,kernel=5,lr=0.02,norm=batch,optimiser=sgd,schedule=one_cycle,slots=2,width=6"


def test_slots_are_spread_evenly_and_the_last_block_has_one() -> None:
    assert slot_names(1, 1) == ("blocks.0",)
    assert slot_names(8, 8) == tuple(f"blocks.{place}" for place in range(8))
    assert slot_names(5, 2) == ("blocks.1", "blocks.4")
    assert slot_names(7, 3) == ("blocks.1", "blocks.3", "blocks.6")


def test_an_instance_makes_its_own_row() -> None:
    instance = Instance.parse(CASE)
    row = instance.row
    host = row.host(instance.load())
    assert isinstance(host, DrawnHost)
    assert len(host.blocks) == 4
    assert host.head.in_features == 6
    assert row.slots == ("blocks.1", "blocks.3")
    assert (row.optimiser.kind, row.optimiser.lr, row.schedule) == ("sgd", 0.02, "one_cycle")
    assert "mixer" in row.blueprints
    assert "mlp" in Instance("drawn_series").row.blueprints
    assert task("drawn_series").slots == Instance("drawn_series").row.slots
    assert task("mnist1d").tailored({"size": 700}) is task("mnist1d")


def test_a_tailored_row_is_pickled_with_its_parameters() -> None:
    row = pickle.loads(pickle.dumps(Instance.parse(CASE).row))
    assert row.settings() == Instance.parse(CASE).row.settings()
    assert pickle.loads(pickle.dumps(task("drawn_series"))) is task("drawn_series")


def test_the_engine_trains_the_host_of_the_instance() -> None:
    population = Population(1)
    host = population.begin(0, CASE, seed=0)
    assert host.slot_config.slot_ids == ("blocks.1", "blocks.3")
    assert isinstance(host.optimizer, torch.optim.SGD)
    assert torch.isfinite(population.train_epoch().loss).all()
    assert host.optimizer.param_groups[0]["lr"] < 0.02


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_host_grows_on_every_task(name: str) -> None:
    population = Population(1)
    for kind in ("mlp", "conv", "mixer", "attention"):
        if kind == "conv" and name in ("drawn_tables", "drawn_functions"):
            continue
        case = f"{name}:depth={MOST_SLOTS},host={kind},slots={MOST_SLOTS},width=4"
        host = population.begin(0, case, seed=0)
        offered = [{card.name for card in cards} for cards in host.cards.values()]
        assert len(offered) == MOST_SLOTS
        assert all(names == set(Instance.parse(case).row.blueprints) for names in offered)


def test_keys_of_the_cache_tell_hosts_and_schedules_apart() -> None:
    changed = (
        "width=7",
        "kernel=3",
        "schedule=cosine",
        "slots=3",
        "norm=none",
        "lr=0.01",
        "pool=max",
        "steps=9",
    )
    parts = dict(part.split("=") for part in CASE.partition(":")[2].split(","))
    cases = [CASE, *(_written(parts | dict([change.split("=")])) for change in changed)]
    assert len({Instance.parse(case).fingerprint() for case in cases}) == len(cases)
    assert Instance.parse(CASE).fingerprint() == Instance.parse(CASE).fingerprint()


def _written(parts: dict[str, str]) -> str:
    return "drawn_series:" + ",".join(f"{name}={value}" for name, value in parts.items())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("drawn_series:slots=4", "slots must be at most depth, which is 3, not 4"),
        ("drawn_series:pool=max", "pool is not read with host=mlp; it is 'max'"),
        ("drawn_series:host=mixer,kernel=5", "kernel is not read with host=mixer; it is 5"),
        ("drawn_digits:host=attention,width=7", "width must be even"),
        ("drawn_pictures:host=attention,norm=batch", "norm must be layer or none"),
        ("drawn_tables:host=conv", "a table, which has no positions, not conv"),
        ("drawn_sequences:depth=9", "depth must be a whole number from 1 to 8, not 9"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(case: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Instance.parse(case)
