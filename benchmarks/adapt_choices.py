"""What can be grown in a base of the suite `adapt`, as schedules: one seed, two, or a small one in the first slots.

All begin after two epochs, when the head has met the target.
"""

from itertools import product

from esper.benchmark.outcomes import grown

BORN, BLENDS = 2, 6
"""When seeds are planted, and when those two take part, one operation an epoch."""
KINDS = {
    "norm": "norm",
    "depthwise": "depthwise",
    "small": "conv_small|mlp_small",
    "large": "conv_light|mlp",
    "mixing": "mixer|attention",
    "lora": "lora",
}
"""What a seed is -> its blueprint behind convolutions, and behind attention."""
PLACES = ("0", "1", "2", "last")
"""Slots from the input on: the stem, the first blocks, the last one."""


def schedule_of(choice: str) -> str:
    """The schedule of seeds written as kind@place, with a + between them.

    Two may be alive at once: a third waits until the first is fossilised.
    """
    seeds = [seed.split("@") for seed in choice.split(" + ")]
    clauses = [grown(KINDS[kind], place, BORN) for kind, place in seeds[:2]]
    for kind, place in seeds[2:]:
        clauses += [f"fossilize {seeds[0][1]} t={BLENDS}", grown(KINDS[kind], place, BLENDS)]
    return "; ".join(clauses)


SINGLES = {f"{kind}@{place}": schedule_of(f"{kind}@{place}") for place, kind in product(PLACES, KINDS)}
"""kind@place -> one seed there"""
TOGETHER = {
    choice: schedule_of(choice)
    for choice in (
        "norm@0 + small@1",
        "norm@0 + large@1",
        "depthwise@0 + depthwise@1",
        "depthwise@0 + large@1",
        "lora@0 + lora@1",
        "small@0 + small@1",
        "small@1 + small@2",
        "norm@0 + norm@1 + norm@2",
        "lora@0 + lora@1 + lora@2",
    )
}
"""Several seeds -> their schedule; most cost less than half of what LoRA of rank 4 does."""
