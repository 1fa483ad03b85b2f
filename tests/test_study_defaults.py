"""The study of a Grower's default: pairs are pairs, and its tables say what was measured."""

from dataclasses import replace

import pytest
import torch

import study_defaults as study
from default_problems import PROBLEMS
from esper.leyline import LifecycleOp

# The smallest settings are shorter than a rule needs to try anything, which a Grower warns of.
pytestmark = pytest.mark.filterwarnings("ignore:the rule .* begins nothing in so short a run")

QUICK = {problem.name: replace(problem, epochs=7) for problem in PROBLEMS}


def outcome(problem: str, seed: int, arm: str, test: float) -> study.Outcome:
    return study.Outcome(problem, seed, arm, None, 100, 0.5, test, 1.0)


def test_every_problem_has_three_parts_and_a_network_that_answers() -> None:
    for problem in PROBLEMS:
        splits = problem.draw(3)
        again = problem.draw(3)
        network = study.born(problem, problem.width, 3)
        for (inputs, targets), (same, _) in zip(splits, again, strict=True):
            assert torch.equal(inputs, same)
            assert len(inputs) >= 80
            assert study.loss_of(network(inputs[:5]), targets[:5]).isfinite()
        assert not torch.equal(splits[0][0], problem.draw(4)[0][0])


def test_the_network_left_alone_is_the_same_whoever_is_beside_it() -> None:
    problem = QUICK["quantiles"]
    splits = problem.draw(3)
    alone = study.train(problem, splits, 3, problem.width)
    waiting = study.train(problem, splits, 3, problem.width, grow="wait")
    for ours, theirs in zip(alone.network.parameters(), waiting.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_all_arms_of_a_seed() -> None:
    outcomes = {each.arm: each for each in study.play(QUICK["quantiles"], 3)}
    assert tuple(sorted(outcomes)) == tuple(sorted(study.ARMS))
    assert outcomes[study.DEFAULT].rule == "by_layout"
    assert outcomes[study.PROBING].rule == "probe_and_keep"
    better = max((study.ALONE, study.DEFAULT), key=lambda arm: outcomes[arm].validation)
    assert outcomes[study.TRY_2].test == outcomes[better].test
    assert outcomes[study.WIDER].parameters >= outcomes[study.DEFAULT].parameters


def test_the_frozen_network_is_known_as_one() -> None:
    problem = QUICK["turned_digits"]
    grown = study.train(problem, problem.draw(3), 3, problem.width, grow=study.DEFAULT).grower
    assert grown is not None
    assert grown.controller == "frozen_spread"
    assert any(decision.action.op is LifecycleOp.GERMINATE for decision in grown.history)


def test_gains_are_paired_and_in_points() -> None:
    scores = {study.ALONE: (0.50, 0.70, 0.90) * 2, study.DEFAULT: (0.52, 0.71, 0.93) * 2}
    outcomes = [
        outcome("one", seed, arm, test) for arm, tests in scores.items() for seed, test in enumerate(tests)
    ]
    found = study.gain(outcomes, ["one"], study.DEFAULT)
    assert found.value == pytest.approx(2.0)
    assert 1.0 <= found.low < found.value < found.high <= 3.0


def test_scores_of_classes_and_of_numbers() -> None:
    class Says(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    assert study.score(Says(), (logits, torch.tensor([0, 1, 1, 1]))) == 0.75
    numbers = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    assert study.score(Says(), (numbers, numbers)) == pytest.approx(1.0)
    assert study.score(Says(), (torch.full((4, 1), 3.0), numbers)) == pytest.approx(0.0)
