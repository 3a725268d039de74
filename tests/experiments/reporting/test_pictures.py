"""Pictures leave room for what they draw, however long names are."""

import json
from pathlib import Path

import pytest

from fkgsec.experiments.reporting.pictures import draw_comparison, draw_picture
from fkgsec.experiments.runs.record import Record
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
