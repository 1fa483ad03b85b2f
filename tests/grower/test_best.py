"""Nothing is lost: the best epoch comes back, a saved state brings its seeds, and averages grow along."""

import gc
import io
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from esper import rule_policy
from esper.grower import Grower, GrowthWarning
from esper.kasmina import WrapError
from esper.leyline import Stage
from grower.loops import CLASSES, FEATURES, Loop, net
from grower.test_grower import grown

GROW = "germinate mlp@0 t=1; advance 0 t=2"
SEED = "0.1.esper_seed"


def test_a_grown_state_is_refused_by_the_plain_class_and_the_export_has_its_accuracy() -> None:
    """Saved by the user's own line, a grown network came back without its seeds, and nothing said so."""
    loop = Loop()
    grower, *_ = grown(7, loop=loop, schedule=GROW)
    model = grower.model.host
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*esper_seed"):
        net().load_state_dict(torch.load(file))
    accuracy = loop.validate(model.eval())["validation_accuracy"]
    plain = grower.model.export()
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    plain.load_state_dict(torch.load(file))
    assert loop.validate(plain)["validation_accuracy"] == accuracy
    grower.model.unwrap()
    bare = loop.validate(model)
    assert bare["validation_loss"] != loop.validate(plain)["validation_loss"]  # the seed was worth saving


def _spoil(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)


def test_the_best_epoch_is_what_finish_returns() -> None:
    loop = Loop()
    grower, optimizer, _ = grown(8, loop=loop, schedule=GROW, keep_best=True, governor=None)
    best = max(decision.score for decision in grower.history if decision.score is not None)
    held = {name for name, slot in grower.history[-1].slots.items() if slot.blueprint}
    for _ in range(2):
        loop.train(grower.model, optimizer)
        _spoil(grower.model)
        grower.step()
    last = grower.history[-1].score
    assert last is not None
    assert last < best
    plain = grower.finish(best=True)
    assert loop.validate(plain.eval())["validation_accuracy"] == best
    assert held == {"0"}
    epoch = [decision.score for decision in grower.history].index(best) + 1
    assert f"finish: back at epoch {epoch}, which validated best" in grower.explain()
    assert f"score {best:.4f} after epoch {epoch} (" in grower.explain()
    assert loop.validate(grower.model.eval())["validation_accuracy"] == best


def test_the_best_epoch_may_be_one_before_growth() -> None:
    loop = Loop()
    grower, optimizer, _ = grown(0, loop=loop, schedule=GROW, keep_best=True)
    loop.train(grower.model, optimizer)
    first = loop.validate(grower.model)
    grower.step(validation_accuracy=0.9)
    for _ in range(4):
        loop.train(grower.model, optimizer)
        grower.step(validation_accuracy=0.8)
    assert grower.model.live_slots
    assert loop.validate(grower.finish(best=True)) == first
    assert not grower.model.added_parameters
    assert len(optimizer.param_groups) == 1


def test_the_best_epoch_survives_a_checkpoint() -> None:
    loop = Loop()
    grower, *_ = grown(6, loop=loop, schedule=GROW, keep_best=True)
    file = io.BytesIO()
    torch.save(grower.state_dict(), file)
    file.seek(0)
    resumed, optimizer, _ = grown(0, loop=loop, schedule=GROW, keep_best=True, governor=None)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    loop.train(resumed.model, optimizer)
    _spoil(resumed.model)
    resumed.step()
    best = max(decision.score for decision in grower.history if decision.score is not None)
    assert loop.validate(resumed.finish(best=True))["validation_accuracy"] == best


def test_the_best_epoch_comes_back_to_an_optimiser_that_got_a_group_since() -> None:
    """It is a network and no training: the optimiser's state is not kept."""
    loop = Loop()
    grower, optimizer, _ = grown(0, loop=loop, schedule=GROW, keep_best=True)
    late = list(grower.model.host.get_submodule("1").parameters())
    optimizer.param_groups[0]["params"] = [
        p for p in optimizer.param_groups[0]["params"] if all(p is not q for q in late)
    ]
    shown = []
    for epoch in range(6):
        loop.train(grower.model, optimizer)
        shown.append(loop.validate(grower.model.eval()))
        grower.step(validation_accuracy=0.9 if epoch == 3 else 0.5)
        if epoch == 3:
            optimizer.add_param_group({"params": late})
    state = grower.state_dict()["best"]
    assert isinstance(state, dict)
    assert not any(name.startswith("optimizer/") for name in state["tensors"])
    assert loop.validate(grower.finish(best=True).eval()) == shown[3]
    assert grower.model.live_slots
    grower.load_state_dict(grower.state_dict())  # the seeds that came back are the optimiser's again


def test_where_there_is_no_best_epoch() -> None:
    grower, *_ = grown(2)
    with pytest.raises(ValueError, match=r"not kept: Grower\(keep_best=True\)"):
        grower.finish(best=True)
    kept, *_ = grown(0, keep_best=True)
    with pytest.raises(ValueError, match="no epoch has been validated yet"):
        kept.finish(best=True)
    with pytest.raises(ValueError, match=r"settle='committed', best=True\): the best epoch comes as it was"):
        kept.finish(settle="committed", best=True)
    with pytest.warns(GrowthWarning, match=r"epoch 2 was saved without keep_best=True"):
        kept.load_state_dict(grower.state_dict())


def test_a_step_after_the_end_is_an_error_until_a_state_is_loaded() -> None:
    loop = Loop()
    grower, optimizer, _ = grown(6, loop=loop, schedule=GROW)
    state = grower.state_dict()
    held = grower.model.slots["0"].stage
    grower.finish(settle="committed")
    loop.train(grower.model, optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) after finish\(\).*load_state_dict\(\).*new Grower"):
        grower.step()
    assert not grower.model.added_parameters
    grower.load_state_dict(state)
    assert grower.model.slots["0"].stage is held
    loop.train(grower.model, optimizer)
    assert grower.step().epoch == 7


# Averages


def _mean(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one * 0.5 + other * 0.5


@pytest.mark.parametrize("whole", [False, True])  # of the user's object, or of the growing model
def test_an_average_that_follows_grows_along(whole: bool) -> None:
    loop = Loop()
    grower, optimizer, _ = grown(0, loop=loop, schedule=f"{GROW}; prune 0 t=8")
    model = grower.model if whole else grower.model.host
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    grower.follow(average)
    for epoch in range(1, 10):
        loop.train(grower.model, optimizer)
        before = {name: value.clone() for name, value in average.module.state_dict().items()}
        first = not average.n_averaged.item()
        average.update_parameters(model)
        for name, value in model.state_dict().items():
            expected = value if first or name.endswith("alpha") else _mean(before[name], value)
            assert torch.allclose(average.module.state_dict()[name], expected, atol=1e-6), name
        grower.step()
        assert list(average.module.state_dict()) == list(model.state_dict())
        assert any(SEED in name for name in average.module.state_dict()) == (1 <= epoch < 8)
    ours = {name: value.numel() for name, value in average.module.named_parameters()}
    assert ours == {name: value.numel() for name, value in model.named_parameters()}


def test_an_average_computes_with_the_seed_at_the_models_alpha() -> None:
    """Of equal weights, an average and its model put out the same in every stage."""
    loop = Loop()
    grower, optimizer, _ = grown(0, loop=loop, schedule=GROW)
    average = AveragedModel(grower.model.host, multi_avg_fn=get_ema_multi_avg_fn(0.0))
    grower.follow(average)
    stages = set()
    for _ in range(7):
        loop.train(grower.model, optimizer)
        grower.step()
        average.update_parameters(grower.model.host)
        stages.add(grower.model.slots["0"].stage)
        assert loop.validate(average) == loop.validate(grower.model)
    assert {Stage.TRAINING, Stage.BLENDING, Stage.HOLDING} <= stages
    late = AveragedModel(
        grower.model.host
    )  # made of a grown model, it needs no following while nothing is born
    assert loop.validate(late) == loop.validate(grower.model)


@pytest.mark.filterwarnings("ignore:an AveragedModel of a Sequential")  # that of the other run
@pytest.mark.filterwarnings("ignore:seeds grow, and without validate")
def test_a_seed_that_finish_brings_back_keeps_its_average() -> None:
    """What was decided last and never trained with is taken back, in the average too."""

    def averaged(schedule: str) -> tuple[AveragedModel, Grower]:
        grower, optimizer, loop = grown(0, schedule=schedule, validate=None)  # then all that is HOLDING stays
        average = AveragedModel(grower.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        grower.follow(average)
        for _ in range(8):
            grower.step(train_loss=loop.train(grower.model, optimizer), validation_accuracy=0.7)
            average.update_parameters(grower.model)
        loop.train(grower.model, optimizer)
        average.update_parameters(grower.model)
        grower.step(validation_accuracy=0.7)
        if "prune" in schedule:
            assert not any(SEED in name for name in average.module.state_dict())
        grower.finish()
        return average, grower

    (ours, grower), (theirs, _) = averaged(f"{GROW}; prune 0 t=9"), averaged(GROW)
    assert grower.model.slots["0"].seed is not None
    expected, raw = theirs.module.state_dict(), grower.model.state_dict()
    assert ours.module.state_dict().keys() == expected.keys()
    for name, value in ours.module.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert any(not torch.equal(expected[name], raw[name]) for name in raw if SEED in name)


@pytest.mark.parametrize(("first", "second"), [("0", "0.1"), ("0.1", "0")])
@pytest.mark.filterwarnings("ignore:.*went back:esper.GrowthWarning")
def test_an_average_pairs_the_seeds_of_nested_slots_after_a_rollback(first: str, second: str) -> None:
    """Both end at one leaf, born in either order; a rollback seats them in the order of the slots."""
    loop = Loop()
    block = nn.Sequential(nn.Linear(FEATURES, 7), nn.Sequential(nn.Linear(7, 7), nn.Tanh()))
    model = nn.Sequential(block, nn.Linear(7, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(
        model,
        ["0", "0.1"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        validate=loop.validate,
        controller=rule_policy(
            "schedule", schedule=f"germinate lora@{first} t=1; germinate lora@{second} t=2"
        ),
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0))  # the model's weights, by order
    grower.follow(average)
    for epoch in range(1, 6):
        loss = loop.train(model, optimizer)
        average.update_parameters(model)
        decision = grower.step(train_loss=math.nan if epoch == 4 else loss)
        assert (decision.rolled_back is not None) == (epoch == 4)
    average.update_parameters(model)
    averaged = dict(average.module.named_parameters())
    seeds = {name: value for name, value in model.named_parameters() if "esper_seed" in name}
    assert len(seeds) == 2 * 3
    for name, value in seeds.items():
        assert torch.equal(averaged[name], value), name


@pytest.mark.parametrize("function", [None, get_ema_multi_avg_fn(0.5)])
def test_an_average_that_took_in_nan_begins_anew_after_a_rollback(
    function: Callable[..., None] | None,
) -> None:
    loop = Loop()
    grower, optimizer, _ = grown(2, loop=loop, schedule=GROW)
    model = grower.model.host
    average, sound = AveragedModel(model, multi_avg_fn=function), AveragedModel(model)
    for each in (average, sound):
        grower.follow(each)
        each.update_parameters(model)
    kept = {name: value.clone() for name, value in sound.module.state_dict().items()}
    loop.train(model, optimizer)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    average.update_parameters(model)
    with pytest.warns(GrowthWarning, match=r"went back|an average .* begins anew with the weights that"):
        assert grower.step(train_loss=math.nan).notes[-1].startswith("an average that follows")
    now = model.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in average.module.state_dict().items())
    assert all(torch.equal(value, kept[name]) for name, value in sound.module.state_dict().items())
    loop.train(model, optimizer)
    average.update_parameters(model)
    assert average.n_averaged == 1
    assert all(
        torch.equal(*pair) for pair in zip(average.module.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_plain_average_of_a_model_that_germinates_is_warned_of_once(decay: float | None) -> None:
    """Its newborn seed is mostly what it was born as: torch counts the updates of the model as a whole."""
    loop = Loop()
    grower, optimizer, _ = grown(0, loop=loop, schedule="germinate mlp@0 t=3; germinate mlp@1 t=4")
    function = None if decay is None else get_ema_multi_avg_fn(decay)
    average = AveragedModel(grower.model.host, multi_avg_fn=function)
    grower.follow(average)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GrowthWarning)
        for _ in range(6):
            loop.train(grower.model, optimizer)
            average.update_parameters(grower.model.host)
            grower.step()
    said = [str(each.message) for each in caught if "without a decay" in str(each.message)]
    assert len(said) == (decay is None)
    if said:
        assert "as 3 of its updates" in said[0]
        scale = f"{SEED}.scale"
        assert average.module.state_dict()[scale].norm() < 0.5 * grower.model.host.state_dict()[scale].norm()


def test_an_average_that_does_not_follow_is_noticed() -> None:
    loop = Loop()
    early = AveragedModel(net())
    grower, optimizer, _ = grown(0, loop=loop, schedule=GROW)
    with pytest.raises(WrapError, match="make it after the Grower"):
        grower.follow(early)
    with pytest.raises(TypeError, match="average is a Sequential"):
        grower.follow(net())  # type: ignore[arg-type]
    average = AveragedModel(grower.model.host)
    loop.train(grower.model, optimizer)
    with pytest.warns(
        GrowthWarning, match=r"AveragedModel of a Sequential does not grow with it.*grower\.follow"
    ):
        grower.step()
    assert grower.model.live_slots
    with pytest.raises((ValueError, RuntimeError)):  # torch's own words
        average.update_parameters(grower.model.host)


def test_an_average_of_a_run_that_is_over_is_no_stray() -> None:
    """Nobody holds it, but its Grower is a cycle that the collector has not met yet."""

    def run() -> None:
        loop = Loop()
        grower, optimizer, _ = grown(0, loop=loop, schedule=GROW)
        grower.follow(AveragedModel(grower.model.host))
        loop.train(grower.model, optimizer)
        grower.step()
        assert grower.model.live_slots

    gc.collect()
    gc.disable()
    try:
        run()
        run()  # warnings are errors
    finally:
        gc.enable()


def test_goodness_ranks_epochs_before_the_unit_is_known() -> None:
    from esper.grower.measuring import EpochMetrics, Scale

    scale = Scale(mode="max")
    for value in (-3.0, -1.0):
        scale.observe(EpochMetrics(validation_metric=value))
    assert scale.goodness(EpochMetrics(validation_metric=-1.0)) == -1.0
    assert Scale(mode="min", by="metric").goodness(EpochMetrics(validation_metric=2.0)) == -2.0
    assert Scale(by="loss").goodness(EpochMetrics(validation_loss=math.nan)) is None


def test_a_best_epoch_with_a_seed_in_training_is_told_as_it_is_exported() -> None:
    grower, optimizer, loop = grown(1, schedule="germinate mlp@0 t=1", keep_best=True)
    loop.train(grower.model, optimizer)
    grower.step(validation_accuracy=1.0)
    assert grower.model.slots["0"].stage is Stage.TRAINING
    shown = loop.validate(grower.model.eval())
    plain = grower.finish(best=True)
    assert loop.validate(plain.eval()) == loop.validate(grower.model.eval()) == shown
    assert sum(p.numel() for p in plain.parameters()) == grower.model.host_parameters
    assert "added 0 parameters" in grower.explain()
    assert "removed mlp at 0 (unfinished" in grower.explain()


def test_a_loaded_state_stays_the_callers() -> None:
    state = grown(2)[0].state_dict()
    tensors = state["tensors"]
    assert isinstance(tensors, dict)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    grower, optimizer, loop = grown(0)
    grower.load_state_dict(state)
    loop.train(grower.model, optimizer)
    assert [name for name in kept if not torch.equal(kept[name], tensors[name])] == []
