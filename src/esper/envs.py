"""Gymnasium ids of the growth environments. Importing this module registers them.

`gymnasium.make("esper.envs:esper/Growth-digits-v0")` imports it by itself; after `import esper.envs` the id alone,
"esper/Growth-digits-v0", is enough. `gymnasium.make_vec` takes the same ids.
"""

import gymnasium

SUITES = (
    *("toy", "toy_shift", "toy_slots", "digits", "mnist1d", "cpu", "shift", "stream", "hosts"),
    *("adapt", "adapt_stream", "backbone"),
)
"""Suites, and tasks, with an id of their own: esper/Growth-<suite>-v0. `esper.make_env` makes any other."""

for _suite in SUITES:
    gymnasium.register(
        f"esper/Growth-{_suite}-v0",
        entry_point="esper.simic.env.making:make_single_env",
        vector_entry_point="esper.simic.env.making:make_registered_vector_env",
        kwargs={"suite": _suite},
    )
