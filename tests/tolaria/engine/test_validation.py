"""Validation under coalitions: what is on, what is measured, and that measuring changes nothing."""

import pytest
import torch
import torch.nn.functional as F

from esper.kasmina.coalitions import forward_coalitions, plan_coalitions
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.population import Population
from esper.tolaria.worlds.engine import read
from tiny_tasks import advance, germinate

NONE, FIRST, LAST = frozenset[str](), frozenset({"blocks.0"}), frozenset({"blocks.2"})


def _grown(*, blended: int | None = 0, isolated: int | None = 2) -> tuple[Population, TrainedHost]:
    """A host with a blended seed in one slot and one in TRAINING in another."""
    population = Population(1)
    host = population.begin(0, "tiny", 0)
    if blended is not None:
        host.apply(germinate(blended))
    if isolated is not None:
        host.apply(germinate(isolated, "mixer"))
    host.model.tick()
    population.train_epoch()
    if blended is not None:
        host.apply(advance(blended))
    for _ in range(2):
        host.model.tick()
        population.train_epoch()
    return population, host


def test_coalitions_come_without_repeats() -> None:
    _, host = _grown()
    plan = plan_coalitions(host.model)
    # as it is; the blended one off, which is none; the isolated one on
    assert plan.coalitions == (FIRST, NONE, FIRST | LAST)
    assert plan.weighed == ("blocks.0", "blocks.2")
    assert plan.places == (0, 2)
    assert plan.toggled == (1, 2)
    assert plan.training == (False, True)
    blended = host.slots[0].alpha
    assert 0.0 < blended < 1.0
    assert plan.alphas == ((blended, 0.0), (0.0, 0.0), (blended, 1.0))


def test_without_live_seeds_there_is_one_coalition() -> None:
    _, host = _grown(blended=None, isolated=None)
    assert plan_coalitions(host.model).coalitions == (NONE,)


def test_scores_equal_separate_passes() -> None:
    population, host = _grown()
    scores = population.validate()
    plan, validation = scores.plans[0], host.validation
    host.model.eval()
    for place, names in enumerate(plan.coalitions):
        with torch.no_grad():
            logits = forward_coalitions(host.model, validation.inputs, [names])[0]
        observed = host.observed_samples
        halves = (
            (slice(observed), scores.loss, scores.accuracy),
            (slice(observed, None), scores.judged_loss, scores.judged_accuracy),
        )
        for half, losses, accuracies in halves:
            loss = F.cross_entropy(logits[half], validation.targets[half])
            accuracy = (logits[half].argmax(1) == validation.targets[half]).float().mean()
            assert losses[0, place].item() == pytest.approx(loss.item(), abs=1e-6)
            assert accuracies[0, place].item() == pytest.approx(accuracy.item(), abs=1e-6)


def test_stacked_coalitions_equal_separate_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA does, on the CPU: several rows a sample, in several parts."""
    from esper.tolaria.engine import population as engine

    population, host = _grown()
    plan, scores = plan_coalitions(host.model), population.validate()
    monkeypatch.setattr(engine, "ROWS_AT_ONCE", 40)
    out = torch.empty(len(plan.coalitions), 2, 2)
    engine.validate_host(host, plan, torch.tensor(plan.alphas), out)
    expected = (scores.loss, scores.accuracy, scores.judged_loss, scores.judged_accuracy)
    for column, wanted in zip(out.flatten(1).unbind(1), expected, strict=True):
        assert torch.allclose(column, wanted[0], atol=1e-6)


def test_validation_in_parts_equals_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from esper.tolaria.engine import population as engine

    population, _ = _grown()
    whole = population.validate()
    monkeypatch.setattr(engine, "ELEMENTS_AT_ONCE", 7 * 13 + 5)  # seven samples at a time, of 47
    parts = population.validate()
    assert torch.allclose(parts.loss, whole.loss, rtol=0.0, atol=1e-6)
    assert torch.allclose(parts.accuracy, whole.accuracy, rtol=0.0, atol=1e-6)
    assert torch.allclose(parts.judged_loss, whole.judged_loss, rtol=0.0, atol=1e-6)
    assert torch.allclose(parts.judged_accuracy, whole.judged_accuracy, rtol=0.0, atol=1e-6)


def test_measuring_changes_nothing() -> None:
    population, host = _grown()
    before = {name: tensor.clone() for name, tensor in host.model.state_dict().items()}
    snapshots, training = host.snapshots(), host.model.training
    population.validate()
    assert host.snapshots() == snapshots
    assert host.model.training == training
    assert all(torch.equal(before[name], tensor) for name, tensor in host.model.state_dict().items())


def test_contribution_and_probe_are_differences_of_accuracy() -> None:
    population, _ = _grown()
    (numbers,) = read(None, population.validate(), [0])
    accuracy = numbers.accuracies
    blended, isolated = numbers.seeds.values()
    assert blended["contribution"] == pytest.approx(accuracy[FIRST] - accuracy[NONE])
    assert blended["probe"] is None
    assert isolated["probe"] == pytest.approx(accuracy[FIRST | LAST] - accuracy[FIRST])
    assert isolated["contribution"] is None
    assert numbers.report.validation_accuracy == accuracy[FIRST]


def test_hosts_with_fewer_coalitions_leave_the_rest_unknown() -> None:
    population = Population(2)
    for index in range(2):
        population.begin(index, "tiny", index)
    population.host(1).apply(germinate())
    population.host(1).model.tick()
    scores = population.validate()
    assert torch.isnan(scores.accuracy).tolist() == [[False, True], [False, False]]
