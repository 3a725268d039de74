"""The picture that says what stands beside a figure: each kind is told by the cell itself, and drawn where it lies."""

from typing import Any
from xml.etree import ElementTree

import msgspec

from experiments.docs.figure_picture import KINDS, cells_of_record, draw, examples, kind_of, picture
from experiments.reporting.matrix import Cell
from fkgsec.estimate import Estimate, exact


def test_it_has_an_example_of_each_kind() -> None:
    words = "".join(ElementTree.fromstring(picture()).itertext())
    assert all(one in words for one in KINDS.values())
    assert len(examples(cells_of_record())) == len(KINDS)


def test_kinds() -> None:
    cell = examples(cells_of_record())["base"][1]
    figure, half = cell.figure, exact(0.5, 9)
    assert figure is not None
    assert cell.given

    def kind(**fields: Any) -> str:
        return kind_of(Cell(msgspec.structs.replace(figure, **fields)))

    assert kind_of(Cell(figure, "nothing crossed")) == "none"
    assert kind(baseline=half) == "all"
    assert kind(baseline=half, estimate=Estimate(0.6, 0.55, 0.65, 9, "")) == "leaked"
    assert kind(baseline=half, estimate=Estimate(0.6, 0.45, 0.75, 9, "")) == "", "a leak is not shown"


def test_a_figure_is_drawn_where_it_lies() -> None:
    figure = examples(cells_of_record())["base"][1].figure
    assert figure is not None
    figure = msgspec.structs.replace(
        figure, estimate=Estimate(0.5, 0.25, 0.75, 9, ""), baseline=exact(0, 9), attainable=1
    )
    drawn = ElementTree.fromstring(draw({"leaked": ("a < b", Cell(figure)), "none": ("c", Cell(reason="x < y"))}))
    (dot,) = [one for one in drawn.iter() if one.tag.endswith("circle")]
    scale, *lines = [one for one in drawn.iter() if one.tag.endswith("line")][:4]
    left, right = float(scale.get("x1", 0)), float(scale.get("x2", 0))
    assert float(dot.get("cx", 0)) == (left + right) / 2
    most, base, interval = ((float(one.get("x1", 0)), float(one.get("x2", 0))) for one in lines)
    assert (most, base) == ((right, right), (left, left))
    assert interval == (left + (right - left) / 4, left + 3 * (right - left) / 4)
