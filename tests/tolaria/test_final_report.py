"""The test split is opened in one place, and scored rightly there."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.tolaria import final_report
from esper.tolaria.data import Phase, SealedTest, Split, TaskData

SOURCE = Path(esper.__file__).parent
_REPORTS = {
    "test_score": ("tolaria/final_report.py", "simic/held_out.py"),
    "phase_scores": ("tolaria/final_report.py", "benchmark/playing.py"),
    "accuracy_on_test": ("simic/held_out.py", "benchmark/playing.py"),
}
"""What opens a test split -> the only files that may call it."""


def data_with(test: Split, classes: int) -> TaskData:
    return TaskData((Phase(0, test, test),), SealedTest(test), classes)


class Echo(nn.Module):
    """Puts out its input as logits, and tells in which mode it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.frozen = nn.Dropout(0.5).eval()
        self.calls: list[tuple[bool, bool, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_inference_mode_enabled(), len(x)))
        out: Tensor = x * self.weight
        return out


def test_known_accuracy_and_loss() -> None:
    logits = torch.tensor([[2.0, 0, 0], [0, 0, 1], [0, 0, 0], [9, 0, 0], [0, 5, 0]])
    targets = torch.tensor([0, 2, 0, 1, 1])
    score = final_report.test_score(Echo(), data_with(Split(logits, targets), 3), batch=2)
    terms = [
        math.log(math.exp(2) + 2) - 2,
        math.log(math.e + 2) - 1,
        math.log(3),
        math.log(math.exp(9) + 2),
        math.log(math.exp(5) + 2) - 5,
    ]
    assert score.accuracy == pytest.approx(4 / 5)
    assert score.loss == pytest.approx(sum(terms) / 5, abs=1e-6)
    assert score.samples == 5


def test_positions_of_a_text_count_each() -> None:
    logits = torch.tensor(
        [[[2.0, 0], [0, 2]], [[2, 0], [2, 0]], [[0, 2], [2, 0]]]
    )  # (sample, position, class)
    targets = torch.tensor([[0, 1], [0, 1], [0, 1]])
    score = final_report.test_score(Echo(), data_with(Split(logits, targets), 2))
    assert score.accuracy == pytest.approx(3 / 6)
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert score.loss == pytest.approx((3 * right + 3 * wrong) / 6, abs=1e-6)
    assert score.samples == 3


def test_known_explained_variance() -> None:
    outputs = torch.tensor([[0.0], [2.0], [4.0]])
    targets = torch.tensor([[1.0], [2.0], [6.0]])  # errors 1, 0, 4; variance 14 / 3
    score = final_report.test_score(Echo(), data_with(Split(outputs, targets), 1), batch=2)
    assert score.loss == pytest.approx(5 / 3)
    assert score.accuracy == pytest.approx(1 - 5 / 14)
    worse = final_report.test_score(Echo(), data_with(Split(10 * outputs, targets), 1))
    assert worse.accuracy == 0.0


def test_modes_are_put_back_and_the_opening_is_counted() -> None:
    model, data = Echo(), data_with(Split(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)), 3)
    final_report.test_score(model, data, batch=3)
    assert model.calls == [(False, True, 3), (False, True, 2)]
    assert model.training
    assert not model.frozen.training
    assert data.test.openings == 1


def test_something_else_than_logits_is_refused_and_modes_are_still_put_back() -> None:
    class Pair(Echo):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return x, x

    model = Pair()
    with pytest.raises(TypeError, match="logits or quantities, not tuple"):
        final_report.test_score(model, data_with(Split(torch.zeros(2, 3), torch.tensor([0, 1])), 3))
    assert model.training


def test_nobody_else_can_open_a_test_split() -> None:
    defines, uses = SOURCE / "tolaria/data/splits.py", SOURCE / "tolaria/final_report.py"
    key = re.compile(r"ReportKey|_SealedTest__|\btest\.open\(")
    found = {path for path in SOURCE.rglob("*.py") if key.search(path.read_text())}
    assert found == {defines, uses}
    assert len(re.findall(r"ReportKey\(\)", uses.read_text())) == 1
    assert "ReportKey()" not in defines.read_text()


@pytest.mark.parametrize("opens", _REPORTS)
def test_only_final_reports_ask_for_test_scores(opens: str) -> None:
    asks = {path for path in SOURCE.rglob("*.py") if re.search(rf"\b{opens}\(", path.read_text())}
    assert asks == {SOURCE / path for path in _REPORTS[opens]}
