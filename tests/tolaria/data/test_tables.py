"""Tables from CSV and NumPy files, and the errors that name file, row and column."""

from pathlib import Path

import numpy as np
import pytest
import torch

from esper.tolaria.data import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.files import load_quantity_table, load_table, read_table
from fake_datasets import write_csv

HEAD = "a,b,kind\n"


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_known_table(tmp_path: Path, delimiter: str) -> None:
    text = '\ufeffa,"b c",kind\n1,2.5,x\n\n-3,1e2,"y ""z"""\n'.replace(",", delimiter)
    read = read_table(table(tmp_path / "t.csv", text), target="kind", header=True)
    assert read.features.tolist() == [[1, 2.5], [-3, 100]]
    assert read.targets == ["x", 'y "z"']


@pytest.mark.parametrize(("target", "column"), [("a", 0), ("kind", 2), ("0", 0), ("-1", 2), ("-3", 0)])
def test_the_target_is_a_name_or_a_number(tmp_path: Path, target: str, column: int) -> None:
    path = table(tmp_path / "t.csv", "a,b,kind\n7,8,9\n")
    assert read_table(path, target=target, header=True).targets == [str([7, 8, 9][column])]


def test_a_table_without_header(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "1,2,x\n3,4,y\n")
    assert read_table(path, target="2", header=False).features.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DatasetCorrupt, match=r"found the number 1 in row 1, expected .*header=no"):
        read_table(path, target="2", header=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no rows"),
        (HEAD, "a header and no rows"),
        ("only\nx\n", "one column"),
        (HEAD + "1,2,x\n1,x\n", "2 cells in row 3, expected 3"),
        (HEAD + "1,2,x\n1,two,x\n", "'two' in row 3, column b, expected a finite number"),
        (HEAD + "1,2,x\n\n,2,x\n", "'' in row 4, column a"),
        (HEAD + "1,nan,x\n", "'nan' in row 2, column b"),
        (HEAD + "1,inf,x\n", "'inf' in row 2, column b"),
        (HEAD + "1,2,\n", "nothing in row 2, column kind, expected a class"),
        ('a,b,kind\n1,"2,x\n', "expected a CSV file"),
        ("kind,b,kind\n1,2,x\n", "2 columns named kind"),
    ],
)
def test_bad_tables_are_named_by_file_row_and_column(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DatasetCorrupt, match=f"t.csv: .*{said}"):
        read_table(table(tmp_path / "t.csv", text), target="kind", header=True)


def test_other_bad_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match=r"tabular.path: there is no file \S*none.csv"):
        read_table(tmp_path / "none.csv", target="-1", header=True)
    path = tmp_path / "latin.csv"
    path.write_bytes(HEAD.encode() + b"1,2,\xe9\n")
    with pytest.raises(DatasetCorrupt, match="expected a CSV file in UTF-8"):
        read_table(path, target="-1", header=True)
    for target in ("colour", "3", "-4"):
        with pytest.raises(DatasetCorrupt, match=f"columns a, b, kind, expected one named '{target}'"):
            read_table(table(tmp_path / "t.csv", HEAD + "1,2,x\n"), target=target, header=True)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([f"{n}.5" for n in range(40)], "targets like 0.5, expected classes"),
        ([str(n) for n in range(40)], "40 different targets in 40 rows"),
        (["same"] * 40, "1 different targets"),
        (["x", "y"] * 2, "4 rows"),
    ],
)
def test_targets_that_are_no_classes_are_refused(tmp_path: Path, kinds: list[str], said: str) -> None:
    rows = "".join(f"{n},{n},{kind}\n" for n, kind in enumerate(kinds))
    with pytest.raises(DatasetCorrupt, match=said):
        load_table(table(tmp_path / "t.csv", HEAD + rows), target="kind", header=True)


def test_features_are_standardised_by_the_training_split(tmp_path: Path) -> None:
    rows = "".join(f"{n * n},5,{('10', '9', '-1')[n % 3]}\n" for n in range(100))
    data = load_table(table(tmp_path / "t.csv", HEAD + rows), target="kind", header=True)
    train, validation = data.phases[0].train, data.phases[0].validation
    assert (len(train), len(validation), len(data.test), data.classes) == (70, 15, 15, 3)
    squares, constant = train.inputs.T
    assert squares.mean().item() == pytest.approx(0, abs=1e-6)
    assert squares.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert not constant.any()
    assert validation.inputs[:, 0].mean().item() != pytest.approx(0, abs=1e-3)  # not by its own statistics


@pytest.mark.parametrize("names", [("-1", "2", "10"), ("apple", "pear", "quince")])
def test_classes_are_numbered_by_number_or_by_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    rows = "".join(f"{n % 3},{n},{names[n % 3]}\n" for n in range(60))
    train = load_table(table(tmp_path / "t.csv", HEAD + rows), target="kind", header=True).phases[0].train
    by_place = train.inputs[:, 0].unique(return_inverse=True)[1]
    assert torch.equal(by_place, train.targets)


def test_splits_are_disjoint_and_deterministic(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv")
    data, again = (load_table(tmp_path / "t.csv", target="kind", header=True) for _ in range(2))
    assert data.digest() == again.digest()
    joined = torch.cat([data.phases[0].train.inputs, data.phases[0].validation.inputs])
    assert len(joined.unique(dim=0)) == len(joined) == 84 + 18


def test_numpy_files_read_like_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "t.npz", x=features, y=targets)
    np.save(tmp_path / "t.npy", np.column_stack([targets, features]))
    by_name = load_table(tmp_path / "t.npz", target="y", header=True)
    assert by_name.digest() == load_table(tmp_path / "t.npz", target="-1", header=True).digest()
    assert by_name.digest() == load_table(tmp_path / "t.npy", target="0", header=True).digest()
    np.savez(tmp_path / "names.npz", x=features, y=np.array(["no", "yes"])[targets])
    assert by_name.digest() == load_table(tmp_path / "names.npz", target="y", header=True).digest()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((4, 2))}, "found arrays x, expected features and targets"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, r"targets y of shape \(3,\), expected \(4,\)"),
        ({"x": np.zeros(4), "y": np.zeros(4)}, r"float64 of shape \(4,\), expected numbers of shape"),
        ({"x": np.array([["a"]]), "y": np.zeros(1)}, "expected numbers of shape"),
        ({"x": np.array([[1, 2], [3, np.nan]]), "y": np.zeros(2)}, "nan in row 1, column 1"),
        ({"x": np.zeros((2, 2)) * 1j, "y": np.zeros(2)}, "complex128, expected real"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DatasetCorrupt, match=f"t.npz: .*{said}"):
        read_table(tmp_path / "t.npz", target="y" if "y" in arrays else "-1", header=True)


def test_arrays_of_objects_and_broken_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("objects.npy", "broken.npz", "empty.npy"):
        with pytest.raises(DatasetCorrupt, match=f"{name}: .*NumPy arrays without objects"):
            read_table(tmp_path / name, target="-1", header=True)


def test_a_quantity_is_standardised_by_the_training_split(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,price\n" + "".join(f"{number % 7},{3 * number + 0.5}\n" for number in range(100)))
    data = load_quantity_table(path, target="price", header=True)
    (phase,) = data.phases
    assert (len(phase.train), len(phase.validation), len(data.test), data.classes) == (70, 15, 15, 1)
    assert phase.train.targets.shape == (70, 1)
    assert phase.train.targets.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert phase.train.variance == pytest.approx(1.0, abs=1e-6)
    everything = torch.cat((phase.train.targets, phase.validation.targets)).flatten().sort().values
    steps = everything.diff()
    assert (
        (steps / steps.min()).round() * steps.min() - steps
    ).abs().max().item() < 1e-5  # one scale for all


@pytest.mark.parametrize(
    ("rows", "said"),
    [("1,x\n" * 20, "the target 'x'"), ("1,4\n" * 20, "targets that are all 4"), ("1,2\n2,3\n", "2 rows")],
)
def test_a_quantity_that_cannot_be_predicted_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,price\n" + rows)
    with pytest.raises(DatasetCorrupt, match=said):
        load_quantity_table(path, target="price", header=True)
