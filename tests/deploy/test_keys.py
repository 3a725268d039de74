"""Keys that parties draw themselves: a new agreement comes of them, and refusals where a run, a party or a key does not fit."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.certificates import public_pem
from fkgsec.experiments.deploy.consortium import Plan, make_consortium
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder, read_settings
from fkgsec.experiments.deploy.policy import PartySettings
from fkgsec.experiments.tasks.kge import Spec

NAMES = ("berlin", "paris")
SPEC = Spec(dim=8, rounds=2, defense="psu,secagg")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_consortium(tmp_path / "consortium", SPEC, Plan(parties=dict.fromkeys(NAMES, "/data")))
    return tmp_path / "consortium"


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["deploy", *map(str, arguments)])
    assert done.exit_code in (0, 2), done.output
    assert done.exit_code == 0 or done.stderr.count("\n") == 1
    return done.output


def test_a_party_that_draws_its_own_keys_is_admitted_and_all_agree_anew(place: Path) -> None:
    party, server = PartyFolder(place / "parties" / "berlin"), ServerFolder(place / "server")
    before, old, secret = (
        server.public_keys(),
        Agreement.read(server.agreement),
        (party.state / "identity.key").read_bytes(),
    )
    run("key", party.path)
    assert (party.state / "identity.key").read_bytes() != secret
    assert "PRIVATE" not in (party.path / "public.json").read_text()
    run("admit", server.path, party.path / "public.json")
    new, keys = Agreement.read(server.agreement), server.public_keys()
    assert new.digest != old.digest
    assert keys["paris"] == before["paris"]
    assert keys["berlin"] == public_pem(party.public_key.read_bytes()) != before["berlin"]
    for name in NAMES:
        if name != "berlin":
            said = run("agree", place / "parties" / name, server.agreement)
            assert "identities.berlin" in said
            assert new.fingerprint not in said
        accept = () if name == "berlin" else ("--accept", "identities.berlin")
        said = run("agree", place / "parties" / name, server.agreement, *accept)
        assert new.fingerprint in said
        folder = PartyFolder(place / "parties" / name)
        assert Agreement.read(folder.agreement) == new
        read_settings(folder.settings, PartySettings, "party").policy.check(new)


def test_a_supernodes_key_alone_changes_no_agreement(place: Path) -> None:
    party, server = PartyFolder(place / "parties" / "berlin"), ServerFolder(place / "server")
    (party.state / "party.safetensors").write_bytes(b"of a run that has begun")
    (server.run).mkdir()
    (server.run / "checkpoint.safetensors").write_bytes(b"of a run that has begun")
    before, old = server.public_keys(), Agreement.read(server.agreement)
    assert "its run has begun" in run("key", party.path)
    run("key", party.path, "--node")
    run("admit", server.path, party.path / "public.json")
    assert Agreement.read(server.agreement) == old
    assert server.public_keys()["berlin"] != before["berlin"]


def test_a_secret_that_comes_after_the_run_began_is_refused(place: Path) -> None:
    server = ServerFolder(place / "server")
    run("key", place / "parties" / "berlin")
    server.run.mkdir()
    (server.run / "checkpoint.safetensors").write_bytes(b"")
    before = {path: path.read_bytes() for path in server.path.rglob("*") if path.is_file()}
    assert "the run has begun" in run("admit", server.path, place / "parties" / "berlin" / "public.json")
    assert {path: path.read_bytes() for path in server.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"party": "rome"}, "party: 'rome' is not among the parties berlin, paris"),
        ({"run": "0" * 32}, "run: the keys of berlin are for 00000"),
        ({"node": "ssh-rsa AAAA"}, "no public key in OpenSSH's format"),
        ({"identity": "xyz"}, "identities: the key of berlin must be 64 hexadecimal digits"),
        ({"more": 1}, "public.json: cannot be read"),
    ],
)
def test_keys_that_do_not_fit_are_refused(change: dict[str, object], line: str, place: Path) -> None:
    run("key", place / "parties" / "berlin")
    path = place / "parties" / "berlin" / "public.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = {one: one.read_bytes() for one in (place / "server").rglob("*") if one.is_file()}
    assert line in run("admit", place / "server", path)
    assert {one: one.read_bytes() for one in (place / "server").rglob("*") if one.is_file()} == before


def test_a_party_agrees_to_what_has_its_key_and_fits_its_policy(place: Path, tmp_path: Path) -> None:
    party = place / "parties" / "berlin"
    agreement = place / "server" / "agreement.json"
    run("key", party)
    assert "has another key of berlin" in run("agree", party, agreement)
    other = tmp_path / "agreement.json"
    told = json.loads(agreement.read_text())
    told["options"]["rounds"] = 100
    other.write_text(json.dumps(told))
    assert "rounds: the policy accepts 2; the agreement has 100" in run("agree", place / "parties" / "paris", other)
    assert "no agreement" in run("agree", party, place / "server" / "server.json")
    told["parties"], told["identities"]["rome\x1b[2K"] = ["berlin", "paris", "rome\x1b[2K"], "ab" * 32
    other.write_text(json.dumps(told))
    said = run("agree", place / "parties" / "paris", other)
    assert r"identities.rome\x1b[2K: absent" in said
    assert "\x1b[2K" not in said


def test_a_new_certificate_is_of_the_same_authority(place: Path) -> None:
    tls = place / "server" / "tls"
    before = (tls / "server.crt").read_bytes(), (tls / "ca.crt").read_bytes()
    run("certificate", place / "server", "--authority", place / "authority", "--host", "federation.example.org")
    assert (tls / "server.crt").read_bytes() != before[0]
    assert (tls / "ca.crt").read_bytes() == before[1]
    shutil.rmtree(place / "authority")
    assert "ca.key: cannot be read" in run("certificate", place / "server", "--authority", place / "authority")
