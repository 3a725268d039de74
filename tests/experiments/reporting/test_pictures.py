"""Pictures leave room for what they draw, however long names are."""

import json
from pathlib import Path

import pytest

from fkgsec.experiments.reporting.pictures import (
    MOST_CASES,
    MOST_COLUMNS,
    comparison_figure,
    draw_comparison,
    draw_picture,
)
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.stored import decode_stored

pytestmark = pytest.mark.usefixtures("rendered")

RECORDS = Path("results/attacks")
LONG = "x" * 300


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", [RECORDS / "umls-transe.json", RECORDS / "graphs/degree-support-fedstar.json"])
def test_long_names_are_cut(path: Path) -> None:
    document = json.loads(path.read_text())
    clients = list(document["data"]["clients"])
    text = path.read_text()
    for number, client in enumerate(clients):
        text = text.replace(f'"{client}"', f'"{LONG}{number}"')
    record = decode_stored(text.replace(f'"name":"{document["data"]["name"]}"', f'"name":"{LONG}"').encode(), Record)
    assert any(LONG in client for client in record.data.clients)
    assert draw_picture(record).startswith(b"\x89PNG")
    assert draw_comparison({LONG: record, f"{LONG}!": record}).startswith(b"\x89PNG")


def test_the_picture_of_a_comparison_has_six_rows_and_five_columns_at_most() -> None:
    """At a width of 600 pixels no text is smaller than 9 pixels."""
    record = read_record(RECORDS / "umls-transe.json")
    picture = comparison_figure({f"psu,secagg,dp:clip={number}": record for number in range(MOST_CASES + 2)})
    assert 3 <= len(picture.axes) <= MOST_COLUMNS
    assert len(picture.axes[0].get_yticks()) == MOST_CASES
    assert "2 more in matrix.png" in picture.get_suptitle()
    texts = [
        text for axes in picture.axes for text in (*axes.texts, axes.title, *axes.get_yticklabels()) if text.get_text()
    ]
    smallest = min(float(text.get_fontsize()) for text in texts)
    assert smallest / 72 / picture.get_figwidth() * 600 > 8.5
