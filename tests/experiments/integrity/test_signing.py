"""Signed records: whatever a record says is covered, by whichever key, and a changed digest does not help."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.integrity.origin import seal_of
from fkgsec.experiments.integrity.signing import check_signature, draw_key, sign_record, signature_file
from fkgsec.experiments.runs.record import read_record

COMMITTED = Path(__file__).parents[3] / "results/tables/kge/fedr-table2-transe-local-ddb14-c20-seed0.json"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return Path(shutil.copy(COMMITTED, tmp_path / "record.json"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    draw_key(path)
    return path


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def verify_run(*arguments: str | Path) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["verify-run", *map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.stdout.splitlines()


def change(path: Path, where: tuple[str, ...], value: object) -> None:
    """Change a record as an author of a false one would: with its digest made to fit."""
    document = json.loads(path.read_bytes())
    inner = document
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    document["origin"]["record"] = seal_of(document)
    path.write_text(json.dumps(document))


def test_a_signature_is_made_and_holds(record: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    done = CliRunner().invoke(app, ["sign", str(record), "--key", str(key), "--make-key"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert key.stat().st_mode & 0o077 == 0, "others can read the private key"
    code, lines = verify_run(record, "--key", public(key))
    assert code == 0
    assert [line.rpartition(": ")[2] for line in lines] == ["record holds", "signature holds"]


def test_a_signed_record_with_one_changed_figure_is_refused(record: Path, key: Path) -> None:
    sign_record(record, key)
    estimate = read_record(record).utility["hits@10"]
    change(record, ("utility", "hits@10", "value"), estimate.value + 1e-4)
    assert verify_run(record)[0] == 0, "the digest fits, so that only the signature tells"
    code, lines = verify_run(record, "--key", public(key), "--quiet")
    assert code == 1
    assert lines == [f"{record}: signature broken ({record}: was changed after it was signed)"]


@pytest.mark.parametrize("where", [("items", "outcomes"), ("environment", "commit"), ("origin", "checkpoint")])
def test_items_environment_and_digests_are_covered(record: Path, key: Path, where: tuple[str, str]) -> None:
    sign_record(record, key)
    before = json.loads(record.read_bytes())[where[0]][where[1]]
    document = json.loads(record.read_bytes())
    document[where[0]][where[1]] = before[:-1] + ("A" if before[-1] != "A" else "B")
    document["origin"]["record"] = seal_of(document)
    record.write_text(json.dumps(document))
    with pytest.raises(RunError):
        check_signature(record, public(key))


def test_layout_does_not_count(record: Path, key: Path) -> None:
    sign_record(record, key)
    record.write_text(json.dumps(json.loads(record.read_bytes())))
    check_signature(record, public(key))


def test_another_key_and_no_signature_are_refused(record: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        check_signature(record, public(key))
    sign_record(record, key)
    other = draw_key(tmp_path / "other.pem")
    with pytest.raises(RunError, match="not signed by the key"):
        check_signature(record, other)


def test_a_signature_for_another_record_is_refused(record: Path, key: Path, tmp_path: Path) -> None:
    sign_record(record, key)
    other = tmp_path / "other.json"
    shutil.copy(COMMITTED.with_name("fedr-table2-transe-fedr-ddb14-c20-seed0.json"), other)
    shutil.copy(signature_file(record), signature_file(other))
    with pytest.raises(RunError, match="was changed after it was signed"):
        check_signature(other, public(key))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"schema": "x", "record": "", "items": "", "signature": "zz"}']
)
def test_what_is_no_signature_is_refused(record: Path, key: Path, content: bytes) -> None:
    signature_file(record).write_bytes(content)
    with pytest.raises(RunError):
        check_signature(record, public(key))


def test_a_changed_record_is_not_signed(record: Path, key: Path) -> None:
    document = json.loads(record.read_bytes())
    document["utility"]["hits@10"]["value"] += 1e-4
    record.write_text(json.dumps(document))
    with pytest.raises(RunError, match="changed records are not signed"):
        sign_record(record, key)


def test_a_key_is_not_written_over(key: Path) -> None:
    before = key.read_bytes()
    with pytest.raises(RunError, match="exists already"):
        draw_key(key)
    public(key).unlink()
    with pytest.raises(RunError, match="name another key"):
        draw_key(key)
    assert key.read_bytes() == before


def test_what_is_no_key_is_refused(record: Path, key: Path) -> None:
    with pytest.raises(RunError, match="private key"):
        sign_record(record, public(key))
    sign_record(record, key)
    with pytest.raises(RunError, match="public key"):
        check_signature(record, key)
