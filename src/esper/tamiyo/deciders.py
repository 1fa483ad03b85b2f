"""Deciders: a trained controller or a rule, behind one interface, for one host and once an epoch."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from esper.leyline import ActionSpec, DecisionSettings, HostProtocol
from esper.leyline.errors import nearest
from esper.tamiyo.actions import GrowthSpace, decode
from esper.tamiyo.controller import (
    CARD,
    Controller,
    ControllerError,
    UnknownController,
    shipped_controllers,
)
from esper.tamiyo.networks import GrowthPolicy
from esper.tamiyo.observation import Observer
from esper.tamiyo.policy import ActorState
from esper.tamiyo.rules import RULE_NAMES, RulePolicy, SavableRule, rule_name, rule_policy
from esper.tamiyo.rules.policy import ReasoningRule, decisions_of


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided."""

    action: ActionSpec
    probability: float | None = None
    """Of this action, all heads together; a rule gives none."""
    reason: str | None = None
    """What decided it, in a rule's own words."""


class Decider(ABC):
    """Decides for the one host of an `Observer`."""

    name: str
    """The controller's name, or the rule's."""
    settings: DecisionSettings
    """What it may decide."""
    savable = True
    """Whether its memory can be saved; that of a rule of your own may not."""

    def observer(self, host: HostProtocol, *, horizon: int, parameter_budget: int | None) -> Observer:
        """Return an observer of a host whose report is that of epoch 0, and begin a new episode."""
        observer = Observer(GrowthSpace.covering([host]), 1, decisions=self.settings)
        observer.begin(0, host, horizon=horizon, parameter_budget=parameter_budget)
        self._begin(observer.space)
        return observer

    @abstractmethod
    def _begin(self, space: GrowthSpace) -> None:
        """Forget what there was: an episode begins in a host of this space."""

    @abstractmethod
    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        """Return what to do now; `reward` is that of the epoch that ended."""

    @abstractmethod
    def state_dict(self) -> dict[str, object]:
        """Return its memory: plain data and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict` of the same decider; that of another is refused."""


class LearnedDecider(Decider):
    """A trained controller: greedy, or sampling with a generator."""

    def __init__(self, controller: Controller, *, generator: torch.Generator | None = None) -> None:
        self.controller, self._generator = controller, generator
        self.name, self.settings = controller.card.name, controller.card.decisions
        self._policy: GrowthPolicy | None = None
        self._state: ActorState | None = None

    def _begin(self, space: GrowthSpace) -> None:
        self._policy = self.controller.policy(space)
        self._state = ActorState.initial(self._policy, 1, self._policy.device)

    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        """Return the network's choice and its probability."""
        policy, state = self._ready()
        state.previous_reward = torch.tensor([reward], dtype=torch.float32)
        observer.observe()
        mask = torch.from_numpy(observer.masks())
        actions, evaluation, _, hidden = policy.get_action_batch(
            observer.flat, mask, state, generator=self._generator
        )
        state.hidden, state.previous_action = hidden, actions
        action = decode(actions[0].tolist(), observer.space, host.slot_config, host.cards)
        return Choice(action, math.exp(float(evaluation.log_prob.sum())))

    def state_dict(self) -> dict[str, object]:
        """Return the network's memory, and the generator's state if it samples."""
        state: dict[str, object] = {"memory": self._ready()[1].state_dict()}
        if self._generator is not None:
            state["generator"] = self._generator.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a controller's `state_dict`."""
        memory, generator = state.get("memory"), state.get("generator")
        if not isinstance(memory, dict) or "rule" in state:
            raise ValueError(f"memory is {memory!r}; expected that of a controller, from its state_dict")
        self._ready()[1].load_state_dict(memory)
        if self._generator is not None and isinstance(generator, Tensor):
            self._generator.set_state(generator)

    def _ready(self) -> tuple[GrowthPolicy, ActorState]:
        if self._policy is None or self._state is None:
            raise RuntimeError("this decider has seen no host yet: call observer(host, ...) first")
        return self._policy, self._state


class RuleDecider(Decider):
    """A rule, limited by nothing but the host, the parameter budget and what it may decide."""

    def __init__(self, rule: RulePolicy, name: str) -> None:
        self.rule, self.name, self.settings = rule, name, decisions_of(rule)
        self.savable = isinstance(rule, SavableRule)

    def _begin(self, space: GrowthSpace) -> None:
        del space
        self.rule.reset()

    def decide(self, observer: Observer, host: HostProtocol, *, reward: float) -> Choice:
        """Return what the rule says."""
        del host, reward
        action = self.rule.act(observer.situation(0))
        return Choice(action, reason=self.rule.reason if isinstance(self.rule, ReasoningRule) else None)

    def state_dict(self) -> dict[str, object]:
        """Return the rule's class and its memory."""
        return {"rule": type(self.rule).__name__, "memory": self._savable().state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from the `state_dict` of a decider with a rule of the same class."""
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
    """Return the decider for a controller, its name or folder, a rule, or a rule's name.

    seed       rng seed of the rule `random`
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
        return RuleDecider(asked, rule_name(asked))
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
            f"{_lacking(asked) or nearest(asked, known)}"
        ) from None


def _lacking(asked: str | os.PathLike[str]) -> str | None:
    """What to say of what is meant as a path; None where it may be a misspelt name."""
    path = Path(asked)
    if path.is_dir():
        return f"; the folder {path} holds no {CARD}"
    return f"; there is no folder {path}" if len(path.parts) > 1 or str(asked).startswith(".") else None
