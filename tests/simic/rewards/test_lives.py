"""Rewards over whole episodes: shaping telescopes, and losing the host never pays."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp, Style
from esper.simic.agent import RewardNormalizer
from esper.simic.env import make_world
from esper.simic.reward import RewardConfig, largest_growth, utility_parts
from reward_strategies import Standing, Step, batch, configs, reward

HOST = 1426
LARGEST_GROWTH = 300 * HOST
OPS = (
    # Three seeds in three slots: one kept, one pruned, one sent up and down. Operation, added parameters after it.
    (LifecycleOp.GERMINATE, 300),
    (LifecycleOp.GERMINATE, 420),
    (LifecycleOp.ADVANCE, 420),
    (LifecycleOp.ADVANCE, 420),
    (LifecycleOp.WAIT, 420),
    (LifecycleOp.PRUNE, 300),
    (LifecycleOp.GERMINATE, 1000),
    (LifecycleOp.FOSSILIZE, 1000),
    (LifecycleOp.ADVANCE, 1000),
    (LifecycleOp.SET_ALPHA_TARGET, 1000),
    (LifecycleOp.WAIT, 1000),
)
ACCURACIES = (0.1, 0.3, 0.35, 0.3, 0.5, 0.61, 0.4, 0.45, 0.7, 0.72, 0.71, 0.74)
CONTROL = (0.1, 0.3, 0.34, 0.38, 0.41, 0.44, 0.45, 0.46, 0.47, 0.47, 0.48, 0.48)


def scripted() -> list[Standing]:
    """The standings of a scripted life, the first before any step."""
    added = (0, *(parameters for _, parameters in OPS))
    return [
        Standing(
            accuracy,
            loss=2.3 * (1 - accuracy),
            added_parameters=parameters,
            baseline_accuracy=control,
            baseline_loss=2.3 * (1 - control),
        )
        for accuracy, control, parameters in zip(ACCURACIES, CONTROL, added, strict=True)
    ]


def rewards(
    config: RewardConfig, standings: list[Standing], *, truncated: bool = False, crashed: bool = False
) -> list[float]:
    """Per step; the last one ends the episode."""
    last = len(standings) - 2
    return [
        reward(
            config,
            Step(
                before=standings[step],
                after=standings[step + 1],
                terminated=step == last and not truncated,
                rolled_back=step == last and crashed,
                host_parameters=HOST,
                largest_growth=LARGEST_GROWTH,
                untrained_loss=2.3,
            ),
        )
        for step in range(last + 1)
    ]


def discounted(gamma: float, values: list[float]) -> float:
    return sum(gamma**step * value for step, value in enumerate(values))


def worth(config: RewardConfig, standing: Standing) -> float:
    inputs = batch(Step(standing, standing, host_parameters=HOST, untrained_loss=2.3))
    parts = utility_parts(config, inputs.after, inputs.host_parameters, inputs.untrained_loss)
    return float(sum(part[0] for part in parts))


@pytest.mark.parametrize("gamma", [1.0, 0.995])
@pytest.mark.parametrize("family", ["contribution", "loss"])
@pytest.mark.parametrize("control_variate", [True, False])
def test_shaping_telescopes_over_a_life_in_three_slots(
    gamma: float, family: str, control_variate: bool
) -> None:
    config = RewardConfig(family=family, gamma=gamma, control_variate=control_variate)  # type: ignore[arg-type]
    states = scripted()
    steps = len(states) - 1
    first, last = worth(config, states[0]), worth(config, states[-1])
    shaped = discounted(gamma, rewards(config, states))
    sparse = discounted(gamma, rewards(replace(config, mode="sparse"), states))
    assert sparse == pytest.approx(gamma ** (steps - 1) * last, abs=1e-9)
    assert shaped == pytest.approx(sparse - first, abs=1e-6)
    # Cut off instead, nothing is paid out, and the potential that is left is the value's business.
    cut = discounted(gamma, rewards(config, states, truncated=True))
    assert cut == pytest.approx(gamma**steps * last - first, abs=1e-6)


accuracies = st.floats(0.0, 1.0)
losses = st.floats(0.0, 1e6)  # a host that overfits has no bound of its own
lives = st.lists(
    st.builds(
        Standing,
        accuracy=accuracies,
        loss=losses,
        added_parameters=st.integers(0, LARGEST_GROWTH),
        baseline_accuracy=accuracies,
        baseline_loss=losses,
    ),
    min_size=2,
    max_size=25,
)


@given(lives, configs, st.data())
def test_losing_the_host_never_pays(life: list[Standing], config: RewardConfig, data: st.DataObject) -> None:
    """Whatever would have come, from every state an end by the governor returns no more than going on.

    Also with rewards divided by their deviation, as the learner may do.
    """
    crash = data.draw(st.integers(1, len(life) - 1))
    kept, lost = rewards(config, life), rewards(config, life[: crash + 1], crashed=True)
    assert kept[: crash - 1] == lost[:-1]  # the same until the step of the crash
    assert lost[-1] <= discounted(config.gamma, kept[crash - 1 :]) + 1e-9
    normalizer = RewardNormalizer()
    normalizer.update(torch.tensor([*kept, *lost]))
    kept, lost = (normalizer.normalize(torch.tensor(paid)).tolist() for paid in (kept, lost))
    scale = 1 + max(map(abs, [*kept, *lost]))
    assert lost[-1] <= discounted(config.gamma, kept[crash - 1 :]) + 1e-5 * scale


@pytest.mark.parametrize("family", ["contribution", "loss"])
def test_losing_the_host_does_not_pay_where_it_would_most(family: str) -> None:
    """The baseline is at its worst now and perfect at the end, the product as bad and as large as can be."""
    config = RewardConfig(family=family, gamma=1.0)  # type: ignore[arg-type]
    now = Standing(0.0, loss=1e6, added_parameters=0, baseline_accuracy=0.0, baseline_loss=1e6)
    end = Standing(0.0, 1e6, LARGEST_GROWTH, baseline_accuracy=1.0, baseline_loss=0.0)
    (lost,) = rewards(config, [now, now], crashed=True)
    assert lost <= sum(rewards(config, [now, now, end]))


def test_the_largest_growth_fills_every_slot_with_its_largest_seed_and_a_gate() -> None:
    world, added = make_world("toy", 1).world, 0
    begin = [Beginning(0, "toy:draw=3", 0)]
    world.begin_many(begin)
    for name, cards in world.host(0).cards.items():
        world.begin_many(begin)
        largest = max(cards, key=lambda card: card.parameters).name
        world.step_many([HostStep(0, ActionSpec(LifecycleOp.GERMINATE, name, largest, Style.GATE))])
        added += world.host(0).added_parameters
    assert largest_growth(world.host(0)) == added > 0


@given(lives)
def test_the_return_depends_on_the_ends_alone(life: list[Standing]) -> None:
    """No way through the same first and last state earns more than another: there is no cycle to farm."""
    config = RewardConfig(gamma=1.0)
    straight = [life[0], *([life[0]] * (len(life) - 2)), life[-1]]
    assert sum(rewards(config, life)) == pytest.approx(sum(rewards(config, straight)), abs=1e-9)
