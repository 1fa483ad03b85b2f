"""Names for people: arms, instances and numbers."""

from esper.tolaria.tasks import Instance

ARMS = {
    "wait": "never grows: what every gain is measured against",
    "random": "any legal operation, uniformly",
    "periodic": "tries the next cheapest seed every few epochs",
    "plateau": "tries the next cheapest seed when validation stops improving",
    "fit_ratio": "grows a host that underfits, prunes one that overfits",
    "probe_and_keep": "tries candidates one after another, keeps what contributes, prunes the rest",
    "detect_then_probe": "the same, once validation has fallen as it does when the data change",
    "sbs": "the single best open-loop schedule, found by search on training draws",
    "vbs": "the best schedule of each instance, chosen on other hosts than it is scored on: an oracle of sorts",
    "static": "the bare host, wider from the start, with as many parameters as the matched arm ended with",
    "from_birth": "the seeds that the matched arm kept, grown from the first epoch on",
    "from_scratch": "the final architecture of the matched arm, trained from the first step as one network",
    "random_matched": "as many seeds of about the same size as the matched arm kept; where, when and what at random",
    "blind": "what the matched arm did on another instance, done here without looking",
}
LEARNED = "a trained controller, greedy"


def about_arm(arm: str) -> str:
    return ARMS.get(arm, LEARNED)


def short_instance(case: str) -> str:
    """`mnist1d:classes=8,data=1,noise=0.009,...` -> `3,263 samples, 75 % shuffled, 1 % noise, 8 classes`."""
    if case.startswith("toy"):
        return case
    instance = Instance.parse(case)
    values = dict(instance.parameters)
    parts = [] if instance.task in ("mnist1d", "shift") else [instance.task]
    if "kind" in values or instance.task == "shift":
        parts.append(f"{values.get('kind', 'classes')} at {values.get('change', 10)}")
    if "size" in values:
        parts.append(f"{values['size']:,} samples")
    if "shuffled" in values:
        parts.append(f"{100 * float(values['shuffled']):.0f} % shuffled")
    if "noise" in values:
        parts.append(f"{100 * float(values['noise']):.0f} % noise")
    if "classes" in values:
        parts.append(f"{values['classes']} classes")
    return ", ".join(parts) or instance.task


def big(value: float) -> str:
    """1,426; 2.1 G"""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:.2f} {unit}"
    return f"{value:,.0f}"
