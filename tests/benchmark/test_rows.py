"""Rows survive the disk, a killed benchmark keeps what it finished, and a score says what it is."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench_rows import GROWN, ROW
from esper.benchmark import RowsError, RowStore
from esper.benchmark.rows import read_rows, write_rows


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    condemned = replace(
        ROW,
        seed=3,
        test_accuracy=None,
        validation_accuracy=None,
        utility=None,
        added_parameters=None,
        training_flops=None,
        rolled_back="diverged",
        seeds=(replace(GROWN.seeds[0], contribution=None, kept=False),),
    )
    rows = [ROW, GROWN, condemned]
    write_rows(tmp_path / "rows.parquet", rows)
    assert read_rows(tmp_path / "rows.parquet") == rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_scores_are_of_the_test_split_and_pay_rent() -> None:
    assert ROW.score == 0.75
    assert GROWN.score == 0.75 - 0.01 * 713 / 1426
    assert GROWN.parameters == 1426 + 713
    assert replace(GROWN, test_accuracy=None).score == GROWN.utility  # the toy
    assert replace(GROWN, rolled_back="diverged", test_accuracy=None, utility=None).score == 0.0
    assert replace(GROWN, seeds=(replace(GROWN.seeds[0], kept=False),)).kept == ()


def test_a_store_keeps_every_row_once(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    assert store.read() == []
    store.append([GROWN])
    store.append([ROW, replace(ROW, seed=1)])
    store.append([replace(GROWN, wall_seconds=9.0)])  # the same chunk again
    rows = store.read()
    assert [row.key for row in rows] == [
        ("grown", 0, "mnist1d", 0),
        ("wait", 0, "mnist1d", 0),
        ("wait", 0, "mnist1d", 1),
    ]
    assert rows[0].wall_seconds == 9.0
    store.compact()
    assert store.read() == rows
    assert not list((tmp_path / "rows").iterdir())
    store.append([replace(ROW, seed=2)])
    assert len(store.read()) == 4


def test_what_is_no_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RowsError, match=r"rows\.parquet: no rows of episodes can be read"):
        RowStore(tmp_path).read()
    pq.write_table(pa.table({"arm": ["wait"]}), tmp_path / "rows.parquet")
    with pytest.raises(RowsError, match="has no column 'suite'"):
        RowStore(tmp_path).read()
