"""Coalitions that were measured side by side are checked: when, what counts as the same, and what is found so."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.grower.losses import Rows
from esper.grower.measuring import measure, measure_each
from esper.grower.sharing import EVERY, Sharing, agree
from esper.grower.validating import LoaderValidation
from esper.kasmina import GrowingModel, GrowthRules, feature_cache
from esper.kasmina.coalitions import plan_coalitions
from esper.kasmina.hosts import MLP
from esper.kasmina.surroundings import surroundings
from esper.leyline import Stage
from grower.test_coalition_passes import WIDTH, Plain, Talking, assert_same_numbers, batches, drawn, grown
from tiny import grow_until


def model_with_seeds() -> GrowingModel:
    host, example = MLP(7, 3, (5, 5)), torch.zeros(2, 7)
    model = esper.wrap(host, ["blocks.*"], example, rules=GrowthRules(max_live_seeds=2))
    grow_until(model, "blocks.0", Stage.HOLDING, "mlp")
    return model


def test_all_are_checked_after_a_change_and_one_in_turn_later() -> None:
    model, sharing = model_with_seeds(), Sharing()
    switched = [[], ["blocks.0"], ["blocks.1"]]
    sharing.begin(model, switched)
    # The first batch and one of another size; a third size is none of the last batch.
    assert [sharing.due(samples, 3) for samples in (8, 8, 3, 5)] == [[1, 2], [], [1, 2], []]
    sharing.begin(model, switched)
    found = [sharing.due(8, 3) for _ in range(4 * EVERY)]
    assert [batch for batch, due in enumerate(found, start=2) if due] == [
        EVERY,
        2 * EVERY,
        3 * EVERY,
        4 * EVERY,
    ]
    assert sorted(due[0] for due in found if due) == [1, 1, 2, 2]

    grow_until(model, "blocks.1", Stage.TRAINING, "mlp")
    sharing.begin(model, switched)
    assert [sharing.due(samples, 3) for samples in (8, 8)] == [[1, 2], []]
    sharing.begin(model, switched[:2])
    assert sharing.due(8, 2) == [1]


def test_losses_are_the_same_to_the_bit() -> None:
    def rows(*losses: float) -> Rows:
        return Rows(torch.tensor(losses), torch.ones(len(losses)))

    assert agree(rows(1.0, math.nan, math.inf), rows(1.0, math.nan, math.inf))
    assert not agree(rows(1.0, 2.0), rows(1.0, math.nan))
    assert not agree(rows(math.inf), rows(-math.inf))
    assert not agree(rows(1.0), rows(math.nextafter(1.0, 2.0) + 1e-7))
    assert not agree(rows(1.0), rows(1.0, 1.0))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda validate: pickle.loads(pickle.dumps(validate))])
def test_a_copy_knows_nothing_of_the_models(copied: Callable[[LoaderValidation], LoaderValidation]) -> None:
    model, validate = model_with_seeds(), LoaderValidation([(torch.zeros(2, 7), torch.zeros(2).long())])
    plan = plan_coalitions(model)
    list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))
    assert model in validate.sharing
    assert len(copied(validate).sharing) == 0
    with torch.no_grad():
        assert copied(validate)(model.eval()) == validate(model)


def test_a_part_that_is_gone_is_not_remembered() -> None:
    sharing = Sharing()
    part = nn.Linear(2, 2)
    sharing.restless[part] = 1
    del part
    assert not len(sharing.restless)


# What no look at the parts shows


class Leaves(Plain):
    """Leaves something where it is not looked for, or just in some calls."""

    left: Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.held: list[Tensor] = []
        self.register_buffer("left", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.way == "data":
            self.left.data.copy_(out.mean(0))
        elif self.way == "storage":
            self.left.data = out.mean(0)
        elif self.way == "helper":
            leave_in_the_file(out.mean(0))
        elif self.way == "stack" or len(x) < 5:
            self.held.append(out.mean(0))
        return out


IN_HELPERS: list[Tensor] = []


def leave_in_the_file(left: Tensor) -> None:
    IN_HELPERS.append(left)


class Takes(Plain):
    """Takes what was left."""

    def __init__(self, source: Leaves) -> None:
        super().__init__()
        self.source = [source]

    def forward(self, x: Tensor) -> Tensor:
        source, out = self.source[0], super().forward(x)
        out = out + source.left + sum(source.held) + sum(IN_HELPERS)
        source.left.data.zero_()
        source.held.clear()
        IN_HELPERS.clear()
        return out


@pytest.mark.parametrize("way", ["data", "storage", "helper", "small batches"])
def test_what_is_not_seen_is_found_by_checks(way: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        leaves = Leaves(way)
        model = grown(Talking([leaves, Plain(), Takes(leaves)]), drawn((5, WIDTH)), "mlp")
    assert_same_numbers(model, LoaderValidation(batches(drawn((5, WIDTH)))), refuted=True)


class Routed(Talking):
    """Calls its first part for small batches only."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.parts[0](x) if len(x) < 5 else x
        for part in (*self.blocks, *self.parts[1:]):
            x = part(x)
        out: Tensor = self.head(x)
        return out


def test_a_part_that_is_called_first_in_a_later_batch_is_looked_at() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        leaves = Leaves("stack")
        model = grown(Routed([leaves, Takes(leaves)]), drawn((5, WIDTH)), "mlp")
    assert_same_numbers(model, LoaderValidation(batches(drawn((5, WIDTH)))))


class Between(Talking):
    """What the part between its blocks leaves in one forward is there in the next."""

    def __init__(self, leaves: Leaves) -> None:
        super().__init__([leaves])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if block is self.blocks[1]:
                x = self.parts[0](x)
        leaves = self.parts[0]
        assert isinstance(leaves, Leaves)
        out: Tensor = self.head(x + leaves.left)
        return out


def test_what_a_seed_does_not_show_at_first_is_found_later() -> None:
    """A part between seeds, spared when a later one is switched, has left what it did when an earlier one was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        leaves = Leaves("data")
        model = grown(Between(leaves), drawn((5, WIDTH)), "mlp")
    seeds = [slot.seed for slot in model.slots.values() if slot.seed is not None]
    scales = [seed.scale.detach().clone() for seed in seeds]
    validate = LoaderValidation(batches(drawn((5, WIDTH)))[:1])
    plan = plan_coalitions(model, fossils=True)

    def measured() -> list[object]:
        return list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))

    with torch.no_grad():
        for seed in seeds:
            seed.scale.zero_()
        measured()
        assert not validate.sharing[model].refuted
        for seed, scale in zip(seeds, scales, strict=True):
            seed.scale.copy_(scale)
    for _ in range(EVERY * len(plan.coalitions)):
        found = measured()
    assert validate.sharing[model].refuted
    assert found == [measure(model, validate, each, weighed=plan.weighed) for each in plan.coalitions]


class Slips(Plain):
    """Holds something that cannot be looked into, or leaves something behind."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.held, list):
            self.held[:] = [x]
        return super().forward(x)


def test_parts_that_are_known_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = [Slips(iter(())), Slips([]), Plain()]
        model = grown(Talking([*parts]), drawn((5, WIDTH)), "mlp")
    looks: list[nn.Module] = []

    def look(module: nn.Module, closed: tuple[type, ...]) -> list[object] | None:
        looks.append(module)
        return surroundings(module, closed)

    monkeypatch.setattr(feature_cache, "surroundings", look)
    validate = LoaderValidation(batches(drawn((5, WIDTH))))
    plan = plan_coalitions(model)
    counts = []
    for _ in range(3):
        looks.clear()
        list(measure_each(model, validate, plan.coalitions, mode=None, weighed=plan.weighed))
        counts.append([looks.count(part) for part in parts])
    # What changed may have been made in a first call; what is closed stays so.
    assert counts == [[1, 2, 2], [0, 2, 2], [0, 0, 2]]


def test_a_grower_says_once_that_it_measures_apart() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        leaves = Leaves("data")
        host = Talking([leaves, Plain(), Takes(leaves)])
    x = drawn((5, WIDTH))
    optimizer = torch.optim.SGD(host.parameters(), lr=0.1)
    grower = esper.Grower(
        host,
        ["blocks.*"],
        optimizer=optimizer,
        example_input=x,
        validate=batches(x),
        controller=esper.rule_policy("schedule", schedule="germinate mlp@0 t=0; advance 0 t=2"),
        epochs=9,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(7):
            optimizer.zero_grad()
            loss = host(x).square().mean()
            loss.backward()
            optimizer.step()
            grower.step(train_loss=loss)
    assert [str(each.message)[:42] for each in told] == ["what each seed contributes came out otherw"]
