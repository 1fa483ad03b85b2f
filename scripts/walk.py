"""How far one epoch walks through the code: `python scripts/walk.py`.

Files and functions of esper that run (a) between two decisions of a training over two hosts: deciding, training
both for an epoch, reward, events; (b) then drawing that run with `esper watch --once`; (c) in one `Grower.step` that
waits. What only happens on import is not counted.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import torch
from torch import nn

import esper
from esper.karn.drawing import THEMES
from esper.karn.watch.runs import RunsFolder
from esper.karn.watch.sheet import render
from esper.leyline import LifecycleOp
from esper.simic.env.growth_env import GrowthVectorEnv

PACKAGE = str(Path(esper.__file__).parent)
STEP = 8
"""The step of an episode that is walked: seeds can be alive by then."""


@dataclass
class Walk:
    """Functions of esper that were called, as (file, qualified name)."""

    functions: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            self.functions.add((code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})


@contextmanager
def walked(walk: Walk) -> Iterator[None]:
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(None)


def epoch(folder: Path) -> Walk:
    """Between two decisions of a training run, both hosts in this process."""
    walk, steps = Walk(), 0
    plain = GrowthVectorEnv.step

    def step(env: GrowthVectorEnv, actions: object) -> object:
        nonlocal steps
        steps += 1
        result = plain(env, actions)  # type: ignore[arg-type]
        sys.setprofile(walk if steps == STEP else None)
        return result

    config = esper.TrainingConfig.preset(
        "cpu",
        rounds=1,
        pool_cases=2,
        num_minibatches=1,
        num_envs=2,
        workers=0,
        run_directory=str(folder),
        run_name="walk",
    )
    with patch.object(GrowthVectorEnv, "step", step):
        esper.train(config)
    return walk


def dashboard(folder: Path) -> Walk:
    walk = Walk()
    with walked(walk):
        render(RunsFolder(folder), "walk", THEMES["light"])
    return walk


def waiting() -> Walk:
    """A Grower's step that waits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(16, 8), torch.randint(0, 2, (16,))) for _ in range(4)]
    grower = esper.Grower(
        model, slots=["1"], optimizer=optimizer, example_input=batches[0][0], validate=batches
    )
    loss = nn.functional.cross_entropy(model(batches[0][0]), batches[0][1])
    loss.backward()
    optimizer.step()
    walk = Walk()
    with walked(walk):
        decision = grower.step(train_loss=loss)
    assert decision.action.op is LifecycleOp.WAIT, decision
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the files")
    listed = parser.parse_args().list
    with tempfile.TemporaryDirectory() as place:
        step = epoch(Path(place))
        drawn = Walk(step.functions | dashboard(Path(place)).functions)
    walks = {"epoch": step, "epoch and dashboard": drawn, "Grower.step that waits": waiting()}
    for name, walk in walks.items():
        print(f"{name:24} {len(walk.files):4} files {len(walk.functions):4} functions")
        if listed:
            print(*(f"  {file}" for file in walk.files), sep="\n")
    print(
        json.dumps(
            {name: {"files": len(w.files), "functions": len(w.functions)} for name, w in walks.items()}
        )
    )


if __name__ == "__main__":
    main()
