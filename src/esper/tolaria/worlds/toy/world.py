"""The toy as a `World`: many hosts, tens of microseconds an epoch, and their wait-only controls."""

from collections.abc import Mapping, Sequence

from esper.kasmina.stage_machine import GrowthRules
from esper.leyline import ActionSpec, BaselineCurve, Beginning
from esper.tolaria.worlds.toy.host import ToyHost, host_curve, loss_of, measured, noise_of
from esper.tolaria.worlds.toy.instance import toy_instance


class ToyWorld:
    """`num_hosts` hosts with closed-form learning curves."""

    __slots__ = ("_hosts", "rules")

    def __init__(self, num_hosts: int, rules: GrowthRules | None = None) -> None:
        if num_hosts < 1:
            raise ValueError(f"num_hosts is {num_hosts}; expected >= 1")
        self.rules = GrowthRules() if rules is None else rules
        self._hosts: list[ToyHost | None] = [None] * num_hosts

    def begin(self, host_idx: int, case: str, seed: int) -> None:
        self._hosts[host_idx] = ToyHost(toy_instance(case), seed, self.rules)

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        for beginning in beginnings:
            self.begin(*beginning)

    def host(self, host_idx: int) -> ToyHost:
        host = self._hosts[host_idx]
        if host is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin({host_idx}, case, seed) first")
        return host

    def apply(self, host_idx: int, action: ActionSpec) -> None:
        self.host(host_idx).apply(action)

    def epoch(self, host_idxs: Sequence[int]) -> None:
        for host_idx in host_idxs:
            self.host(host_idx).epoch()

    def settle(self, host_idx: int, rent: float, *, committed_only: bool) -> None:
        self.host(host_idx).settle(rent, committed_only=committed_only)

    def settle_many(self, host_idxs: Sequence[int], rent: float, *, committed_only: bool) -> None:
        for host_idx in host_idxs:
            self.settle(host_idx, rent, committed_only=committed_only)

    def state_dict(self, host_idx: int) -> dict[str, object]:
        return self.host(host_idx).state_dict()

    def load_state_dict(self, host_idx: int, state: Mapping[str, object]) -> None:
        case, seed = state["case"], state["seed"]
        assert isinstance(case, str)
        assert isinstance(seed, int)
        self.begin(host_idx, case, seed)
        self.host(host_idx).load_state_dict(state)


class ToyBaselines:
    """What each instance and seed measures when nothing is grown, in closed form, to epoch `horizon`."""

    __slots__ = ("horizon",)

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def curve(self, case: str, seed: int) -> BaselineCurve:
        instance = toy_instance(case)
        bare = host_curve(instance, self.horizon)
        accuracies = tuple(
            measured(accuracy, instance.noise, noise_of(instance, seed, epoch)[0])
            for epoch, accuracy in enumerate(bare)
        )
        return BaselineCurve(accuracies, tuple(loss_of(accuracy) for accuracy in accuracies))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        return [self.curve(case, seed) for case, seed in wanted]
