"""The README's Python runs as it stands, and prints what is written there."""

import re
from pathlib import Path

import pytest
import torch

import esper
from esper.kasmina import forget

README = Path(__file__).parents[1] / "README.md"
NUMBER = re.compile(r"\d[\d.]*(?<!\.)")
"""Other processors compute other last digits."""


def test_the_readmes_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    scope: dict[str, object] = {}
    exec(compile(blocks[0], str(README), "exec"), scope)
    assert isinstance(scope["plain"], torch.nn.Module)
    (shown,) = re.findall(r"```text\n(.*?)```", README.read_text(), flags=re.DOTALL)
    told = capsys.readouterr().out
    for line in filter(None, shown.splitlines()):
        words = re.escape(NUMBER.sub("#", line))
        assert re.search(f"^{words}$", NUMBER.sub("#", told), re.M), line
    scores = [float(re.search(r"^score (0\.\d{4})", text, re.M).group(1)) for text in (shown, told)]  # type: ignore[union-attr]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


def test_growing_by_hand_runs() -> None:
    page = README.parent / "docs" / "growing.md"
    scope: dict[str, object] = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(compile(block, page.name, "exec"), scope)
    finally:
        forget("wide_mlp")
    model = scope["model"]
    assert model.slots["1"].stage.name == "FOSSILIZED"  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["running.md", "environments.md", "benchmark.md"])
def test_the_python_of_the_docs_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    text = (README.parent / "docs" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


PAGES = ["practitioner.md", "researcher.md", "reinforcement.md", "blueprints.md", "policies.md"]


@pytest.mark.parametrize("page", PAGES)
def test_quick_starts_and_how_tos_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (path,) = (README.parent / "docs").glob(f"*/{page}")
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)
    assert blocks
    scope: dict[str, object] = {"__name__": page}
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), scope)
    finally:
        if page == "blueprints.md":
            forget("wide_gelu")
    if page == "practitioner.md":
        printed = capsys.readouterr().out
        assert "epoch 1: germinate mixer at 0" in printed
        assert "epoch 14: wait (the last epoch: finish() settles)" in printed
        assert Path("grown.pt").exists()
    if page == "policies.md":
        _grows_once(scope["GrowOnce"])


def _grows_once(policy: object) -> None:
    """The page's policy does in a loop what it says."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(11, 5), torch.arange(11) % 2
    assert callable(policy)
    grower = esper.Grower(
        model,
        ["1"],
        optimizer=optimizer,
        example_input=inputs,
        controller=policy(),
        validate=[(inputs, targets)],
    )
    for _ in range(12):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        grower.step(train_loss=loss, validation_accuracy=0.5)
    assert grower.model.slots["1"].stage is esper.Stage.FOSSILIZED
