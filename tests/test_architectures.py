"""SPEC F6: architectures that others wrote are wrapped, grown, trained and exported, or refused clearly."""

import pytest

CASES = pytest.importorskip("foreign_models").CASES
QUICK = ("BertModel", "GPT2LMHeadModel", "SwinModel", "ResNetModel", "WhisperEncoder", "LSTM tagger", "U-Net")


def test_there_are_enough() -> None:
    refused = sum(case.refused for case in CASES.values())
    assert len(CASES) - refused >= 40
    assert refused <= 0.1 * len(CASES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_architecture(name: str) -> None:
    from bench_architectures import attempt

    result = attempt(name, CASES[name])
    assert result.passed, result.note
    if CASES[name].refused:
        assert result.note.startswith("refused: slot ")
    else:
        assert (result.identity, result.trained) == ("equal", "yes")
        assert result.export_difference == "0"
