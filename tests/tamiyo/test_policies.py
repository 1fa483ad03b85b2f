"""The networks: initialisation, groups, any number of slots, what the value may see; sequences against a loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.leyline import HEAD_NAMES, ActionSpec, BlueprintCard, BlueprintKind, LifecycleOp, operations
from esper.tamiyo import (
    HOST_FEATURES,
    SLOT_FEATURES,
    ActionLayout,
    ActorCritic,
    ActorState,
    GrowthPolicy,
    GrowthSpace,
    Observer,
    Policy,
    PolicyInputs,
    RecurrentActorCritic,
    SequencePlan,
    discrete_layout,
    multi_discrete_layout,
    unwrap,
)
from esper.tamiyo.actions import encode, numbered_slots
from esper.tamiyo.features import BLUEPRINT_FEATURES, blueprint_features
from esper.tamiyo.policy import NO_ACTION, advance, replay
from synthetic_growth import growth_policy, random_growth_masks, random_growth_observation
from watched import HOLDING, PaperHost, paper_host


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def policies() -> dict[str, Policy]:
    return {
        "plain": ActorCritic(3, discrete_layout(2), generator=generator()),
        "recurrent": RecurrentActorCritic(
            3, multi_discrete_layout((2, 5)), hidden_size=7, uses_previous=True, generator=generator()
        ),
        "growth": growth_policy(3, 5, generator(), hidden_size=11),
    }


def gain_of(weight: Tensor) -> float:
    """The common singular value of an orthogonal weight."""
    values = torch.linalg.svdvals(weight.detach())
    assert values.max() - values.min() < 1e-4 * values.max()
    return float(values[0])


def test_orthogonal_gains() -> None:
    policy = policies()["plain"]
    assert isinstance(policy, ActorCritic)
    hidden = [layer for layer in policy.actor.trunk if isinstance(layer, nn.Linear)]
    assert [gain_of(layer.weight) for layer in hidden] == pytest.approx([math.sqrt(2)] * 2, rel=1e-4)
    output = policy.actor.heads["action"]
    assert isinstance(output, nn.Linear)
    assert gain_of(output.weight) == pytest.approx(0.01, rel=1e-4)
    last = policy.critic[-1]
    assert isinstance(last, nn.Linear)
    assert gain_of(last.weight) == pytest.approx(1.0, rel=1e-4)
    assert all(layer.bias.abs().max() == 0 for layer in (*hidden, output, last))


@pytest.mark.parametrize("name", ["plain", "recurrent", "growth"])
def test_every_parameter_is_in_exactly_one_group(name: str) -> None:
    policy = policies()[name]
    grouped = [id(p) for group in policy.named_groups().values() for p in group]
    assert sorted(grouped) == sorted(id(p) for p in policy.parameters())
    assert {head for head, _ in policy.head_parameters()} == set(policy.layout.names)


@pytest.mark.parametrize("name", ["recurrent", "growth"])
def test_the_lstm_output_is_normalised(name: str) -> None:
    policy = policies()[name]
    assert isinstance(policy.lstm_ln, nn.LayerNorm)
    seen: list[Tensor] = []
    policy.lstm_ln.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    state = ActorState.initial(policy, 2, torch.device("cpu"))
    mask = (
        random_growth_masks(policy.layout, 2, generator()) if name == "growth" else policy.layout.all_legal(2)
    )
    policy.get_action_batch(torch.randn(2, policy.observation_size, generator=generator()), mask, state)
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(2), atol=1e-5, rtol=0)


def test_making_a_network_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    policies()
    assert torch.equal(before, torch.get_rng_state())


def test_one_set_of_weights_serves_any_number_of_slots_and_blueprints() -> None:
    first = growth_policy(2, 3, generator(1))
    for slots, blueprints in ((2, 3), (3, 5), (7, 11)):
        policy = growth_policy(slots, blueprints, generator(2))
        policy.load_state_dict(first.state_dict())
        inputs = PolicyInputs(
            random_growth_observation(policy, 5, generator()), torch.full((5, 8), NO_ACTION), torch.zeros(5)
        )
        output, hidden = policy.step(inputs, torch.zeros(2, 5, 128))
        assert output.logits.shape == (5, policy.layout.width)
        assert hidden.shape == (2, 5, 128)


def said_of(
    host: PaperHost, company: PaperHost, weights: dict[str, Tensor], action: ActionSpec
) -> dict[str, Tensor]:
    """What is said of `host` (two slots; conv and norm) when the policy also has to serve `company`."""
    space = GrowthSpace.covering([host, company])
    policy = GrowthPolicy(space, generator=generator())
    policy.load_state_dict(weights)
    observer = Observer(space, 2)
    observer.begin(0, company, horizon=20)
    observer.begin(1, host, horizon=20)
    observer.observe()
    previous = torch.full((2, 8), NO_ACTION)
    previous[1] = torch.from_numpy(encode(action, space, host.slot_config))
    output, hidden = policy.step(
        PolicyInputs(observer.flat, previous, torch.ones(2)), torch.zeros(2, 2, policy.hidden_size)
    )
    known = torch.tensor([space.blueprint_index[name] for name in ("conv", "norm")])
    blocks = {name: policy.layout.block(output.logits, name)[1] for name in policy.layout.names}
    given_slot = {name: blocks[name][:2] for name in ("style", "tempo", "alpha_target")}
    return {
        **given_slot,
        "op": blocks["op"],
        "slot": blocks["slot"][:, :2],
        "blueprint": blocks["blueprint"][:2, known],
        "alpha_speed": blocks["alpha_speed"],
        "value": output.value[1:],
        "hidden": hidden[:, 1],
    }


@pytest.mark.parametrize("slots", [2, 3, 7])
@pytest.mark.parametrize("previous", [LifecycleOp.WAIT, LifecycleOp.GERMINATE])
def test_what_is_said_of_a_host_does_not_depend_on_padding(slots: int, previous: LifecycleOp) -> None:
    host = paper_host("a", "b")
    host.rows = [HOLDING, *host.rows[1:]]
    weights = growth_policy(2, 2, generator()).state_dict()
    weights = {name: value + torch.full_like(value, 0.05) for name, value in weights.items()}
    action = ActionSpec(previous, "b", "norm")
    alone = said_of(host, host, weights, action)
    company = paper_host(
        *(f"slot{number}" for number in range(slots)), blueprints=("attention", "conv", "norm", "z")
    )
    together = said_of(host, company, weights, action)
    for name, expected in alone.items():
        torch.testing.assert_close(together[name], expected, atol=1e-5, rtol=1e-5, msg=name)


def close(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("previous_op", [None, LifecycleOp.WAIT, LifecycleOp.PRUNE])
def test_permuting_slots_permutes_what_is_said_of_them(previous_op: LifecycleOp | None) -> None:
    policy = growth_policy(3, 5, generator())
    for parameter in policy.parameters():  # the outputs are born small: make them visible
        parameter.data.add_(torch.randn(parameter.shape, generator=generator(5)) * 0.3)
    order = torch.tensor([2, 0, 1])
    observation = torch.randn(4, policy.observation_size, generator=generator(1))
    widths = [len(HOST_FEATURES), 3 * len(SLOT_FEATURES), 3 * 5 * BLUEPRINT_FEATURES]
    host, slots, blueprints = observation.split(widths, dim=1)
    slots, blueprints = (part.unflatten(1, (3, -1))[:, order].flatten(1) for part in (slots, blueprints))
    permuted = torch.cat((host, slots, blueprints), dim=1)
    before = torch.full((4, 8), NO_ACTION)
    if previous_op is not None:
        before = torch.zeros(4, 8, dtype=torch.int64)
        before[:, 0] = previous_op
    after = before.clone()
    if previous_op is LifecycleOp.PRUNE:
        before[:, 1] = torch.tensor([0, 1, 2, 0])
        after[:, 1] = order.argsort()[before[:, 1]]  # where that slot went
    one, _ = policy.step(PolicyInputs(observation, before, torch.zeros(4)), torch.zeros(2, 4, 128))
    two, _ = policy.step(PolicyInputs(permuted, after, torch.zeros(4)), torch.zeros(2, 4, 128))
    layout = policy.layout
    close(layout.block(one.logits, "op"), layout.block(two.logits, "op"))
    close(layout.block(one.logits, "slot")[..., order], layout.block(two.logits, "slot"))
    close(layout.block(one.logits, "blueprint")[:, order], layout.block(two.logits, "blueprint"))
    close(one.value, two.value)


def test_only_the_critic_sees_the_privileged_features() -> None:
    policy = growth_policy(2, 3, generator(), privileged_features=3)
    observation = torch.randn(6, policy.observation_size, generator=generator())
    other = observation.clone()
    other[:, -3:] += 1.0
    nothing = (torch.full((6, 8), NO_ACTION), torch.zeros(6))
    one, _ = policy.step(PolicyInputs(observation, *nothing), torch.zeros(2, 6, 128))
    two, _ = policy.step(PolicyInputs(other, *nothing), torch.zeros(2, 6, 128))
    assert torch.equal(one.logits, two.logits)
    assert not torch.equal(one.value, two.value)


def value_after(policy: Policy, previous: Tensor, reward: float = 0.0) -> float:
    observation = torch.linspace(0.0, 1.0, policy.observation_size)  # no two blueprints are alike
    inputs = PolicyInputs(observation.unsqueeze(0), previous.unsqueeze(0), torch.tensor([reward]))
    return policy.step(inputs, policy.initial_hidden(1))[0].value.item()


@pytest.mark.parametrize("name", ["recurrent", "growth"])
def test_every_relevant_head_of_the_previous_action_is_seen(name: str) -> None:
    """Two actions that differ in one head, under an operation that uses it, lead to two values."""
    policy = policies()[name]
    layout = policy.layout
    assert value_after(policy, torch.zeros(layout.head_count, dtype=torch.int64), 1.0) != value_after(
        policy, torch.zeros(layout.head_count, dtype=torch.int64)
    )
    for head, size in enumerate(layout.sizes):
        operation = int(layout.relevance[:, head].nonzero()[-1])
        values = set()
        for choice in range(size):
            previous = torch.zeros(layout.head_count, dtype=torch.int64)
            previous[0], previous[head] = operation, choice  # of the first head the choice is the operation
            values.add(value_after(policy, previous))
        assert len(values) == size, layout.names[head]


def test_a_policy_of_the_first_sight_reads_neither_styles_nor_how_an_action_was_done() -> None:
    """Which is what the controllers that come with Esper were trained on."""
    space = GrowthSpace(numbered_slots(2), ("mixer", "norm"))
    full = GrowthPolicy(space, generator=generator())
    narrow = GrowthPolicy(space, sight=1, generator=generator())
    first_style = len(HOST_FEATURES) + SLOT_FEATURES.index("style_linear_add")
    for policy, sees in ((full, True), (narrow, False)):
        observation = torch.zeros(2, policy.observation_size)
        observation[:, len(HOST_FEATURES)] = 1.0  # slot 0 is present
        observation[1, first_style] = 1.0
        nothing = (torch.full((2, 8), NO_ACTION), torch.zeros(2))
        output, _ = policy.step(PolicyInputs(observation, *nothing), policy.initial_hidden(2))
        assert (output.logits[0] != output.logits[1]).any() == sees
        germinate = torch.tensor([LifecycleOp.GERMINATE, 1, 1, 0, 0, 0, 0, 0])
        for head in (HEAD_NAMES.index(name) for name in ("style", "tempo", "alpha_target")):
            other = germinate.clone()
            other[head] = 1
            assert (value_after(policy, germinate) != value_after(policy, other)) == sees


@pytest.mark.parametrize("op", list(LifecycleOp))
def test_an_irrelevant_previous_choice_is_not_seen(op: LifecycleOp) -> None:
    space = replace(growth_policy(3, 5, generator()).space, retire=True)
    growth = GrowthPolicy(space, hidden_size=11, generator=generator())
    table = {int(choice): ("op", "slot") if choice else ("op",) for choice in LifecycleOp}
    layout = ActionLayout(names=("op", "slot"), sizes=(len(LifecycleOp), 3), causal_table=table)
    plain = RecurrentActorCritic(3, layout, hidden_size=7, uses_previous=True, generator=generator())
    for policy in (growth, plain):
        relevant = policy.layout.relevance[op]
        canonical = torch.where(torch.arange(len(relevant)) == 0, int(op), 0).unsqueeze(0)
        absent = torch.where(relevant, canonical, NO_ACTION)
        values = [
            policy.step(
                PolicyInputs(torch.ones(1, policy.observation_size), previous, torch.zeros(1)),
                torch.zeros(2, 1, policy.hidden_size),
            )[0].value.item()
            for previous in (canonical, absent)
        ]
        assert values[0] == values[1]


def test_blueprints_are_known_by_their_features() -> None:
    cards = [[BlueprintCard("norm", BlueprintKind.NORM, 16)], [BlueprintCard("conv", BlueprintKind.CONV, 99)]]
    features = blueprint_features(cards, ["conv", "norm"], host_parameters=1000)
    assert not features[0, 0].any()  # slot 0 does not offer conv
    assert features[0, 1, -2] == pytest.approx(math.log1p(1.6))
    with pytest.raises(ValueError, match="offers 'norm', which is not among conv"):
        blueprint_features(cards, ["conv"], 1000)
    with pytest.raises(ValueError, match="host_parameters is 0"):
        blueprint_features(cards, ["conv"], 0)


def test_a_policy_can_begin_with_a_leaning() -> None:
    policy = growth_policy(3, 4, generator())
    policy.begin_leaning({"PRUNE": -3.0, "WAIT": 1.0})
    observation = random_growth_observation(policy, 64, generator())
    nothing = (torch.full((64, policy.layout.head_count), NO_ACTION), torch.zeros(64))
    output, _ = policy.step(PolicyInputs(observation, *nothing), torch.zeros(2, 64, policy.hidden_size))
    known = operations(retire=False)
    op_logits = output.logits[:, : len(known)]
    means = dict(zip(known, op_logits.mean(dim=0).tolist(), strict=True))
    assert means[LifecycleOp.PRUNE] == pytest.approx(-3.0, abs=0.1)
    assert means[LifecycleOp.WAIT] == pytest.approx(1.0, abs=0.1)
    assert means[LifecycleOp.GERMINATE] == pytest.approx(0.0, abs=0.1)


def test_single_and_batched_actions_agree() -> None:
    policy = policies()["recurrent"]
    observation = torch.randn(1, 3, generator=generator())
    mask = policy.layout.all_legal(1)
    state = ActorState.initial(policy, 1, torch.device("cpu"))
    one, hidden = policy.get_action(observation[0], mask[0], state)
    many, _, _, hidden_many = policy.get_action_batch(observation, mask, state)
    assert torch.equal(one, many[0])
    assert torch.equal(hidden, hidden_many)


def test_sizes_that_do_not_fit_are_named() -> None:
    policy = growth_policy(2, 3, generator())
    inputs = PolicyInputs(torch.zeros(1, 7), torch.full((1, 8), NO_ACTION), torch.zeros(1))
    with pytest.raises(ValueError, match="observation has 7 features; 2 slots and 3 blueprints need 179"):
        policy.step(inputs, torch.zeros(2, 1, 128))
    with pytest.raises(ValueError, match="initial_hidden and plan are missing"):
        policy(inputs)


def test_unwrap_gives_the_policy_behind_a_compiled_one() -> None:
    policy = policies()["plain"]
    assert unwrap(policy) is policy
    assert unwrap(torch.compile(policy, backend="eager")) is policy  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="policy is a Linear"):
        unwrap(nn.Linear(1, 1))  # type: ignore[arg-type]


def step_by_step(
    lstm: nn.LSTM, inputs: Tensor, hidden: Tensor, resets: NDArray[np.bool_], lengths: list[int]
) -> Tensor:
    outputs, start = [], 0
    for row, length in enumerate(lengths):
        state = hidden[:, row : row + 1]
        for step in range(start, start + length):
            if resets[step]:
                state = torch.zeros_like(state)
            state = advance(lstm, inputs[step : step + 1], state)
            outputs.append(state[lstm.num_layers - 1])
        start += length
    return torch.cat(outputs)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_replay_equals_a_loop(seed: int, layers: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [11, 1, 7, 13]
    lstm = nn.LSTM(3, 5, layers)
    inputs = torch.randn(32, 3, generator=generator)
    hidden = torch.randn(2 * layers, 4, 5, generator=generator)
    resets = (torch.rand(32, generator=generator) < 0.2).numpy()
    hidden[:, [row for row, start in enumerate((0, 11, 12, 19)) if resets[start]]] = 0.0
    plan = SequencePlan.build(resets, np.array(lengths), torch.device("cpu"))
    expected = step_by_step(lstm, inputs, hidden, resets, lengths)
    assert torch.linalg.vector_norm(replay(lstm, inputs, hidden, plan) - expected) < 1e-5


def test_a_sequence_after_another_gives_the_same_output_as_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    lstm = nn.LSTM(3, 5)
    inputs = torch.randn(17, 3, generator=generator)
    resets = np.zeros(17, dtype=np.bool_)
    resets[7] = True
    together = replay(
        lstm, inputs, torch.zeros(2, 1, 5), SequencePlan.build(resets, np.array([17]), torch.device("cpu"))
    )
    alone = replay(
        lstm,
        inputs[7:],
        torch.zeros(2, 1, 5),
        SequencePlan.build(np.zeros(10, dtype=np.bool_), np.array([10]), torch.device("cpu")),
    )
    torch.testing.assert_close(together[7:], alone)


def test_plans_refuse_lengths_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="row_lengths"):
        SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([2, 2]), torch.device("cpu"))
    with pytest.raises(ValueError, match="row_lengths"):
        SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([5, 0]), torch.device("cpu"))
    plan = SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([5]), torch.device("cpu"))
    with pytest.raises(ValueError, match="do not fit a plan"):
        replay(nn.LSTM(3, 5), torch.zeros(4, 3), torch.zeros(2, 1, 5), plan)
