"""The moving picture is what its script makes of the record, and shows all that grew."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sized
from statistics import mean

import pytest

import life_of_a_network as life

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found() -> life.Record:
    return life.RECORDS.validate_json(life.RECORD.read_bytes())


def test_the_picture_is_of_the_record(found: life.Record) -> None:
    assert life.PICTURE.read_text() == life.draw(found), "run: python scripts/life_of_a_network.py"


def test_it_names_every_seed_that_germinated_and_what_came_of_it(found: life.Record) -> None:
    named = {title.text for title in ET.parse(life.PICTURE).iter(f"{SVG}title")}
    ends = [each for each in found.decisions if each.operation in ("PRUNE", "FOSSILIZE")]
    for born in (each for each in found.decisions if each.operation == "GERMINATE"):
        begins = f"{born.blueprint} at {born.slot}, germinated after epoch {born.epoch}, "
        (name,) = (name for name in named if name is not None and name.startswith(begins))
        end = next((each for each in ends if each.slot == born.slot and each.epoch > born.epoch), None)
        if end is None:
            assert name.endswith("still on trial at the end")
        elif end.operation == "FOSSILIZE":
            assert name.endswith(f"kept from epoch {end.epoch + 1} on")
        else:
            assert name.endswith(f"pruned after epoch {end.epoch}")
    assert len(named) == sum(each.operation == "GERMINATE" for each in found.decisions)


def test_it_stands_alone_and_moves_without_a_script(found: life.Record) -> None:
    text = life.PICTURE.read_text()
    assert len(text) < 150_000
    assert not re.search(r"<script|href|url\(|@import", text)
    assert f"{mean(found.grown):.0%} over its life where it may grow, {mean(found.alone):.0%} left" in text
    moved = set(re.findall(r"animation-name:(\w+)", text))
    assert moved == set(re.findall(r"@keyframes (\w+)", text))
    for name in moved:
        frames = re.search(rf"@keyframes {name}{{(.*?)}}}}", text)
        assert frames is not None
        shares = [float(share) for share in re.findall(r"([\d.]+)%", frames[1])]
        assert shares == sorted(shares), name  # else a frame would be out of its time
        assert 0.0 <= shares[0] <= shares[-1] <= 100.0


def test_the_first_frame_is_the_whole_picture() -> None:
    """A film that begins elsewhere has a cover over its lines, and seeds that are not there yet."""
    text = life.PICTURE.read_text()
    (length, begins) = re.search(r"animation:none (\d+)s linear -([\d.]+)s infinite", text).groups()  # type: ignore[union-attr]
    share = 100 * float(begins) / float(length)
    whole = {
        "cover": "transform:scaleX(0)",
        "head": "transform:none;stroke-opacity:0",
        "sum": "opacity:1",
    }
    for name, declared in whole.items():
        frames = re.search(rf"@keyframes {name}{{(.*?}})}}", text)
        assert frames is not None
        timed = [
            (float(percent.rstrip("%")), there)
            for percents, there in re.findall(r"([\d.,%]+){(.*?)}", frames[1])
            for percent in percents.split(",")
        ]
        before = [there for percent, there in timed if percent <= share]
        after = [there for percent, there in timed if percent >= share]
        assert before[-1] == after[0] == declared, name


def test_the_record_is_whole(found: life.Record) -> None:
    lists: list[Sized] = [found.alone, found.grown, found.added_parameters, *found.slots.values()]
    assert {len(entries) for entries in lists} == {life.EPOCHS}
    first, _ = life.CHANGES[0]
    assert found.alone[:first] == found.grown[:first]  # nothing has grown before the first change
    assert max(found.added_parameters) <= life.BUDGET
