"""Lessons as files: what a teacher said comes back with the very steps that it was said of."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import RulePlayer
from esper.simic.offline.dataset import DatasetError
from esper.simic.offline.recording import BY_STEP, Advised, joined
from esper.simic.teaching import record_advised
from esper.tamiyo.rules import rule_policy
from teach_targets import read_lessons, write_lessons


@pytest.fixture(scope="module")
def lessons() -> list[Advised]:
    """Two groups of toy episodes that one rule leads and another would have led otherwise."""
    training = build(TrainingConfig.preset("toy", num_envs=4, num_minibatches=4, pool_cases=16))
    led, said = (RulePlayer(lambda _, name=name: rule_policy(name)) for name in ("wait", "periodic"))  # type: ignore[misc]
    wanted = list(islice(training.pool.pairs(), 8))
    found, _ = record_advised(lambda _: said, led, training.envs.episodes, wanted, policy="x")
    training.envs.close()
    return found


def test_lessons_are_read_as_they_were_written(lessons: list[Advised], tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, lesson in zip(files, lessons, strict=True):
        write_lessons([lesson], file)
    for order in ((0, 1), (1, 0)):
        read = read_lessons([files[place] for place in order])
        whole = joined(lessons[place] for place in order)
        assert read.rows == whole.rows
        assert all(
            torch.equal(getattr(read, name).nan_to_num(), getattr(whole, name).nan_to_num())
            for name in BY_STEP
        )
        assert torch.equal(read.advice, torch.cat([lessons[place].advice for place in order]))
    assert not torch.equal(read.advice, read.action)


def test_a_damaged_file_is_refused(lessons: list[Advised], tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_lessons(lessons, file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"a\.safetensors"):
        read_lessons([file])
