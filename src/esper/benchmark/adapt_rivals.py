"""What others do with a base on a target: train its head alone, fine-tune all of it, or add LoRA at every layer.

Each is an instance of the same task that trains something else and grows nothing. `benchmarks/study_adapt.py`
tunes learning rates on drawn targets.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from esper.benchmark.arms import WAIT, Arm, Hosts, Staging
from esper.simic.evaluation import RulePlayer
from esper.tamiyo.rules import rule_policy
from esper.tolaria.tasks import Instance, Parameter
from esper.tolaria.tasks.adapt import BASES
from esper.tolaria.tasks.backbone import BACKBONES

BASED = ("adapt", "adapt_stream", "backbone")
"""The tasks whose hosts are bases."""
RATES = {"fine_tuning": (0.0005, 0.002, 0.005), "lora": (0.002, 0.005, 0.015)}
"""Learning rates that are tried."""


@dataclass(frozen=True, slots=True)
class AdaptRival:
    """One way to train, with its settings."""

    name: str
    trains: str
    statistics: str = "target"
    lr: float | None = None
    """None is the task's own, which the head of a growing host has, too."""
    backbone_lr: float | None = None
    """The same on published networks, which bear less; None is `lr`."""

    def __str__(self) -> str:
        return self.name if self.lr is None else f"{self.name}, lr {self.lr:g}"

    def case(self, case: str) -> str:
        """The same target, with a host that is trained this way; a base without BatchNorm has no statistics."""
        instance = Instance.parse(case)
        given = dict(instance.parameters)
        known = instance.row.complete(given)
        changes: dict[str, Parameter] = {"trains": self.trains}
        if _normalises_batches(known):
            changes["statistics"] = self.statistics
        lr = self.backbone_lr if instance.task == "backbone" and self.backbone_lr is not None else self.lr
        if lr is not None:
            changes["lr"] = lr
        return str(Instance.of(instance.task, given | changes))


def _normalises_batches(parameters: Mapping[str, Parameter]) -> bool:
    """Whether the network of an instance has BatchNorm layers, and so statistics of what it has learned."""
    if "backbone" in parameters:
        return not BACKBONES[str(parameters["backbone"])].reads_texts
    return BASES[str(parameters["base"])].normalises_batches


def adapt_rivals() -> list[AdaptRival]:
    """Every rival in every setting; what has one name is to be tuned."""
    rivals = [AdaptRival("head, source statistics", "head", "source")]
    for statistics in ("target", "moving", "source"):
        name = f"fine-tuning, {statistics} statistics"
        rivals += [AdaptRival(name, "all", statistics, rate) for rate in RATES["fine_tuning"]]
    for rank in (4, 16):
        rivals += [AdaptRival(f"lora {rank}", f"lora{rank}", lr=rate) for rate in RATES["lora"]]
    return rivals


ADAPT_ARMS: Mapping[str, AdaptRival] = {
    "fine_tuning": AdaptRival("fine_tuning", "all", "moving", lr=0.002, backbone_lr=0.0003),
    "lora4": AdaptRival("lora4", "lora4", lr=0.005, backbone_lr=0.001),
    "lora16": AdaptRival("lora16", "lora16", lr=0.002, backbone_lr=0.001),
}
"""The arms that a benchmark of bases has besides, as `benchmarks/study_adapt.py` tuned them on other draws."""


@dataclass(frozen=True, slots=True)
class AdaptArm(Arm):
    """A rival as an arm of a benchmark: hosts that are trained its way, and wait."""

    name: str
    rival: AdaptRival

    @property
    def identity(self) -> str:
        return f"rival on targets: {self.rival}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[tuple[str, int, str], ...]:
        """Waiting: added parameters are counted over its host's."""
        del instances
        return ((WAIT, 0, instance),)

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        case = self.rival.case(hosts.instance)
        return Staging(RulePlayer(lambda _: rule_policy(WAIT)), tuple(case for _ in hosts.seeds))
