"""Frozen bases whose target changes: plans as text, what a target is, and whose statistics a host has when."""

import pytest
import torch

from esper.kasmina.hosts.pretrained import PretrainedHost
from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp
from esper.tolaria.data import Phase
from esper.tolaria.final_report import phase_scores
from esper.tolaria.tasks import Instance, ParameterError, task
from esper.tolaria.tasks.adapt_stream import Target, targets_of
from esper.tolaria.worlds.engine import EngineWorld

PLAN = "noise80@2/rename@4/return1@6/shuffle60@8/none@10"
STEM_MEAN = "blocks.0.0.1.running_mean"


def phases(plan: str, **parameters: str | float | int) -> tuple[Phase, ...]:
    return Instance.of("adapt_stream", {"size": 100, "plan": plan, **parameters}).load().phases


def targets(plan: str, **parameters: str | float | int) -> list[tuple[int, Target]]:
    return targets_of(task("adapt_stream").complete({"plan": plan, **parameters}))


def lived(case: str, epochs: int, script: dict[int, ActionSpec] | None = None) -> EngineWorld:
    """A world whose host has lived so many epochs, with these actions before some of them."""
    world = EngineWorld(1)
    world.begin_many([Beginning(0, case, 0)])
    for epoch in range(epochs):
        world.step_many([HostStep(0, (script or {}).get(epoch, ActionSpec()))])
    return world


def statistics(world: EngineWorld) -> torch.Tensor:
    mean = world.host(0).model.host.state_dict()[STEM_MEAN]
    assert isinstance(mean, torch.Tensor)
    return mean.clone()


# Plans


def test_a_plan_says_which_target_holds_when() -> None:
    found = targets(PLAN, data=3)
    assert [start for start, _ in found] == [0, 2, 4, 6, 8, 10]
    assert [target.shift for _, target in found] == ["none", "noise", "rename", "noise", "shuffle", "none"]
    assert [target.amount for _, target in found] == [1.0, 0.8, 1.0, 0.8, 0.6, 1.0]
    assert found[3][1] == found[1][1]
    assert found[5][1] == found[0][1]
    assert [target.group for _, target in found[:3]] == ["none", "inputs", "labels"]
    assert Instance.of("adapt_stream", {"plan": PLAN}).changes == PLAN


def test_names_and_places_are_others_each_time() -> None:
    first, second = (target for _, target in targets("rename@2/rename@4")[1:])
    assert first.drawn != second.drawn
    _, one, other = phases("rename@2/rename@4")
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert not torch.equal(one.train.targets, other.train.targets)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"plan": "weather@4"}, r"'weather@4' in plan .* is no change; .* with a kind of noise, contrast"),
        ({"plan": "noise@4"}, r"'noise@4' .* needs an amount from 1 to 400, as in noise400@4"),
        ({"plan": "contrast201@4"}, r"'contrast201@4' .* needs an amount from 1 to 200"),
        ({"plan": "mirror20@4"}, r"'mirror20@4' .* has an amount, and mirror takes none"),
        ({"plan": "alarm@4"}, r"'alarm@4' .* is no change"),
        ({"plan": "none@4"}, r"none@4 in the plan changes nothing"),
        ({"plan": "mirror@4/mirror@9"}, r"mirror@9 in the plan changes nothing"),
        ({"plan": "mirror@4/return2@9"}, r"return2@9 .* the state after 2 changes; there were 1 before"),
        ({"plan": "turn20@4"}, r"shift=turn needs pictures or digits; series_batch has learned series"),
        ({"amount": 0.5}, r"amount is not read with shift=none; it is 0.5"),
        ({"base": "digits_layer", "size": 501}, r"size must be at most 500 with base=digits_layer, not 501"),
        ({"cap": -1.0}, r"adapt_stream.cap must be a number from 0 to 10, not -1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(parameters: dict[str, str | float], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        Instance.of("adapt_stream", parameters)


# Data


def test_each_target_is_that_of_adapt() -> None:
    """The same samples, shift by shift; of noise and what draws nothing the very same data."""
    plan = "noise80@2/mirror@4"
    parameters: dict[str, str | float] = {"base": "digits_layer", "data": 7, "noise": 0.1}
    for phase, shift in zip(phases(plan, **parameters), ("none", "noise", "mirror"), strict=True):
        amount = 0.8 if shift == "noise" else 1.0
        own: dict[str, str | float] = {"shift": shift, "size": 100, "amount": amount}
        alone = Instance.of("adapt", own | parameters).load()
        for mine, theirs in (
            (phase.train, alone.phases[0].train),
            (phase.validation, alone.phases[0].validation),
        ):
            assert torch.equal(mine.inputs, theirs.inputs)
            assert torch.equal(mine.targets, theirs.targets)
        assert phase.test is not None
        assert phase.test.digest() == alone.test.digest()


def test_no_sample_is_tested_on_that_was_trained_on_before() -> None:
    """Of digits there are few, so targets share a pool: a drawn split of each would leak."""
    found = phases("rename@2/return0@4/domain@6", base="digits_layer")
    first, renamed, back, _ = found
    assert torch.equal(first.train.inputs, renamed.train.inputs)
    assert torch.equal(first.validation.inputs, renamed.validation.inputs)
    assert back.train is first.train  # no copy is held of a target that returns
    assert back.test is first.test


# Lives


def test_a_change_gives_batch_norm_the_statistics_of_the_new_inputs() -> None:
    case = f"adapt_stream:base=series_batch,plan={PLAN},size=100"
    world, instance = lived(case, 2), Instance.parse(case)
    before = statistics(world)
    world.step_many([HostStep(0, ActionSpec())])
    noisy = statistics(world)
    assert not torch.equal(noisy, before)
    fresh = instance.row.host(instance.load())
    assert isinstance(fresh, PretrainedHost)
    fresh.adopt_statistics(instance.load().phases[1].train.inputs)  # the body is frozen: the same network
    assert torch.equal(fresh.state_dict()[STEM_MEAN], noisy)
    world.step_many([HostStep(0, ActionSpec())])
    assert torch.equal(statistics(world), noisy)  # estimated once a target
    for _ in range(2):  # names change, inputs do not
        world.step_many([HostStep(0, ActionSpec())])
    assert not torch.equal(statistics(world), noisy)
    world.step_many([HostStep(0, ActionSpec())])
    assert torch.equal(statistics(world), noisy)  # the noisy target is back
    kept = lived(f"{case},statistics=source", 4)
    assert torch.equal(statistics(kept), statistics(lived(f"{case},statistics=source", 1)))


def test_a_host_that_is_put_back_to_an_earlier_target_has_the_statistics_of_now() -> None:
    case = f"adapt_stream:plan={PLAN},size=100"
    world = lived(case, 2)
    clean = statistics(world)
    with torch.no_grad():
        for parameter in world.host(0).model.host.head.parameters():  # type: ignore[union-attr]
            parameter.fill_(float("nan"))
    world.step_many([HostStep(0, ActionSpec())])  # the first noisy epoch: back to the last clean one
    assert world.host(0).report.rolled_back is not None
    assert not torch.equal(statistics(world), clean)
    assert torch.equal(statistics(world), statistics(lived(case, 3)))


def test_a_host_that_breaks_in_the_last_epoch_of_a_target_has_the_statistics_of_that_one() -> None:
    """What comes is not known yet: the change is noticed as the next epoch begins."""
    world = lived(f"adapt_stream:plan={PLAN},size=100", 1)
    clean = statistics(world)
    with torch.no_grad():
        for parameter in world.host(0).model.host.head.parameters():  # type: ignore[union-attr]
            parameter.fill_(float("nan"))
    world.step_many([HostStep(0, ActionSpec())])
    assert world.host(0).report.rolled_back is not None
    assert world.host(0).phase_ended
    assert torch.equal(statistics(world), clean)


def test_a_host_that_was_confident_of_other_names_has_not_diverged() -> None:
    """Its loss is then over three times that of a guess, an epoch long; going back would not help."""
    world = lived("adapt_stream:base=digits_layer,plan=rename@2/noise10@4,size=100", 2)
    with torch.no_grad():
        world.host(0).model.host.head.weight.mul_(8.0)  # type: ignore[operator, union-attr]
    world.step_many([HostStep(0, ActionSpec())])
    report = world.host(0).report
    assert report.train_loss is not None
    assert report.train_loss > 3 * 2.303
    assert report.rolled_back is None
    assert world.host(0).phase_began
    world.step_many([HostStep(0, ActionSpec())])
    assert not world.host(0).phase_began


def test_a_life_that_is_resumed_is_the_same_life() -> None:
    case = f"adapt_stream:plan={PLAN},size=100"
    grow = {1: ActionSpec(LifecycleOp.GERMINATE, "stem", "norm"), 2: ActionSpec(LifecycleOp.ADVANCE, "stem")}
    straight = lived(case, 8, grow)
    halted, other = lived(case, 4, grow), EngineWorld(1)
    other.restore(halted.snapshot([0]))
    for _ in range(4):
        other.step_many([HostStep(0, ActionSpec())])
    assert other.host(0).report == straight.host(0).report
    assert torch.equal(statistics(other), statistics(straight))


def test_the_cap_and_the_test_splits_are_those_of_a_stream() -> None:
    case = f"adapt_stream:cap=0.01,plan={PLAN},size=100"
    instance = Instance.parse(case)
    assert instance.row.counts == "life"
    assert instance.cap == 0.01
    world = lived(case, 1)
    with pytest.raises(ValueError, match=r"the cap of adapt_stream:cap=0.01.* is 122"):
        world.step_many([HostStep(0, ActionSpec(LifecycleOp.GERMINATE, "stem", "conv_small"))])
    data = instance.load()
    scores = phase_scores([world.host(0).model] * len(data.phases), data)
    assert len(scores) == 6
    assert scores[0].accuracy > 0.95  # it has learned these
    assert scores[1].accuracy < scores[0].accuracy - 0.1
