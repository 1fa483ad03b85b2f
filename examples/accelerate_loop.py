"""Growth in a loop under Hugging Face Accelerate: make the Grower first, then prepare, then register the growth.

python examples/accelerate_loop.py [--epochs 12]
python examples/accelerate_loop.py --folder saved --stop 5   # saves every epoch, and stops
python examples/accelerate_loop.py --folder saved            # goes on

Accelerate wraps the optimiser; the Grower cares for what is inside, so it is made before that. One process and one
device; for several see examples/ddp_loop.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import esper
from digits_cnn import digits, network
from esper.integrations.accelerate import register_growth


def main(arguments: Sequence[str] | None = None) -> esper.Grower:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12, help="of the run (default 12)")
    parser.add_argument("--folder", type=Path, help="save every epoch there, and go on from what is there")
    parser.add_argument("--stop", type=int, default=0, help="after this epoch (default: at the end)")
    options = parser.parse_args(arguments)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.default_generator.manual_seed(0)
    model = network(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
    loader = DataLoader(TensorDataset(*digits().train), batch_size=32, shuffle=True)
    grower = esper.Grower(
        model,
        slots=["0", "1", "2"],
        optimizer=optimizer,
        scheduler=scheduler,
        example_input=digits().train[0][:2],
        controller=esper.rule_policy("probe_and_keep", candidates=("conv_heavy@0",), start=2, margin=0.0),
        validate=[digits().validation],
        epochs=options.epochs,
        accumulate=2,
    )
    prepared, wrapped_optimizer, batches, rates = accelerator.prepare(model, optimizer, loader, scheduler)
    register_growth(accelerator, grower)
    if options.folder is not None and options.folder.is_dir():
        accelerator.load_state(str(options.folder))
    for epoch in range(grower.epoch, options.stop or options.epochs):
        prepared.train()
        for inputs, targets in batches:
            with accelerator.accumulate(prepared):
                loss = F.cross_entropy(prepared(inputs), targets)
                accelerator.backward(loss)
                wrapped_optimizer.step()
                wrapped_optimizer.zero_grad()
        rates.step()
        print(f"epoch {epoch + 1:2}  loss {loss.item():.3f}  {grower.step(train_loss=loss)}")
        if options.folder is not None:
            accelerator.save_state(str(options.folder))
    if grower.epoch < options.epochs:
        return grower
    grower.finish()
    print(grower.explain())
    return grower


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
