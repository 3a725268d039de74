"""The committed results: every record can be read, and the tables beside them are what the records say."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from experiments import summary
from experiments.compare import read_comparison
from experiments.record import SCHEMA, Record, read_record

FOLDER = Path(summary.__file__).parent / "results"
RECORDS = {path.stem: read_record(path) for path in sorted(FOLDER.glob("*.json"))}
for path in sorted((FOLDER / "defended").glob("*.json")):
    comparison = read_comparison(path)
    assert comparison is not None
    RECORDS |= {f"{path.stem} {case.name}": case.record for case in comparison.cases}


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "defended"], ids=["results", "defended"])
def test_the_tables_are_what_the_command_prints(folder: Path) -> None:
    app = typer.Typer()
    app.command()(summary.main)
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    result = CliRunner().invoke(app, files, catch_exceptions=False)
    assert result.exit_code == 0
    assert (folder / "README.md").read_text().endswith(result.stdout)


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_records_say_where_they_come_from(record: Record) -> None:
    assert record.schema == SCHEMA
    assert record.environment.command.startswith("fkgsec ")
    assert record.environment.commit
    assert record.environment.dirty is False
    assert " /" not in record.environment.command, "a path of somebody's machine"
    assert not any(" /" in warning for warning in record.data.warnings), "a path of somebody's machine"
