"""`PolicyNetwork`: behaviour cloning of recorded episodes, with evaluation and persistence."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.simic.cloning.recording import Recording, space_of, space_text
from esper.tamiyo import Actor, GrowthPolicy
from esper.tamiyo.factored import HeadEvaluation
from esper.tamiyo.policy import NO_ACTION, PolicyInputs
from esper.tamiyo.sequences import SequencePlan
from esper.tamiyo.space import GrowthSpace

_FORMAT = "esper-clone-1"


class CloningError(ValueError):
    """What cannot be cloned, saved or loaded."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a network would have decided as recorded, where there was anything to decide."""

    steps: int
    """Steps on which there was a choice."""
    joint: float
    """The share of them on which every head that matters agrees."""
    acting: float | None
    """The same where something else than to wait was done; None where nothing was."""
    by_head: dict[str, float | None]
    """Where a head mattered and had a choice; None where it never did."""
    log_likelihood: float
    """Mean over those steps, of the whole decision."""


@dataclass(frozen=True, slots=True)
class CloningReport:
    losses: tuple[float, ...]
    """Mean negative log-likelihood, pass by pass."""
    training: Agreement
    held_out: Agreement | None


class PolicyNetwork:
    """The growth controller's network, taught by example. PPO can start from its weights.

    >>> network = PolicyNetwork(recording.space)
    >>> report = network.fit(recording, held_out=later)
    >>> network.actor(8).act(...)
    """

    def __init__(
        self,
        space: GrowthSpace,
        *,
        hidden_size: int = 128,
        seed: int = 0,
        notes: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.space, self.hidden_size = space, hidden_size
        self.notes = dict(notes or {})
        """Plain data that travel with the weights: the settings it was recorded under."""
        self.policy = GrowthPolicy(
            space, hidden_size=hidden_size, generator=torch.Generator().manual_seed(seed)
        )
        self._seed = seed

    def fit(
        self,
        recording: Recording,
        *,
        passes: int = 60,
        lr: float = 3e-3,
        batch: int = 16,
        held_out: Recording | None = None,
        tell: Callable[[int, float], None] = lambda *_: None,
    ) -> CloningReport:
        """Maximum likelihood of what was decided, over whole episodes; `tell` hears the loss of each pass.

        The learning rate falls to a tenth. The critic is left as it is.
        """
        self._require_fit(recording)
        if passes < 1 or batch < 1:
            raise ValueError(f"passes is {passes}, batch {batch}; expected whole numbers >= 1")
        parameters = [p for name, p in self.policy.named_parameters() if not name.startswith("critic.")]
        optimizer = torch.optim.Adam(parameters, lr=lr, eps=1e-5)
        anneal = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=passes)
        order_of, losses = torch.Generator().manual_seed(self._seed), []
        for number in range(passes):
            total = count = 0.0
            for chosen in torch.randperm(len(recording), generator=order_of).split(batch):
                loss, steps = self._loss(recording.part(chosen.tolist()))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                total, count = total + loss.item() * steps, count + steps
            anneal.step()
            losses.append(total / max(count, 1.0))
            tell(number, losses[-1])
        later = None if held_out is None else self.agreement(held_out)
        return CloningReport(tuple(losses), self.agreement(recording), later)

    @torch.inference_mode()
    def agreement(self, recording: Recording) -> Agreement:
        """Step by step along what was recorded."""
        self._require_fit(recording)
        evaluation, action, chosen = self._evaluate(recording)
        free = ~evaluation.forced
        if not bool(free.any()):
            raise CloningError("the recording has no step on which anything could be decided")
        right = (action == chosen) | ~evaluation.has_choice  # (step, head)
        # A head that only matters by the network's own choice of an earlier head counts by that head.
        joint, acts = right.all(dim=1)[free], (action[:, 0] != 0)[free]
        names = self.policy.layout.names
        where = evaluation.has_choice
        return Agreement(
            steps=int(free.sum()),
            joint=float(joint.float().mean()),
            acting=float(joint[acts].float().mean()) if bool(acts.any()) else None,
            by_head={
                name: float(right[where[:, head], head].float().mean())
                if bool(where[:, head].any())
                else None
                for head, name in enumerate(names)
            },
            log_likelihood=float(evaluation.log_prob.sum(1)[free].mean()),
        )

    def actor(self, num_envs: int = 1, *, generator: torch.Generator | None = None) -> Actor:
        """For use; greedy without a generator."""
        return Actor(self.policy, num_envs, generator=generator)

    # On disk

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "format": _FORMAT,
            "space": space_text(self.space),
            "hidden_size": str(self.hidden_size),
            "notes": json.dumps(self.notes),
        }
        save_file(
            {name: value.contiguous() for name, value in self.policy.state_dict().items()}, path, metadata
        )

    @staticmethod
    def load(path: Path) -> "PolicyNetwork":
        """From data alone; nothing in the file is executed."""
        try:
            with safe_open(path, "pt") as file:
                written = file.metadata() or {}
                if written.get("format") != _FORMAT:
                    raise ValueError(f"its format is {written.get('format')!r}, expected {_FORMAT!r}")
                network = PolicyNetwork(
                    space_of(written["space"]),
                    hidden_size=int(written["hidden_size"]),
                    notes=json.loads(written["notes"]),
                )
                network.policy.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise CloningError(f"{path}: no cloned policy can be read from it ({error})") from None
        return network

    # Helpers

    def _loss(self, recording: Recording) -> tuple[Tensor, int]:
        evaluation, _, _ = self._evaluate(recording)
        free = ~evaluation.forced
        steps = int(free.sum())
        return -(evaluation.log_prob.sum(1) * free).sum() / max(steps, 1), steps

    def _evaluate(self, recording: Recording) -> tuple[HeadEvaluation, Tensor, Tensor]:
        """Of every recorded step, episodes end to end: its evaluation, the action, and the network's own choice."""
        lengths = recording.length
        inside = torch.arange(recording.action.shape[1]) < lengths[:, None]  # (episode, step)
        before = torch.full_like(recording.action, NO_ACTION)
        before[:, 1:] = recording.action[:, :-1]
        inputs = PolicyInputs(
            recording.observation[inside], before[inside], recording.previous_reward[inside]
        )
        starts = np.zeros(int(lengths.sum()), dtype=np.bool_)
        plan = SequencePlan.build(starts, lengths.numpy(), self.policy.device)
        hidden = torch.zeros(2, len(lengths), self.hidden_size)
        output = self.policy(inputs, hidden, plan)
        distribution = self.policy.distribution(output.logits, recording.mask[inside])
        action = recording.action[inside]
        return distribution.evaluate(action), action, distribution.mode()

    def _require_fit(self, recording: Recording) -> None:
        if recording.space != self.space:
            raise CloningError(
                f"the recording is of slots {', '.join(recording.space.slot_config.slot_ids)} and blueprints "
                f"{', '.join(recording.space.blueprints)}; the network is for "
                f"{', '.join(self.space.slot_config.slot_ids)} and {', '.join(self.space.blueprints)}"
            )
