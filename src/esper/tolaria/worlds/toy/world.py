"""The toy as a `World`: many hosts, tens of microseconds an epoch, and their baselines."""

from collections.abc import Mapping, Sequence

from esper.kasmina.stage_machine import GrowthRules
from esper.leyline import BaselineCurve, Beginning, HostState, HostStep
from esper.tolaria.worlds.toy.host import ToyHost, host_curve, loss_of, measured, noise_of
from esper.tolaria.worlds.toy.instance import toy_instance


class ToyWorld:
    """`num_hosts` hosts with closed-form learning curves."""

    def __init__(self, num_hosts: int, rules: GrowthRules | None = None) -> None:
        if num_hosts < 1:
            raise ValueError(f"num_hosts is {num_hosts}; expected >= 1")
        self.rules = GrowthRules() if rules is None else rules
        self._hosts: list[ToyHost | None] = [None] * num_hosts

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones."""
        for host_idx, case, seed in beginnings:
            self._hosts[host_idx] = ToyHost(toy_instance(case), seed, self.rules)

    def host(self, host_idx: int) -> ToyHost:
        """One host."""
        host = self._hosts[host_idx]
        if host is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin_many first")
        return host

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Apply the actions of all, then an epoch of each, and settle those that are to be settled."""
        for step in steps:
            if step.action is not None:
                self.host(step.host_idx).apply(step.action)
        for host_idx, action, settling, weigh_fossils in steps:
            host = self.host(host_idx)
            if action is not None:
                host.epoch(weigh_fossils=weigh_fossils)
            if settling is not None and host.report.rolled_back is None:
                host.settle(settling)

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """The states of these hosts, by host index."""
        return {host_idx: self.host(host_idx).state_dict() for host_idx in host_idxs}

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""
        for host_idx, state in states.items():
            self._hosts[host_idx] = ToyHost.from_state(state, self.rules)


class ToyBaselines:
    """What each instance and seed measures when nothing is grown, in closed form, to epoch `horizon`."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """The curve of one instance and rng seed."""
        instance = toy_instance(case)
        bare = host_curve(instance, self.horizon)
        accuracies = tuple(
            measured(accuracy, instance.noise, noise_of(instance, seed, epoch)[0])
            for epoch, accuracy in enumerate(bare)
        )
        return BaselineCurve(accuracies, tuple(loss_of(accuracy) for accuracy in accuracies))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """The curves of several (case, seed)."""
        return [self.curve(case, seed) for case, seed in wanted]
