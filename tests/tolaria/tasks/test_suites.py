"""Suites: what is drawn, and what is kept away from the draws."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest

from esper.tolaria.data.targets import SHIFTS
from esper.tolaria.tasks import Instance, all_tasks, suite, suite_names, task
from esper.tolaria.tasks.adapt import BASES, DRAWN_SHIFTS, HELD_OUT_SHIFTS, of_other_shift
from esper.tolaria.tasks.adapt_stream import lora_share, meets_other_shift, targets_of
from esper.tolaria.tasks.backbone import BACKBONES
from esper.tolaria.tasks.drawn import (
    REPARAMETRISED,
    held_out_only,
    in_corner,
    of_other_kind,
    of_other_size,
    reparametrised,
)
from esper.tolaria.tasks.plans import Change
from esper.tolaria.tasks.stream import CHANGES, phases_of
from held_out import generate_held_out


def draws(name: str, count: int = 600) -> list[Instance]:
    rng = np.random.default_rng(0)
    return [suite(name).draw(rng) for _ in range(count)]


def parameters(instance: Instance) -> dict[str, int | float | str]:
    defaults: dict[str, int | float | str] = {
        "size": 4000,
        "noise": 0.0,
        "shuffled": 0.0,
        "permutation": 0,
        "data": 0,
    }
    return defaults | dict(instance.parameters)


def test_the_names_and_an_unknown_one() -> None:
    assert suite_names() == (
        "cpu",
        "shift",
        "stream",
        "hosts",
        "adapt",
        "adapt_stream",
        "backbone",
        "digits",
        "mnist1d",
    )
    assert all(suite(name).name == name for name in suite_names())
    with pytest.raises(
        ValueError, match="no suite is named 'gpu'; there are cpu, shift, stream, hosts, adapt, adapt_stream"
    ):
        suite("gpu")


def test_the_frozen_list_is_what_the_documented_function_makes() -> None:
    made = generate_held_out()
    for name, count in {"cpu": 24, "shift": 24, "stream": 60}.items():
        assert [str(instance) for instance in suite(name).held_out] == made[name]
        assert len(set(made[name])) == count


def test_the_frozen_hosts_have_samples_of_their_own_and_what_is_never_drawn() -> None:
    assert [str(instance) for instance in suite("hosts").held_out] == generate_held_out()["hosts"]
    drawn, held_out = (
        [dict(instance.parameters) for instance in some]
        for some in (draws("hosts", 400), suite("hosts").held_out)
    )
    assert len(held_out) == len({row["data"] for row in held_out}) == 200
    assert min(int(row["data"]) for row in held_out) > max(int(row["data"]) for row in drawn)
    assert not any(map(held_out_only, drawn))
    assert sum(map(of_other_kind, held_out)) > 30
    assert sum(map(of_other_size, held_out)) > 30
    assert sum(map(in_corner, held_out)) > 5
    assert sum(not held_out_only(row) for row in held_out) > 60
    for rows, kinds in (
        (drawn, {"mlp", "conv", "attention"}),
        (held_out, {"mlp", "conv", "attention", "mixer"}),
    ):
        assert {row.get("host", "mlp") for row in rows} == kinds
    permutations = [
        {int(row["permutation"]) for row in rows if "permutation" in row} for rows in (drawn, held_out)
    ]
    assert max(permutations[0]) < 100_000 < 1_000_000 <= min(permutations[1])


def test_half_of_the_frozen_targets_have_shifts_that_are_never_drawn() -> None:
    held_out = [dict(instance.parameters) for instance in suite("adapt").held_out]
    assert [str(instance) for instance in suite("adapt").held_out] == generate_held_out()["adapt"]
    assert len({row["data"] for row in held_out}) == 200
    drawn = [dict(instance.parameters) for instance in draws("adapt", 400)]
    assert min(int(row["data"]) for row in held_out) > max(int(row["data"]) for row in drawn)
    assert not any(map(of_other_shift, drawn))
    assert {row["shift"] for row in held_out if of_other_shift(row)} == set(HELD_OUT_SHIFTS)
    assert sum(map(of_other_shift, held_out)) == 100
    for rows in (drawn, held_out):
        assert {row.get("base", "series_batch") for row in rows} == set(BASES)
        assert {row.get("shift", "noise") for row in rows} >= set(DRAWN_SHIFTS)
        assert 0.2 < sum("noise" in row for row in rows) / len(rows) < 0.45


def test_targets_that_follow_one_another_change_something_else() -> None:
    drawn, held_out = draws("adapt_stream", 200), suite("adapt_stream").held_out
    assert [str(instance) for instance in held_out] == generate_held_out()["adapt_stream"]
    lives = [
        targets_of(task("adapt_stream").complete(dict(instance.parameters)))
        for instance in (*drawn, *held_out)
    ]
    for life in lives:
        assert all(one.group != other.group for (_, one), (_, other) in pairwise(life))
        ends = [*(start for start, _ in life), 120]
        assert all(late - early >= 12 for early, late in pairwise(ends))
    assert {len(life) - 1 for life in lives[:200]} == set(range(3, 9))
    groups = [target.group for life in lives[:200] for _, target in life]
    assert all(
        0.1 < groups.count(group) / len(groups) < 0.3 for group in {kind.group for kind in SHIFTS.values()}
    )
    assert 0.3 < sum("return" in instance.changes for instance in drawn) / 200 < 0.9


def test_half_of_the_frozen_streams_of_targets_have_shifts_that_are_never_drawn() -> None:
    drawn = [dict(instance.parameters) for instance in draws("adapt_stream", 200)]
    held_out = [dict(instance.parameters) for instance in suite("adapt_stream").held_out]
    assert not any(map(meets_other_shift, drawn))
    assert [meets_other_shift(row) for row in held_out] == [False, True] * 30
    assert min(int(row["data"]) for row in held_out) > max(int(row["data"]) for row in drawn)
    for rows in (drawn, held_out):
        assert {row.get("base", "series_batch") for row in rows} == set(BASES)
        assert all(100 <= int(row.get("size", 200)) <= 300 for row in rows)
        assert all(0.1 <= float(row["noise"]) <= 0.4 for row in rows)
    for row in drawn:
        share = float(row.get("cap", 0.25)) / lora_share(BASES[str(row.get("base", "series_batch"))])
        assert min(abs(share - cap) for cap in (0.4, 0.7, 1.0)) < 0.01


def test_half_of_the_frozen_targets_of_backbones_have_shifts_that_are_never_drawn() -> None:
    held_out = [dict(instance.parameters) for instance in suite("backbone").held_out]
    assert [str(instance) for instance in suite("backbone").held_out] == generate_held_out()["backbone"]
    drawn = [dict(instance.parameters) for instance in draws("backbone", 300)]
    assert not any(map(of_other_shift, drawn))
    assert [of_other_shift(row) for row in held_out] == [False, True] * 12
    assert min(int(row["data"]) for row in held_out) > max(int(row["data"]) for row in drawn)
    for rows in (drawn, held_out):
        assert {row.get("backbone", "mobilenet_v2") for row in rows} == set(BACKBONES)
        assert all("size" not in row and "noise" not in row for row in rows)
    texts = [row for row in drawn if row.get("backbone") == "minilm"]
    assert {row["samples"] for row in texts} == {"tweets", "products", "films", "editorials"}
    assert {row.get("shift", "none") for row in texts} == {"none", "noise"}
    assert max(float(row["amount"]) for row in texts if "amount" in row) <= 0.3


def test_draws_of_hosts_fill_their_ranges() -> None:
    rows = draws("hosts", 400)
    assert {row.task for row in rows} == {row.name for row in all_tasks() if row.name.startswith("drawn_")}
    chosen = [dict(row.parameters) for row in rows]
    assert {row.get("slots", 1) for row in chosen} == set(range(1, 7))
    assert {row.get("depth", 3) for row in chosen} == set(range(1, 7))
    for name, default, values in (
        ("norm", "layer", {"layer", "batch", "none"}),
        ("pool", "mean", {"mean", "max"}),
        ("kernel", 3, {1, 3, 5}),
        ("optimiser", "adam", {"adam", "adamw", "sgd"}),
        ("schedule", "constant", {"constant", "cosine", "one_cycle"}),
    ):
        assert {row.get(name, default) for row in chosen} == values


def test_reparametrised_hosts_are_the_same_but_for_what_is_drawn() -> None:
    rng, plain = np.random.default_rng(0), draws("hosts", 300)
    other = [reparametrised(instance, rng) for instance in plain]
    ratios: dict[str, list[float]] = {name: [] for name in REPARAMETRISED}
    for before, after in zip(plain, other, strict=True):
        old, new = (task(each.task).complete(dict(each.parameters)) for each in (before, after))
        assert {name for name in old if old[name] != new[name]} <= set(REPARAMETRISED)
        assert held_out_only(new) is False
        for name, found in ratios.items():
            found.append(float(new[name]) / float(old[name]))
        assert after.row.steps_per_epoch == new["steps"]
        assert after.row.optimiser.lr == new["lr"]
    for name, most in REPARAMETRISED.items():
        drawn = np.array(ratios[name])
        slack = 1.35 if name == "width" else 1.06  # whole numbers, even ones for tokens; two digits
        assert most / 1.1 < drawn.max() <= most * slack
        assert 1 / (most * slack) <= drawn.min() < 1.1 / most
        assert abs(np.median(np.log(drawn))) < 0.2
    assert reparametrised(plain[0], np.random.default_rng(5)) == reparametrised(
        plain[0], np.random.default_rng(5)
    )


def test_parameters_stay_in_their_ranges_when_they_are_drawn_anew() -> None:
    edge = Instance.of("drawn_tables", {"lr": 10.0, "steps": 1, "width": 2, "host": "attention"})
    for seed in range(20):
        new = task(edge.task).complete(dict(reparametrised(edge, np.random.default_rng(seed)).parameters))
        assert (float(new["lr"]) <= 10.0, int(new["steps"]) >= 1, int(new["width"]) % 2) == (True, True, 0)


@pytest.mark.parametrize("name", suite_names())
def test_the_same_generator_draws_the_same_instances(name: str) -> None:
    assert draws(name, 20) == draws(name, 20)


@pytest.mark.parametrize("name", ["cpu", "shift"])
def test_draws_never_meet_what_is_held_out(name: str) -> None:
    drawn = [parameters(instance) for instance in draws(name)]
    held_out = [parameters(instance) for instance in suite(name).held_out]
    assert not any(in_corner(each) for each in drawn)
    assert sum(in_corner(each) for each in held_out) == 8
    samples = [{int(each["data"]) for each in some} for some in (drawn, held_out)]
    assert len(samples[0]) == len(drawn)  # no two draws share their samples
    assert samples[1] == {1}
    assert min(samples[0]) > 1
    seeds = [{each["permutation"] for each in some if each["shuffled"]} for some in (drawn, held_out)]
    assert max(map(int, seeds[0])) < 100_000 < 1_000_000 <= min(map(int, seeds[1]))


def test_cpu_draws_fill_their_ranges() -> None:
    drawn = draws("cpu")
    assert {instance.task for instance in drawn} == {"mnist1d"}  # digits are for judging
    series = [parameters(instance) for instance in drawn]
    sizes = np.array([int(each["size"]) for each in series])
    noises = np.array([float(each["noise"]) for each in series])
    assert sizes.min() < 520
    assert sizes.max() > 3850
    assert 1200 < np.median(sizes) < 1700  # log-uniform, and a corner of small ones cut out
    assert noises.min() < 0.01
    assert noises.max() > 0.39
    shares = [float(each["shuffled"]) for each in series]
    for count in (shares.count(0.0), shares.count(1.0), sum(0 < share < 1 for share in shares)):
        assert 0.25 < count / len(shares) < 0.42
    assert {each.get("classes", 10) for each in series} == set(range(3, 11))


def test_shift_draws_every_kind_at_many_epochs() -> None:
    drawn = [dict(instance.parameters) for instance in draws("shift")]
    kinds = [each.get("kind", "classes") for each in drawn]
    assert all(kinds.count(kind) > 150 for kind in ("shuffle", "classes", "noise"))
    assert {each.get("change", 10) for each in drawn} == set(range(5, 16))


def stream_regimes(instance: Instance) -> list[tuple[int, bool]]:
    """(first epoch, whether growth pays) of each regime of a stream; a state between the two is refused."""
    found: list[tuple[int, bool]] = []
    for start, state in phases_of(task("stream").complete(dict(instance.parameters))):
        (pays,) = {state.shuffled >= 0.8, state.noise <= 0.08}
        assert pays or (state.shuffled == 0.0 and state.noise >= 0.25)
        if not found or found[-1][1] != pays:
            found.append((start, pays))
    return found


def test_streams_move_between_regimes_that_last() -> None:
    drawn, held_out = draws("stream", 200), suite("stream").held_out
    lives = [stream_regimes(instance) for instance in (*drawn, *held_out)]
    switches = [len(life) - 1 for life in lives]
    assert set(switches[:200]) == {2, 3, 4}
    assert set(switches[200:240]) == {2, 3, 4}
    assert set(switches[240:]) == {5, 6}
    for life in lives:
        ends = [*(start for start, _ in life), 100]
        assert all(late - early >= 12 for early, late in pairwise(ends))
    assert 80 < sum(life[0][1] for life in lives[:200]) < 120  # either may come first


def test_the_number_of_samples_does_not_tell_the_regime() -> None:
    """A rule that grows where samples are many must not be right by that alone."""
    lives = [
        [state for _, state in phases_of(task("stream").complete(dict(instance.parameters)))]
        for instance in draws("stream", 300)
    ]
    samples = np.array([state.samples for life in lives for state in life])
    pays = np.array([state.shuffled >= 0.8 for life in lives for state in life])
    assert 900 <= samples.min() < 950 < 2850 < samples.max() <= 3000
    assert abs(np.corrcoef(np.log(samples), pays)[0, 1]) < 0.08
    assert 0.15 < np.mean([len({state.samples for state in life}) > 1 for life in lives]) < 0.6


def test_stream_draws_keep_kinds_of_changes_and_permutations_for_the_held_out() -> None:
    def plans(some: Iterable[Instance]) -> list[list[Change]]:
        return [list(CHANGES.parse(str(dict(instance.parameters)["plan"]))) for instance in some]

    drawn, held_out = plans(draws("stream", 200)), plans(suite("stream").held_out)
    assert {change.kind for plan in drawn for change in plan} == set(CHANGES.names) - {"corrupt"}
    assert sum(any(change.kind == "corrupt" for change in plan) for plan in held_out) == 20
    for plan in drawn + held_out:
        epochs = [0, *sorted({change.epoch for change in plan}), 100]
        assert all(late - early >= 5 for early, late in pairwise(epochs))
    permutations = [
        {int(parameters(instance)["permutation"]) for instance in some}
        for some in (draws("stream", 200), suite("stream").held_out)
    ]
    assert max(permutations[0]) < 100_000 < 1_000_000 <= min(permutations[1])


def test_unshuffled_draws_carry_no_idle_permutation() -> None:
    for instance in draws("cpu", 100):
        chosen = dict(instance.parameters)
        assert ("permutation" in chosen) == bool(chosen.get("shuffled"))


@pytest.mark.parametrize("name", ["cpu", "shift"])
def test_draws_and_held_out_cases_load(name: str) -> None:
    for instance in (*draws(name, 4), *suite(name).held_out[:3]):
        data = instance.load()
        assert len(data.phases) == (2 if name == "shift" else 1)
        assert 500 <= len(data.phases[-1].train) <= 4000


def test_trivial_suites() -> None:
    rng = np.random.default_rng(0)
    assert suite("digits").draw(rng) == Instance("digits")
    assert suite("mnist1d").draw(rng) == Instance("mnist1d")
    assert suite("mnist1d").held_out == (Instance.parse("mnist1d:data=1"),)
