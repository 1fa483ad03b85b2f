"""Adapters of one size on a frozen transformer: LoRA and AdaLoRA through peft, and the even spread of seeds.

MiniLM on rated sentences where its files are there (docs/tasks.md, "Data on disk"); else a BERT of 50,000 parameters,
trained here on sequences of tokens, on sequences of another rule. Learning rates are the better of two on a target
that is not reported. Goal: the spread is level with LoRA of rank 4 in no more parameters (not met in
20 epochs: docs/adapters.md).
"""

import argparse
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import AdaLoraConfig, AdaLoraModel, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

import esper
from esper.kasmina.hosts.backbones import BertShape, TextBackbone, bert_body
from esper.tolaria.data import DatasetMissing, Split, TaskData
from esper.tolaria.data.drawn import VOCABULARY, load_sequences
from esper.tolaria.data.few_labels import text_target
from esper.tolaria.final_report import test_score
from esper.tolaria.tasks.backbone import BACKBONES
from harness import Row, mean_and_error, report

BATCH = 20
ADAPTED = ["query", "value"]
"""Layers that LoRA changes, in each layer of the transformer: what the paper and peft do."""
HEAD = "head alone"
RATES = {
    HEAD: (0.003, 0.01),
    "LoRA, rank 4": (0.001, 0.003),
    "LoRA, rank 16": (0.001, 0.003),
    "AdaLoRA, rank 6 to 4": (0.003, 0.01),
    "even spread, as many as LoRA 4": (0.001, 0.003),
}
"""arm -> the learning rates that are tried"""
SMALL = BertShape(vocabulary=VOCABULARY + 1, positions=32, width=32, layers=6, heads=2, inner=64)


@dataclass(frozen=True)
class Target:
    """One task on the frozen transformer."""

    name: str
    data: TaskData


@dataclass(frozen=True)
class Transformer:
    """A body that was trained before, and its targets."""

    what: str
    shape: BertShape
    weights: Mapping[str, Tensor]
    tuning: Target
    """What rates are chosen on."""
    targets: tuple[Target, ...]

    def host(self, seed: int) -> TextBackbone:
        """Frozen, with a head that has not learned."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return TextBackbone(self.shape, self.tuning.data.classes, self.weights)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    trained: int
    validation: float
    test: float
    seconds: float


# Transformers


def minilm(labels: int, draws: int) -> Transformer:
    """MiniLM on sentences of three domains; films are for tuning."""
    network = BACKBONES["minilm"]
    weights, vocabulary = network.weights(), network.vocabulary_file()

    def target(domain: str, data: int) -> Target:
        found = text_target(domain, vocabulary, shift="none", amount=1.0, size=labels, noise=0.0, data=data)
        return Target(f"{domain} {data}", found)

    assert isinstance(network.shape, BertShape)
    targets = tuple(
        target(domain, data) for domain in ("tweets", "products", "editorials") for data in range(draws)
    )
    return Transformer("MiniLM", network.shape, weights, target("films", 0), targets)


def drawn_transformer(labels: int, draws: int, epochs: int) -> Transformer:
    """A small one that has learned to tell sequences apart by words, to be adapted to pairs."""

    def target(rule: str, data: int, size: int) -> Target:
        return Target(f"{rule} {data}", load_sequences(rule=rule, classes=4, size=size, noise=0.0, data=data))

    source = target("words", 0, 1000).data
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = TextBackbone(SMALL, source.classes, bert_body(SMALL).state_dict(), trains="all")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        one_epoch(model, optimizer, source.phases[0].train, order, lambda: None)
    targets = tuple(target("pairs", data, labels) for data in range(1, draws + 1))
    return Transformer("a small BERT", SMALL, model.body.state_dict(), target("pairs", 0, labels), targets)


# Arms


def one_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    order: torch.Generator,
    after_step: Callable[[], None],
    penalty: Callable[[], Tensor] | None = None,
) -> None:
    """One pass in minibatches, each cut to its longest text. Nothing in the networks varies by training mode."""
    for rows in torch.randperm(len(split), generator=order).split(BATCH):
        loss = F.cross_entropy(model(_cut(split.inputs[rows])), split.targets[rows])
        loss = loss if penalty is None else loss + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


def run(arm: str, transformer: Transformer, target: Target, rate: float, seed: int, epochs: int) -> Outcome:
    """One network of this arm, from its new head to its score on the test split."""
    train, validation = target.data.phases[0].train, target.data.phases[0].validation
    host = transformer.host(seed)
    model: nn.Module = host
    steps = epochs * -(-len(train) // BATCH)
    after_step: Callable[[], None] = lambda: None  # noqa: E731
    penalty: Callable[[], Tensor] | None = None
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks for a config, which a plain module has not
        torch.default_generator.manual_seed(seed)
        if arm.startswith("LoRA"):
            model = lora(host, int(arm.split()[-1]))
        elif arm.startswith("AdaLoRA"):
            model, after_step, penalty = adalora(host, steps)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    grower = None
    if arm.startswith("even spread"):
        budget = lora_adds(transformer.shape, int(arm.split()[-1]))
        grower = spread(host, optimizer, target, epochs, seed, budget)
        model = grower.model
    order, began = torch.Generator().manual_seed(seed), time.process_time()
    for _ in range(epochs):
        one_epoch(model, optimizer, train, order, after_step, penalty)
        if grower is not None:
            grower.step()
    if grower is not None:
        grower.finish()
        trained += grower.model.added_parameters
    seconds = time.process_time() - began
    model.eval()
    return Outcome(trained, accuracy(model, validation), test_score(model, target.data).accuracy, seconds)


def lora(host: nn.Module, rank: int) -> PeftModel:
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=ADAPTED, modules_to_save=["head"])
    return as_peft(host, config)


def adalora(host: nn.Module, steps: int) -> tuple[PeftModel, Callable[[], None], Callable[[], Tensor]]:
    """Rank 6 that is cut to 4 on average between a fifth and three fifths of the steps; what belongs to a step."""
    config = AdaLoraConfig(
        init_r=6,
        target_r=4,
        lora_alpha=32,  # its factors begin small, and few steps are to come
        tinit=steps // 5,
        tfinal=2 * steps // 5,
        deltaT=2,
        total_step=steps,
        target_modules=ADAPTED,
        modules_to_save=["head"],
    )
    model, step = as_peft(host, config), 0
    tuner = model.base_model
    assert isinstance(tuner, AdaLoraModel)

    def allocate() -> None:
        nonlocal step
        step += 1
        tuner.update_and_allocate(step)  # type: ignore[no-untyped-call]

    def penalty() -> Tensor:
        """Singular vectors should be orthonormal: half the mean of |P P' - 1| over the factors."""
        distances = []
        for name, factor in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                gram = factor @ factor.T if "lora_A" in name else factor.T @ factor
                distances.append(torch.linalg.norm(gram - torch.eye(len(gram))))
        return 0.5 * torch.stack(distances).mean()

    return model, allocate, penalty


def as_peft(host: nn.Module, config: LoraConfig) -> PeftModel:
    model = get_peft_model(host, config)
    assert isinstance(model, PeftModel)
    return model


def lora_adds(shape: BertShape, rank: int) -> int:
    """Parameters that LoRA of this rank adds to a transformer of this shape."""
    return shape.layers * len(ADAPTED) * rank * 2 * shape.width


def spread(
    host: TextBackbone,
    optimizer: torch.optim.Optimizer,
    target: Target,
    epochs: int,
    seed: int,
    budget: int,
) -> esper.Grower:
    """What a Grower does of itself with a frozen host and a budget."""
    phase = target.data.phases[0]
    seen = phase.validation.halves()[0]  # which it looks at for every seed in every epoch
    return esper.Grower(
        host,
        slots=["body.encoder.layer.*"],
        optimizer=optimizer,
        example_input=phase.train.inputs[:2],
        validate=[(seen.inputs[part], seen.targets[part]) for part in _parts(seen)],
        epochs=epochs,
        parameter_budget=budget,
        training_samples=len(phase.train),
        seed=seed,
    )


def _parts(split: Split) -> list[slice]:
    return [slice(start, start + 50) for start in range(0, len(split), 50)]


def _cut(tokens: Tensor) -> Tensor:
    """Without the places where all are padding."""
    return tokens[:, : int((tokens != 0).any(0).nonzero().max()) + 1]


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    model.eval()
    hits = sum(
        int((model(_cut(split.inputs[part])).argmax(1) == split.targets[part]).sum())
        for part in _parts(split)
    )
    return hits / len(split)


# The table


def compare(transformer: Transformer, epochs: int, arms: Collection[str] = tuple(RATES)) -> list[Row]:
    """The head alone and these arms, each with the rate that is best on the tuning target, on every target."""
    outcomes: dict[str, list[Outcome]] = {}
    chosen: dict[str, float] = {}
    for arm, rates in RATES.items():
        if arm != HEAD and arm not in arms:
            continue
        tuned = {
            rate: run(arm, transformer, transformer.tuning, rate, 0, epochs).validation for rate in rates
        }
        chosen[arm] = max(tuned, key=lambda rate: tuned[rate])
        shown = ", ".join(f"{rate:g}: {score:.3f}" for rate, score in tuned.items())
        print(f"{arm}, validation on {transformer.tuning.name} by rate: {shown}", flush=True)
        outcomes[arm] = []
        for seed, target in enumerate(transformer.targets):
            outcomes[arm].append(run(arm, transformer, target, chosen[arm], seed, epochs))
            print(f"  {target.name}: {outcomes[arm][-1]}", flush=True)
    heads = [each.test for each in outcomes[HEAD]]
    rows: list[Row] = []
    for arm, found in outcomes.items():
        test, error = mean_and_error([each.test for each in found])
        gain, gain_error = mean_and_error([each.test - head for each, head in zip(found, heads, strict=True)])
        rows.append(
            {
                "what": arm,
                "rate": chosen[arm],
                "trained": round(sum(each.trained for each in found) / len(found)),
                "test": test,
                "error": error,
                "over the head": gain,
                "its error": gain_error,
                "processor s": sum(each.seconds for each in found) / len(found),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few epochs, to see that it runs")
    parser.add_argument("--labels", type=int, default=200, help="labelled samples (%(default)s)")
    parser.add_argument("--draws", type=int, default=1, help="of samples, of each domain (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="of each run (%(default)s)")
    parser.add_argument(
        "--arms", nargs="+", default=tuple(RATES), choices=tuple(RATES), help="by default all"
    )
    parser.add_argument("--out", type=Path, help="where the numbers go; by default benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    epochs = 6 if options.quick else options.epochs
    try:
        transformer = None if options.quick else minilm(options.labels, options.draws)
    except DatasetMissing as error:
        print(error)
        transformer = None
    transformer = transformer or drawn_transformer(options.labels, options.draws, epochs=epochs)
    title = f"Adapters on {transformer.what}, {options.labels} labels, {len(transformer.targets)} targets"
    report("adalora", title, compare(transformer, epochs, options.arms), out=options.out)


if __name__ == "__main__":
    main()
