"""Whoever decides for one host, once an epoch: a trained controller or a rule, behind one interface."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from esper.leyline import ActionSpec, DecisionSettings, HostProtocol
from esper.tamiyo.actions import GrowthSpace, decode
from esper.tamiyo.controller import Controller, ControllerError, UnknownController, shipped_controllers
from esper.tamiyo.growth_policy import GrowthPolicy
from esper.tamiyo.observation import Observer
from esper.tamiyo.policy import ActorState
from esper.tamiyo.rules import RULE_NAMES, RulePolicy, SavableRule, rule_policy


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided. How sure a rule is, nobody knows: None."""

    action: ActionSpec
    probability: float | None = None
    """Of this very action, all heads together."""
    value: float | None = None
    """The utility that is still to come, as the critic sees it."""


class Decider(Protocol):
    """Decides for the one host of an `Observer`."""

    @property
    def name(self) -> str:
        """Of the controller or the rule."""
        ...

    @property
    def settings(self) -> DecisionSettings:
        """What it may decide; its observers are made with these."""
        ...

    def observer(self, host: HostProtocol, *, horizon: int, parameter_budget: int | None) -> Observer:
        """Eyes as this decider needs them, on a host whose report is that of epoch 0; its memory begins anew."""
        ...

    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        """What to do now; `reward` is that of the epoch that ended."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Its memory: plain data and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on with what `state_dict` returned."""
        ...


class LearnedDecider:
    """A trained controller: greedy, or sampling with a generator."""

    def __init__(self, controller: Controller, *, generator: torch.Generator | None = None) -> None:
        self.controller, self._generator = controller, generator
        self._policy: GrowthPolicy | None = None
        self._state: ActorState | None = None

    @property
    def name(self) -> str:
        return self.controller.card.name

    @property
    def settings(self) -> DecisionSettings:
        return self.controller.card.decisions

    def observer(self, host: HostProtocol, *, horizon: int, parameter_budget: int | None) -> Observer:
        observer = _watching(host, horizon, parameter_budget, self.settings)
        self._policy = self.controller.policy(observer.space)
        self._state = ActorState.initial(self._policy, 1, self._policy.device)
        return observer

    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        policy, state = self._ready()
        state.previous_reward = torch.tensor([reward], dtype=torch.float32)
        observer.observe()
        mask = torch.from_numpy(observer.masks())
        actions, evaluation, value, hidden = policy.get_action_batch(
            observer.flat, mask, state, generator=self._generator
        )
        state.hidden, state.previous_action = hidden, actions
        action = decode(actions[0].tolist(), observer.space, host.slot_config, host.cards)
        return Choice(action, math.exp(float(evaluation.log_prob.sum())), float(value))

    def state_dict(self) -> dict[str, object]:
        state: dict[str, object] = {"memory": self._ready()[1].state_dict()}
        if self._generator is not None:
            state["generator"] = self._generator.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        memory, generator = state.get("memory"), state.get("generator")
        if not isinstance(memory, dict):
            raise ValueError(f"memory is {memory!r}; expected that of a controller, from its state_dict")
        self._ready()[1].load_state_dict(memory)
        if self._generator is not None and isinstance(generator, Tensor):
            self._generator.set_state(generator)

    def _ready(self) -> tuple[GrowthPolicy, ActorState]:
        if self._policy is None or self._state is None:
            raise RuntimeError("this decider has seen no host yet: call observer(host, ...) first")
        return self._policy, self._state


class RuleDecider:
    """A rule that needs no learning."""

    settings = DecisionSettings()

    def __init__(self, rule: RulePolicy, name: str) -> None:
        self.rule, self._name = rule, name

    @property
    def name(self) -> str:
        return self._name

    def observer(self, host: HostProtocol, *, horizon: int, parameter_budget: int | None) -> Observer:
        self.rule.reset()
        return _watching(host, horizon, parameter_budget, self.settings)

    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        del host, reward
        return Choice(self.rule.act(observer.situation(0)))

    def state_dict(self) -> dict[str, object]:
        return {"rule": type(self.rule).__name__, "memory": self._savable().state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        rule, memory = state.get("rule"), state.get("memory")
        if rule != type(self.rule).__name__ or not isinstance(memory, Mapping):
            raise ValueError(f"the state is that of {rule}; expected that of a {type(self.rule).__name__}")
        self._savable().load_state_dict(memory)

    def _savable(self) -> SavableRule:
        if not isinstance(self.rule, SavableRule):
            raise TypeError(
                f"{type(self.rule).__name__} cannot be saved: give it state_dict() and load_state_dict(state)"
            )
        return self.rule


def decider(
    asked: str | os.PathLike[str] | Controller | RulePolicy,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
) -> Decider:
    """Whoever was asked for: a controller, its name or folder, a rule, or a rule's name.

    seed       of the rule `random`
    generator  lets a controller sample instead of taking its first choice
    """
    if isinstance(asked, Controller):
        return LearnedDecider(asked, generator=generator)
    if not isinstance(asked, str | os.PathLike):
        given: object = asked
        if isinstance(given, type) or not isinstance(given, RulePolicy):
            raise ControllerError(
                f"controller is {asked!r}; expected a name, a folder, a Controller, or a policy with reset() and "
                "act(situation)"
            )
        return RuleDecider(asked, type(asked).__name__)
    if asked == "schedule":
        raise ControllerError(
            "the rule schedule needs its text: pass rule_policy('schedule', schedule='germinate mixer@1 t=0; ...')"
        )
    if isinstance(asked, str) and asked in RULE_NAMES:
        return RuleDecider(rule_policy(asked, rng=np.random.default_rng(seed)), asked)
    try:
        return LearnedDecider(Controller.load(asked), generator=generator)
    except UnknownController:
        known = [*shipped_controllers(), *RULE_NAMES]
        raise ControllerError(
            f"controller is {str(asked)!r}; expected one of {', '.join(known)}, or the folder of a controller"
        ) from None


def _watching(
    host: HostProtocol, horizon: int, parameter_budget: int | None, settings: DecisionSettings
) -> Observer:
    observer = Observer(GrowthSpace.covering([host]), 1, decisions=settings)
    observer.begin(0, host, horizon=horizon, parameter_budget=parameter_budget)
    return observer
