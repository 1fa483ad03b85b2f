"""Learning from recorded episodes: a network that does what a rule, a person or another controller did."""

from esper.simic.cloning.network import Agreement, CloningError, CloningReport, PolicyNetwork
from esper.simic.cloning.recording import Recording, record_episodes
from esper.simic.cloning.starting import clone_rule, require_warm_start, warm_start

__all__ = [
    "Agreement",
    "CloningError",
    "CloningReport",
    "PolicyNetwork",
    "Recording",
    "clone_rule",
    "record_episodes",
    "require_warm_start",
    "warm_start",
]
