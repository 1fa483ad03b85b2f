"""Training that breaks goes back to its last good epoch, and a seed that breaks is removed."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler

import esper
from esper.grower import Grower, GrowthWarning
from esper.kasmina.governor import GovernorRules, Guard, Verdict, Vitals
from esper.kasmina.slot import Slot
from esper.leyline import LifecycleOp, Stage
from grower.loops import Loop, net
from grower.test_grower import grown


def break_weights(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)


def test_a_loss_that_is_nan_goes_back_and_training_goes_on() -> None:
    grower, optimizer, loop = grown(6)
    good = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    alpha = grower.model.slots["0"].alpha
    break_weights(grower.model.host)
    loss = loop.train(grower.model, optimizer)
    with pytest.warns(
        GrowthWarning,
        match=r"found the model not finite \(train_loss is nan\b.*\) and went back to the last good",
    ):
        decision = grower.step(train_loss=loss)
    assert decision.rolled_back == "not_finite"
    assert decision.score is None
    assert all(torch.equal(tensor, good[name]) for name, tensor in grower.model.host.state_dict().items())
    assert grower.model.slots["0"].alpha == alpha  # the epoch is trained again, at the same alpha
    assert math.isfinite(loop.train(grower.model, optimizer))
    assert grower.step(train_loss=1.0).rolled_back is None
    assert "\nepoch 7: the governor found the model not finite" in grower.explain()
    grower.plot()


def test_a_training_loss_that_is_nan_while_the_weights_are_finite_is_named() -> None:
    grower, optimizer, loop = grown(3)
    loop.train(grower.model, optimizer)
    with pytest.warns(
        GrowthWarning, match=r"train_loss is nan, its weights are finite.*look at how train_loss"
    ):
        assert grower.step(train_loss=math.nan).rolled_back == "not_finite"


def test_broken_weights_are_seen_without_a_training_loss() -> None:
    grower, optimizer, loop = grown(2)
    break_weights(grower.model.host)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="not finite"):
        assert grower.step(validation_accuracy=0.3).rolled_back == "not_finite"


def test_divergence_and_collapse_by_the_hosts_own_past() -> None:
    grower, optimizer, loop = grown(2)
    first = grower.history[0].metrics.train_loss
    assert first is not None
    loop.train(grower.model, optimizer)
    assert grower.step(train_loss=2.9 * first).rolled_back is None
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="diverged"):
        assert grower.step(train_loss=3.1 * first).rolled_back == "diverged"
    grower, optimizer, loop = grown(3)
    loop.train(grower.model, optimizer)
    assert grower.step(validation_accuracy=0.01).rolled_back is None  # one epoch can be a shift
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="collapsed"):
        assert grower.step(validation_accuracy=0.01).rolled_back == "collapsed"


def test_noise_over_a_small_first_loss_is_no_divergence() -> None:
    grower, optimizer, loop = grown(0, controller="wait")
    for loss in (0.02, 0.01, 0.07, 2.9):
        loop.train(grower.model, optimizer)
        assert grower.step(train_loss=loss).rolled_back is None
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="diverged"):
        assert grower.step(train_loss=3.1).rolled_back == "diverged"


def test_an_epoch_at_chance_is_nothing_to_go_back_to() -> None:
    grower, optimizer, loop = grown(2)
    good = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    loop.train(grower.model, optimizer)
    grower.step(validation_accuracy=0.0)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="collapsed"):
        grower.step(validation_accuracy=0.0)
    assert all(torch.equal(tensor, good[name]) for name, tensor in grower.model.host.state_dict().items())


def test_a_governor_that_cannot_help_gives_up_and_lets_training_be() -> None:
    grower, optimizer, loop = grown(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(5):
            loop.train(grower.model, optimizer)
            grower.step(train_loss=math.inf)
    said = [str(each.message) for each in told]
    assert sum("went back" in each for each in said) == 3
    assert sum("going back has not helped" in each for each in said) == 1
    assert [decision.rolled_back for decision in grower.history[-5:]] == ["not_finite"] * 3 + [None] * 2


def test_a_governor_that_gave_up_stays_so_after_a_checkpoint() -> None:
    grower, optimizer, loop = grown(2)
    for _ in range(3):
        loop.train(grower.model, optimizer)
        with pytest.warns(GrowthWarning, match="went back|broke again|going back has not helped"):
            grower.step(train_loss=math.inf)
    resumed, optimizer, loop = grown(1)  # with a memory of its own
    resumed.load_state_dict(grower.state_dict())
    loop.train(resumed.model, optimizer)
    assert resumed.step(train_loss=math.inf).rolled_back is None
    resumed.load_state_dict(grown(2)[0].state_dict())  # where none had given up, one watches again
    loop.train(resumed.model, optimizer)
    with pytest.warns(GrowthWarning, match="went back"):
        assert resumed.step(train_loss=math.inf).rolled_back == "not_finite"


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("collapses", [False, True])
def test_a_resumed_run_is_rolled_back_to_where_the_uninterrupted_one_is(cut: int, collapses: bool) -> None:
    """Also from a checkpoint after an epoch at chance, which is not gone back to."""

    def live(grower: Grower, loop: Loop, optimizer: torch.optim.Optimizer, epochs: range) -> None:
        for epoch in epochs:
            loss = loop.train(grower.model, optimizer)
            if epoch == cut + 1 and not collapses:
                break_weights(grower.model.host)
            grower.step(
                train_loss=math.nan if epoch == cut + 1 and not collapses else loss,
                validation_accuracy=0.0 if collapses and epoch in (cut, cut + 1) else 0.7,
            )

    straight, optimizer, loop = grown(0, controller="by_layout", epochs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrowthWarning)
        live(straight, loop, optimizer, range(1, cut + 1))
        resumed, theirs, their_loop = grown(0, controller="by_layout", epochs=20)
        resumed.load_state_dict(straight.state_dict())
        resumed.load_state_dict(resumed.state_dict())  # a second time on the way
        their_loop.order.set_state(loop.order.get_state())
        live(straight, loop, optimizer, range(cut + 1, cut + 5))
        live(resumed, their_loop, theirs, range(cut + 1, cut + 5))
    assert (straight.history[cut].rolled_back is not None) == (cut > 1 or not collapses)
    assert resumed.history == straight.history
    assert resumed.model.snapshots() == straight.model.snapshots()
    ours = straight.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in resumed.model.state_dict().items())


def test_a_seed_that_was_just_planted_stays_when_the_next_epoch_breaks() -> None:
    """The rule would not try it again."""
    grower, optimizer, loop = grown(1, controller="by_layout", epochs=20)
    assert grower.history[-1].action.op is LifecycleOp.GERMINATE
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="went back"):
        grower.step(train_loss=math.nan)
    (slot,) = grower.model.live_slots
    assert grower.model.slots[slot].stage is Stage.TRAINING
    assert grower.model.slots[slot].life.age == 1
    loop.train(grower.model, optimizer)
    assert grower.step(train_loss=1.0).action.op is LifecycleOp.ADVANCE
    assert "undone" not in grower.explain()


def test_seeds_that_an_epoch_broke_with_twice_are_removed() -> None:
    grower, optimizer, loop = grown(2, controller="by_layout", epochs=20)
    (slot,) = grower.model.live_slots
    for _ in range(2):
        assert slot in grower.model.live_slots
        loop.train(grower.model, optimizer)
        with pytest.warns(GrowthWarning, match="went back|broke again"):
            grower.step(train_loss=math.nan)
    assert not grower.model.live_slots
    loop.train(grower.model, optimizer)
    assert grower.step(train_loss=1.0).rolled_back is None
    assert f"it broke again with the seeds at {slot}, which were removed" in grower.explain()


def test_seeds_that_broke_an_epoch_twice_do_not_come_back_with_the_end() -> None:
    grower, optimizer, loop = grown(6, controller="by_layout", epochs=20)
    assert grower.model.live_slots
    for _ in range(2):
        loop.train(grower.model, optimizer)
        with pytest.warns(GrowthWarning, match="went back|broke again"):
            grower.step(train_loss=math.nan)
    assert grower._guard.take_back() is None
    grower._guard.restore()
    assert not grower.model.live_slots


def test_the_end_after_the_best_epoch_takes_nothing_back() -> None:
    """What stood before the last decision belongs to another network."""
    grower, optimizer, loop = grown(2, schedule="germinate mlp@0 t=3; advance 0 t=4", keep_best=True)
    assert grower._best is not None
    grower._best.value = math.inf  # none that comes is better
    for _ in range(4):
        grower.step(train_loss=loop.train(grower.model, optimizer))
    assert grower.model.live_slots == ("0",)
    grower.finish(best=True)
    assert not grower.model.live_slots
    grower.finish()
    assert not grower.model.live_slots


def test_remembering_an_epoch_that_begins_reads_nothing_from_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grower, optimizer, loop = grown(2)
    loop.train(grower.model, optimizer)
    grower.take_in(train_loss=1.0)
    read: list[str] = []
    flags = Slot.broken

    def broken(slot: Slot) -> bool:
        read.extend([slot.name] * (slot.reported_gradients_finite is None and slot.stage.is_live))
        return flags(slot)

    monkeypatch.setattr(Slot, "broken", broken)
    grower.decide()
    assert grower.model.live_slots
    assert not read


def test_what_is_undone_with_an_epoch_at_chance_is_named_and_decided_again() -> None:
    grower, optimizer, loop = grown(2, controller="by_layout", epochs=20)
    for _ in range(2):
        loop.train(grower.model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GrowthWarning)
            grower.step(validation_accuracy=0.0)
    planted, back = grower.history[-2:]
    assert planted.action.op is LifecycleOp.GERMINATE
    assert back.rolled_back == "collapsed"
    assert planted.action.slot not in grower.model.live_slots
    assert f"undone with it: germinate widen at {planted.action.slot} (epoch 3)" in grower.explain()
    loop.train(grower.model, optimizer)
    assert grower.step(validation_accuracy=0.7).action == planted.action
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="went back"):
        assert "undone" not in "".join(grower.step(train_loss=math.nan).notes)


@pytest.mark.parametrize("governor", [None, GovernorRules()])
@pytest.mark.parametrize("accuracy", [0.7, 0.0])  # and at chance
def test_finish_takes_back_what_was_decided_last(governor: GovernorRules | None, accuracy: float) -> None:
    grower, optimizer, loop = grown(7, governor=governor)
    loop.train(grower.model, optimizer)
    trained = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    assert grower.step(validation_accuracy=accuracy).action.op is LifecycleOp.FOSSILIZE
    grower.finish(settle="committed")
    assert grower.model.slots["0"].stage is Stage.EMBARGOED
    now = grower.model.host.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in now.items())
    assert "epoch 8: finish() took back what was never trained with: fossilize 0" in grower.explain()


def test_finish_takes_back_what_led_to_a_last_epoch_that_broke() -> None:
    grower, optimizer, loop = grown(8)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="went back"):
        grower.step(train_loss=math.nan)
    assert grower.model.fossils == ("0",)
    grower.finish(settle="committed")
    assert not grower.model.fossils


@pytest.mark.parametrize("governor", [None, GovernorRules()])
def test_finish_says_nothing_where_nothing_was_decided(governor: GovernorRules | None) -> None:
    grower, *_ = grown(2, controller="wait", governor=governor)
    grower.finish()
    assert "took back" not in grower.explain()


def test_without_a_governor_nothing_is_copied_or_restored() -> None:
    grower, optimizer, loop = grown(3, governor=None)
    loop.train(grower.model, optimizer)
    decision = grower.step(train_loss=math.nan, validation_accuracy=0.5)
    assert decision.rolled_back is None
    assert decision.score == 0.5  # what is known stays known
    assert grower._guard._memory is None
    grower.finish()


def test_a_broken_first_epoch_goes_back_to_the_weights_it_began_with() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        validate=loop.validate,
        controller="wait",
    )
    model.load_state_dict(net(9).state_dict())  # loaded after the Grower was made
    loop.train(model, optimizer)
    with pytest.warns(GrowthWarning, match="not finite"):
        grower.step(train_loss=math.nan)
    for ours, theirs in zip(model.parameters(), net(9).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_seed_that_stays_broken_is_removed_and_the_host_kept() -> None:
    grower, optimizer, loop = grown(2)
    seed = grower.model.slots["0"].seed
    assert seed is not None
    break_weights(seed)
    grower.step(train_loss=loop.train(grower.model, optimizer))  # once can be a batch
    loss = loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="the seed at 0 put out NaN or Inf and was removed"):
        grower.step(train_loss=loss)
    assert grower.model.slots["0"].stage is Stage.EMBARGOED
    assert all(p.isfinite().all() for p in grower.model.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_a_seed_is_not_blamed_for_steps_that_a_scaler_skips(fused: bool) -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=fused)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=esper.rule_policy("schedule", schedule="germinate mlp@0 t=1"),
        scaler=scaler,
        validate=loop.validate,
    )
    (inputs, targets), *_ = loop.batches()

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(factor * F.cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(4):
        for factor in (1.0, 1e38):  # in every epoch one overflows, and is its last
            step(factor)
        assert not grower.model.slots["0"].non_finite.any()
        grower.step(train_loss=1.0)
    seed = grower.model.slots["0"].seed
    assert seed is not None
    assert scaler.get_scale() < 2.0**10
    step(1e38)
    before = seed.scale.detach().clone()
    step(1.0)
    assert not torch.equal(seed.scale, before)  # the step after an overflow is a step like any other
    grower.model.detach()
    assert scaler.step == type(scaler).step.__get__(scaler)


def test_a_seed_that_no_gradient_reaches_is_named() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.learns = net(), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
                x = self.layers[0](x)
            out: torch.Tensor = self.layers[2](self.layers[1](x))
            return out

    loop, model = Loop(), Frozen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(
        model,
        ["layers.0", "layers.1"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        validate=loop.validate,
        controller=esper.rule_policy(
            "schedule", schedule="germinate mlp@layers.1 t=1; germinate mlp@layers.0 t=2"
        ),
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for epoch in range(5):
            model.learns = epoch == 4
            grower.step(train_loss=loop.train(model, optimizer))
    said = [str(each.message) for each in told]
    assert len(said) == 1
    assert said[0].startswith("the seed at layers.0 got no gradient in the whole epoch")
    assert "freeze by requires_grad_(False) instead of no_grad" in said[0]
    assert said[0] in grower.history[2].notes


def test_seeds_of_a_frozen_host_get_gradients() -> None:
    loop, model = Loop(), net().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        validate=loop.validate,
        controller=esper.rule_policy("schedule", schedule="germinate mlp@0 t=1"),
    )
    model[2].requires_grad_(True)
    grower.step(train_loss=loop.train(model, optimizer))
    model.requires_grad_(False)
    seed = grower.model.slots["0"].seed
    assert seed is not None
    seed.requires_grad_(True)
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrowthWarning)
        grower.step(train_loss=loop.train(model, optimizer))


def test_a_seed_that_recovers_is_left_alone() -> None:
    grower, *_ = grown(3)
    guard = Guard(grower.model, None)
    found = []
    for broken in (True, False, True, True):
        grower.model.slots["0"].non_finite.fill_(broken)
        found.append(guard.broken_seeds())
    assert found == [[], [], [], ["0"]]


def test_the_governor_judges_by_the_same_first_epoch_after_a_checkpoint() -> None:
    grower, *_ = grown(0, controller="wait")
    unknown = (None, None, None)
    guard, other = Guard(grower.model, GovernorRules()), Guard(grower.model, GovernorRules())
    assert guard.judge(Vitals(2.0, *unknown)) is None
    other.load_state_dict(guard.state_dict())
    assert other.judge(Vitals(5.9, *unknown)) is None
    assert other.judge(Vitals(6.1, *unknown)) is Verdict.DIVERGED
