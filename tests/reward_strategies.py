"""What the tests of rewards draw from."""

from hypothesis import strategies as st

from esper.leyline import Standing
from esper.simic.reward import RewardConfig

shares = st.floats(0.0, 1.0)
standings = st.builds(
    Standing,
    accuracy=shares,
    loss=st.floats(0.0, 10.0),
    added_parameters=st.integers(0, 500),
    control_accuracy=shares,
    control_loss=st.floats(0.0, 10.0),
)
configs = st.builds(
    RewardConfig,
    family=st.sampled_from(["contribution", "loss"]),
    mode=st.sampled_from(["sparse", "shaped"]),
    rent=st.floats(0.0, 1.0),
    gamma=st.floats(0.5, 1.0),
    control_variate=st.booleans(),
)
ends = st.sampled_from(
    [(False, False, False), (True, False, False), (False, True, False), (True, False, True)]
)
"""(terminated, truncated, rolled_back)"""
