"""How the bases of the suite `adapt` were trained: `src/esper/tolaria/tasks/base_weights/*.safetensors`.

python scripts/pretrain_bases.py          trains them all, and prints what their accuracy is and the table's hashes
"""

import argparse
import hashlib
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from esper.kasmina.hosts.drawn import DrawnHost
from esper.tolaria.data.targets import FAMILIES, source_split, target_data
from esper.tolaria.final_report import test_score
from esper.tolaria.tasks.adapt import BASES, FOLDER, Base

SAMPLES, DATA = 4000, 2**40
"""Drawn samples of series and pictures, and their rng seed, which no target has."""
EPOCHS, BATCH, RATE = 40, 64, 5e-3


def pretrained(base: Base) -> DrawnHost:
    """A host trained on its family for 40 epochs, at a learning rate that falls to nothing."""
    split, family = source_split(base.family, SAMPLES, DATA), FAMILIES[base.family]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host = DrawnHost(base.shape, family.sample, family.classes)
    order = torch.Generator().manual_seed(0)
    steps = len(split) // BATCH
    optimizer = torch.optim.AdamW(host.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(split), generator=order)[: steps * BATCH].view(steps, BATCH):
            loss = nn.functional.cross_entropy(host(split.inputs[rows]), split.targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return host.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the files are written (%(default)s)")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    for name, base in BASES.items():
        host = pretrained(base)
        content = save(host.state_dict())
        (out / f"{name}.safetensors").write_bytes(content)
        target = target_data(base.family, shift="none", amount=0.0, size=100, noise=0.0, data=0)
        size = sum(parameter.numel() for parameter in host.parameters())
        score = test_score(host, target).accuracy
        print(
            f"{name:18} {size:7,} parameters  {score:.3f}  {hashlib.sha256(content).hexdigest()}", flush=True
        )


if __name__ == "__main__":
    main()
