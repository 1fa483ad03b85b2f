import pytest

from esper.benchmark.suites import bench_suite, host_seed, subsets
from esper.tolaria.tasks import suite


def test_the_suites_are_the_frozen_lists() -> None:
    cpu = bench_suite("cpu").instances
    assert cpu[:-1] == tuple(str(case) for case in suite("cpu").held_out)
    assert cpu[-1] == "digits"
    assert bench_suite("shift").instances == tuple(str(case) for case in suite("shift").held_out)
    assert bench_suite("mnist1d:noise=0.20").instances == ("mnist1d:noise=0.2",)
    assert len(bench_suite("toy").instances) == 24


def test_a_part_of_a_suite_is_spread_over_it() -> None:
    whole = bench_suite("cpu")
    assert whole.first(None) == whole.first(99) == whole
    part = whole.first(3).instances
    assert part == (whole.instances[0], whole.instances[12], "digits")
    assert len(set(whole.first(10).instances)) == 10
    assert whole.first(1).instances == whole.instances[:1]
    with pytest.raises(ValueError, match="instances is 0"):
        whole.first(0)


@pytest.mark.parametrize("name", ["cpu", "shift", "hosts", "stream", "adapt", "adapt_stream", "toy"])
def test_no_two_hosts_of_a_suite_have_one_seed(name: str) -> None:
    seeds = [host_seed(case, seed) for case in bench_suite(name).instances for seed in (0, 1, 7, 500)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 3_000_000
    assert max(seeds) < 2**31
    with pytest.raises(ValueError, match="seed is 1000"):
        host_seed("digits", 1000)


def test_tables_are_reported_with_and_without_digits_and_by_corner() -> None:
    cpu = bench_suite("cpu").instances
    parts = subsets(cpu)
    assert list(parts) == ["all", "without digits", "inside the training ranges", "held-out corner"]
    assert parts["without digits"] == cpu[:-1]
    assert set(parts["inside the training ranges"]) | set(parts["held-out corner"]) == set(cpu[:-1])
    assert len(parts["held-out corner"]) == 8
    assert list(subsets(bench_suite("shift").instances)) == [
        "all",
        "inside the training ranges",
        "held-out corner",
    ]
    assert list(subsets(bench_suite("hosts").instances)) == [
        "all",
        "inside the training ranges",
        "held-out corner",
        "held-out kind of host",
        "held-out sizes of hosts",
    ]
    adapt = subsets(bench_suite("adapt").instances)
    assert list(adapt) == ["all", "inside the training ranges", "held-out shifts"]
    assert [len(part) for part in adapt.values()] == [200, 100, 100]
    targets = subsets(bench_suite("adapt_stream").instances)
    assert list(targets) == list(adapt)
    assert [len(part) for part in targets.values()] == [60, 30, 30]
    backbone = subsets(bench_suite("backbone").instances)
    assert [len(part) for part in backbone.values()] == [24, 12, 12]
    assert list(backbone) == list(adapt)
    assert list(subsets(("digits",))) == ["all"]
    assert list(subsets(("toy:draw=1",))) == ["all"]
