"""The script that breaks rules: what no test notices is reported, and a row that cannot be planted is named."""

from pathlib import Path

import pytest

import mutate
from mutants import MUTANTS, Mutant


def fake(folder: Path) -> Path:
    """A package of one rule, and a test of it."""
    (folder / "src" / "esper").mkdir(parents=True)
    (folder / "src" / "esper" / "__init__.py").touch()
    (folder / "src" / "esper" / "rule.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "test_rule.py").write_text(
        "from esper.rule import twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n"
    )
    return folder


def mutant(text: str, replacement: str, test: str = "test_rule.py", name: str = "doubling") -> Mutant:
    return Mutant(name, "rule.py", text, replacement, (test,))


def test_what_is_noticed_what_survives_and_what_is_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutate, "ROOT", fake(tmp_path))
    before = (tmp_path / "src" / "esper" / "rule.py").read_text()
    tripled, added = mutant("2 * x", "3 * x", name="tripled"), mutant("2 * x", "x + x", name="added")
    for rows, status, *said in (
        ((tripled, added), 1, "tripled  noticed", "added    SURVIVES", "1 of 2 survive"),
        ((tripled,), 0, "0 of 1 survive"),
        ((mutant("4 * x", "x"),), 2, "doubling: its text is in src/esper/rule.py 0 times; expected once"),
        ((mutant("twice", "thrice"),), 2, "doubling: its tests could not be run"),
        ((mutant("2 * x", "x", "test_nothing.py"),), 2, "the tests fail where nothing is broken"),
    ):
        monkeypatch.setattr(mutate, "MUTANTS", rows)
        assert mutate.main([]) == status
        out, err = capsys.readouterr()
        assert all(each in (err if status == 2 else out) for each in said)
    assert (tmp_path / "src" / "esper" / "rule.py").read_text() == before


def test_every_row_has_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert mutate.main(["--list", "--only", names[0]]) == 0
    assert capsys.readouterr().out.split()[0] == names[0]


@pytest.mark.parametrize("row", MUTANTS, ids=lambda row: row.name)
def test_every_row_fits_the_tree(row: Mutant) -> None:
    mutate.planted(row, mutate.ROOT / "src" / "esper" / row.file)
    for test in row.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (mutate.ROOT / file).read_text()
