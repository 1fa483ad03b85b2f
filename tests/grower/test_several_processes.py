"""Several processes grow one network: equal after every operation, and equal to one process with the whole batch."""

import math

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import WrapError
from esper.leyline import LifecycleOp
from grower import shared_lives
from grower.loops import Loop, net
from grower.shared_lives import Kind, Life, largest_difference, require_equal
from processes import in_processes

ROUNDING = 1e-5
"""Two halves are summed in another order than the whole; in 18 epochs that grew to 4e-7."""
BOTH = ("ddp", pytest.param("fsdp", marks=pytest.mark.slow))


def test_what_is_not_finite_is_not_equal() -> None:
    broken = {"weight": torch.tensor([1.0, math.nan])}
    with pytest.raises(AssertionError, match="weight is not finite"):
        largest_difference([broken], [broken])


@pytest.mark.parametrize(
    ("kind", "parts", "epochs"),
    [
        ("ddp", 1, 18),
        ("fsdp", 1, 5),
        pytest.param("ddp", 2, 18, marks=pytest.mark.slow),
        pytest.param("fsdp", 1, 18, marks=pytest.mark.slow),
        pytest.param("fsdp", 2, 18, marks=pytest.mark.slow),
    ],
)
def test_processes_are_equal_and_equal_to_one(kind: Kind, parts: int, epochs: int) -> None:
    """With clipping between backward and step; two parts of a batch are accumulated, under DDP with no_sync()."""
    alone = shared_lives.lived("alone", parts, epochs)
    first, second = in_processes(shared_lives.lived, kind, parts, epochs)
    require_equal(first, second)
    assert first.operations == alone.operations
    assert first.losses == pytest.approx(alone.losses, abs=ROUNDING)
    assert epochs < 18 or set(first.operations) == {op.name for op in LifecycleOp}
    assert largest_difference(first.seen, alone.seen) < ROUNDING
    assert largest_difference([first.exported], [alone.exported]) < ROUNDING
    assert {type(tensor) for tensor in first.exported.values()} == {Tensor}


@pytest.mark.parametrize("kind", BOTH)
def test_a_seed_that_breaks_in_one_process_is_not_updated_in_any(kind: Kind) -> None:
    alone = shared_lives.with_a_broken_seed("alone")
    first, second = in_processes(shared_lives.with_a_broken_seed, kind)
    require_equal(first, second)
    assert largest_difference(first.seen, alone.seen) < ROUNDING


@pytest.mark.parametrize("kind", BOTH)
def test_what_breaks_in_one_process_is_taken_back_in_all(kind: Kind) -> None:
    with pytest.warns(esper.GrowthWarning, match="not finite"):
        alone = shared_lives.with_a_broken_loss("alone")
    first, second = in_processes(shared_lives.with_a_broken_loss, kind)
    require_equal(first, second)
    assert first.found == second.found == "not_finite"
    assert largest_difference(first.seen, alone.seen) < ROUNDING


@pytest.mark.parametrize("kind", BOTH)
def test_growth_goes_on_from_a_checkpoint(kind: Kind) -> None:
    """Bit for bit in as many processes, and in one process too: a checkpoint holds whole tensors."""
    (went_on, came_back, state), (_, elsewhere, _) = in_processes(shared_lives.resumed, kind)
    assert largest_difference(went_on.seen, came_back.seen) == 0.0
    require_equal(came_back, elsewhere)
    alone = Life("alone")
    alone.grower.load_state_dict(state)
    assert largest_difference(alone.go().seen, went_on.seen) < ROUNDING


@pytest.mark.parametrize("kind", BOTH)
def test_a_checkpoint_holds_all_of_the_last_good_epoch(kind: Kind) -> None:
    for held, back in in_processes(shared_lives.remembered, kind):
        assert held.keys() == back.keys()
        assert largest_difference([held], [back]) == 0.0


def test_drift_is_an_error_that_names_the_parameter() -> None:
    for said in in_processes(shared_lives.with_drift):
        assert "1.0.weight is not the same in all of them (1 of 16 parameters differ)" in said


def test_rank_0_decides_and_its_seeds_are_everybodys() -> None:
    """Rng seeds, the draws of the rule and the metrics differ between the processes."""
    first, second = in_processes(shared_lives.with_disagreement)
    require_equal(first, second)
    assert {"GERMINATE", "PRUNE"} < set(first.operations)


def test_a_seed_that_one_process_does_not_use() -> None:
    first, second = in_processes(shared_lives.with_an_absent_gradient)
    assert largest_difference(first, second) == 0.0
    scale = next(name for name in first[0] if name.endswith("scale"))
    assert not first[-1][scale].equal(first[0][scale])


def test_a_wrapper_made_anew_does_not_reduce_twice() -> None:
    """The mean of means is the same mean."""
    alone = Life("alone", schedule="germinate mlp@0 tempo=3 t=1; advance 0 t=3", epochs=8).go()
    first, second = in_processes(shared_lives.with_a_wrapper_made_anew)
    require_equal(first, second)
    assert largest_difference(first.seen, alone.seen) < ROUNDING


def test_batch_statistics_and_what_rank_0_alone_knows() -> None:
    (buffers, score), (theirs, same) = in_processes(shared_lives.with_batch_statistics)
    assert largest_difference([buffers], [theirs]) == 0.0
    assert score == same == 0.75


def test_a_metric_sees_the_shares_of_all() -> None:
    first, second = in_processes(shared_lives.with_a_metric)
    assert first == second == pytest.approx(shared_lives.with_a_metric(), abs=ROUNDING)


# What is refused


def test_what_does_not_fit_together_is_refused() -> None:
    said, _ = in_processes(shared_lives.refusals)
    expected = {
        "plain": "torch.distributed runs 2 processes, and the model is a plain Sequential: give the Grower",
        "partly": "parts of the model are sharded by fully_shard, and the model itself is not",
        "fsdp1": "the model is a FullyShardedDataParallel (FSDP1), which flattens parameters once",
        "tensor parallel": "is sharded over another mesh than",
        "wrapped inside": "the model is a GrowingModel already",
        "unequal": "epochs is 5 in process 0 and 6 in process 1: make the Grower with the same",
    }
    assert said.keys() == expected.keys()
    for name, words in expected.items():
        assert words in said[name]


def test_forwards_that_need_all_processes_must_be_as_many_in_each() -> None:
    first, _ = in_processes(shared_lives.unequal_batches)
    assert "validate is 1 batches in process 0 and 2 batches in process 1" in first


def refused(model: nn.Module) -> str:
    with pytest.raises(WrapError) as raised:
        esper.wrap(model, ["0"], Loop().inputs[:2])
    return str(raised.value)


def test_data_parallel_and_deepspeed_are_refused_by_name() -> None:
    assert "a DataParallel, which copies the network anew" in refused(nn.DataParallel(net()))
    engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})()
    assert "DeepSpeed's DeepSpeedEngine, which lays all parameters" in refused(engine)
