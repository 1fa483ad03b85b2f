"""A pool: finite, repeatable, and as likely as it was drawn."""

from collections import Counter

import numpy as np
import pytest

from esper.simic.env.cases import CaseList, CasePool
from esper.tolaria.worlds.toy.instance import TOY_SUITES


def test_a_pool_is_decided_by_its_seed() -> None:
    source = TOY_SUITES["toy"]
    first, again, other = (CasePool.drawn(source, size=7, host_seeds=2, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.cases != other.cases
    assert (first.name, len(first.cases)) == ("toy", 7)


def test_what_is_drawn_is_in_it() -> None:
    pool = CasePool(("a", "a", "a", "b"), "some", host_seeds=1)
    rng = np.random.default_rng(0)
    drawn = Counter(pool.draw(rng) for _ in range(4000))
    assert set(drawn) == {"a", "b"}
    assert drawn["a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_every_pair_once() -> None:
    pool = CasePool(("b", "a", "b"), "some", host_seeds=2)
    assert list(pool.pairs()) == [("b", 0), ("a", 0), ("b", 1), ("a", 1)]


@pytest.mark.parametrize(("size", "host_seeds"), [(0, 1), (1, 0)])
def test_an_empty_pool_is_refused(size: int, host_seeds: int) -> None:
    with pytest.raises(ValueError, match=f"not {size} and {host_seeds}"):
        CasePool.drawn(CaseList(("a",)), size=size, host_seeds=host_seeds, seed=0)
