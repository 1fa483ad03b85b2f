"""Adapters through peft beside the even spread: what each trains, where each begins, and what AdaLoRA cuts."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import bench_adalora as bench
from esper.kasmina.hosts.backbones import BertShape, bert_body
from esper.tolaria.data.drawn import load_sequences

SHAPE = BertShape(vocabulary=13, positions=32, width=8, layers=2, heads=2, inner=8)


@pytest.fixture
def transformer() -> bench.Transformer:
    def target(data: int) -> bench.Target:
        found = load_sequences(rule="words", classes=4, size=60, noise=0.0, data=data)
        return bench.Target(f"words {data}", found)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        weights = bert_body(SHAPE).state_dict()
    return bench.Transformer("a tiny BERT", SHAPE, weights, target(0), (target(1),))


def trained(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def ranks(model: nn.Module) -> Iterator[Tensor]:
    """AdaLoRA's diagonal of each adapted layer."""
    return (value for name, value in model.named_parameters() if "lora_E" in name)


def test_lora_begins_as_the_frozen_network_and_adds_what_is_counted(transformer: bench.Transformer) -> None:
    inputs = transformer.targets[0].data.phases[0].train.inputs[:5]
    plain = transformer.host(3)
    for rank in (4, 16):
        model = bench.lora(transformer.host(3), rank)
        torch.testing.assert_close(model(inputs), plain(inputs))
        assert trained(model) == trained(plain) + bench.lora_adds(SHAPE, rank)


def test_adalora_gives_ranks_where_they_matter_and_cuts_the_others(transformer: bench.Transformer) -> None:
    host = transformer.host(3)
    model, after_step, penalty = bench.adalora(host, steps=20)
    assert penalty().item() > 0.0
    inputs = transformer.targets[0].data.phases[0].train.inputs[:20]
    torch.testing.assert_close(model(inputs), transformer.host(3)(inputs))
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.01)
    for _ in range(20):
        loss = model(inputs).square().mean() + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()
    kept = sum(int((value != 0).sum()) for value in ranks(model))
    assert sum(value.numel() for value in ranks(model)) == 6 * 4  # query and value of two layers
    assert kept == 4 * 4


def test_the_table_has_every_arm_with_its_better_rate(
    transformer: bench.Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {("head alone", 0.003): 0.4, ("head alone", 0.01): 0.6}

    def run(
        arm: str, _: bench.Transformer, target: bench.Target, rate: float, seed: int, epochs: int
    ) -> bench.Outcome:
        assert epochs == 3
        if target is transformer.tuning:
            assert seed == 0
            return bench.Outcome(10, scores.get((arm, rate), 0.5), 0.0, 1.0)
        return bench.Outcome(10, 0.0, 0.6 if arm == "head alone" else 0.7, 2.0)

    monkeypatch.setattr(bench, "run", run)
    rows = bench.compare(transformer, epochs=3)
    assert [row["what"] for row in rows] == list(bench.RATES)
    assert rows[0]["rate"] == 0.01
    assert rows[1]["over the head"] == pytest.approx(0.1)
    assert rows[0]["test"] == pytest.approx(0.6)
    some = bench.compare(transformer, 3, ["LoRA, rank 16"])
    assert [row["what"] for row in some] == [bench.HEAD, "LoRA, rank 16"]


def test_every_arm_runs_and_the_spread_keeps_to_its_budget(transformer: bench.Transformer) -> None:
    head = trained(transformer.host(0))
    for arm in bench.RATES:
        outcome = bench.run(arm, transformer, transformer.targets[0], 0.003, seed=0, epochs=7)
        assert 0.0 <= outcome.test <= 1.0
        if arm.startswith("even spread"):
            assert head <= outcome.trained <= head + bench.lora_adds(SHAPE, 4)


def test_padding_at_the_end_is_cut_and_nowhere_else() -> None:
    tokens = torch.tensor([[3, 0, 4, 0, 0], [5, 6, 0, 0, 0]])
    assert bench._cut(tokens).tolist() == [[3, 0, 4], [5, 6, 0]]
