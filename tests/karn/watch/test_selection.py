"""What is looked at survives in the address; what makes no sense there is left out."""

from urllib.parse import parse_qs, urlsplit

import pytest

from esper.karn.watch.runs import MOST_BESIDE, Selection


def again(selection: Selection) -> Selection:
    query = parse_qs(urlsplit(selection.address()).query)
    return Selection.of({name: values[-1] for name, values in query.items()}, query.get("beside", []))


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(run="a&b=<c>#?", beside=["é ü", "x/y"], theme="dark", env=0, episode=7, epoch=3),
        Selection(run="x", theme="light"),
    ],
)
def test_there_and_back(selection: Selection) -> None:
    assert again(selection) == selection


def test_nonsense_is_left_out() -> None:
    odd = {"run": "", "theme": "<script>", "env": "-1", "episode": "²", "epoch": "9" * 400}
    assert Selection.of(odd, [""]) == Selection()
    assert Selection.of({"env": "3"}, []) == Selection()  # an env without an episode says nothing
    assert len(Selection.of({}, [str(n) for n in range(50)]).beside) == MOST_BESIDE
