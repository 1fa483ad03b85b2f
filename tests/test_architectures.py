"""SPEC F6: architectures that others wrote are wrapped, grown, trained and exported, or refused clearly."""

import pytest

pytest.importorskip("transformers")

from bench_architectures import CASES, attempt

QUICK = ("BertModel", "GPT2LMHeadModel", "SwinModel", "ResNetModel", "WhisperEncoder", "LSTM tagger", "U-Net")


def test_there_are_enough() -> None:
    refused = sum(case.refused for case in CASES.values())
    assert len(CASES) >= 150
    assert len({case.package for case in CASES.values()}) >= 8
    assert refused <= 0.05 * len(CASES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_architecture(name: str) -> None:
    case = CASES[name]
    pytest.importorskip(case.package)
    result = attempt(name, case)
    assert result.passed, result.note
    if case.refused:
        assert result.note.startswith("refused: ")
    else:
        assert (result.identity, result.trained) == ("equal", "yes")
        assert result.export_difference == "0"
