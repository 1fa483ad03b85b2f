"""Blueprints as the policy sees them: by features, so that a new one needs no new weights."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from esper.leyline import BlueprintCard, BlueprintKind
from esper.tamiyo.scales import bound_in_place, by_percent

KINDS = tuple(BlueprintKind)
BLUEPRINT_FEATURE_NAMES = (*(f"kind_{kind}" for kind in KINDS), "cost", "offered")
BLUEPRINT_FEATURES = len(BLUEPRINT_FEATURE_NAMES)
"""Kind one-hot, log relative parameter cost, and whether the blueprint is offered at the slot."""


def blueprint_features(
    cards: Sequence[Sequence[BlueprintCard]], names: Sequence[str], host_parameters: int
) -> NDArray[np.float32]:
    """Features (slot, blueprint, feature) of the cards each slot offers, blueprints in the order of `names`.

    cost = log(1 + 100 parameters / host parameters), bounded. What a slot does not offer has all features 0.
    """
    if host_parameters < 1:
        raise ValueError(f"host_parameters is {host_parameters}; expected >= 1")
    features = np.zeros((len(cards), len(names), BLUEPRINT_FEATURES), dtype=np.float32)
    for slot, offered in enumerate(cards):
        for card in offered:
            if card.name not in names:
                raise ValueError(f"slot {slot} offers {card.name!r}, which is not among {', '.join(names)}")
            row = features[slot, names.index(card.name)]
            row[KINDS.index(card.kind)] = 1.0
            row[-2] = by_percent(np.array(card.parameters / host_parameters))
            row[-1] = 1.0
    bound_in_place(features)
    return features
