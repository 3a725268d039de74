"""The committed results: every record can be read, and the tables beside them are what the records say."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from experiments import summary
from experiments.record import SCHEMA, read_record

FOLDER = Path(summary.__file__).parent / "results"
RECORDS = sorted(FOLDER.glob("*.json"))


def test_the_tables_are_what_the_command_prints() -> None:
    app = typer.Typer()
    app.command()(summary.main)
    result = CliRunner().invoke(app, [str(path) for path in RECORDS], catch_exceptions=False)
    assert result.exit_code == 0
    assert (FOLDER / "README.md").read_text().endswith(result.stdout)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_say_where_they_come_from(path: Path) -> None:
    record = read_record(path)
    assert record.schema == SCHEMA
    assert record.environment.command.startswith("fkgsec ")
    assert record.environment.commit
    assert record.environment.dirty is False
    assert not any(" /" in warning for warning in record.data.warnings), "a path of somebody's machine"
