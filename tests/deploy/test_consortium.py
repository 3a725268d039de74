"""`fkgsec deploy init` and the commands that read what it made: what lies where, who may read it, and refusals in one line."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.certificates import Authority, public_pem
from fkgsec.experiments.deploy.consortium import Plan, commands, make_consortium
from fkgsec.experiments.deploy.data import read_party_data
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder, read_settings
from fkgsec.experiments.deploy.policy import PartySettings
from fkgsec.experiments.tasks.kge import Spec

SPEC = Spec(size=600, dim=8, rounds=2, defense="psu,secagg")
NAMES = ("hospital-1", "hospital-2", "hospital-3")
SECRET = {"authority/ca.key", "server/tls/server.key"}
SECRET |= {f"parties/{name}/{file}" for name in NAMES for file in ("node/key", "state/identity.key")}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deploy") / "consortium"
    make_consortium(place, SPEC, Plan(parties=dict.fromkeys(NAMES, "")), SPEC.load_graph())
    return place


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["deploy", *arguments])
    return done.exit_code, done.output


def test_only_the_owner_reads_secrets_and_enters_folders(consortium: Path) -> None:
    files = {str(path.relative_to(consortium)): path for path in consortium.rglob("*") if path.is_file()}
    assert set(files) >= SECRET
    holding_keys = {name for name, path in files.items() if b"PRIVATE KEY" in path.read_bytes()}
    assert holding_keys <= SECRET
    for name, path in files.items():
        if name in SECRET:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, name
    for folder in (consortium, *(path for path in consortium.iterdir() if path.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_each_party_has_its_own_data_and_the_server_has_none(consortium: Path) -> None:
    graph = SPEC.load_graph()
    for client in graph.clients:
        data = read_party_data(consortium / "parties" / client.name / "data", client.name)
        assert data.clients[0].triples.tolist() == client.triples.tolist()
    names = {path.name for path in (consortium / "server").rglob("*")}
    assert not names & {"train.txt", "valid.txt", "test.txt", "data", "identity.key"}


def test_the_agreement_is_the_same_for_all_and_within_every_policy(consortium: Path) -> None:
    agreement = Agreement.read(ServerFolder(consortium / "server").agreement)
    assert agreement.parties == NAMES
    assert agreement.options == SPEC.federation_options()
    for name in NAMES:
        folder = PartyFolder(consortium / "parties" / name)
        assert Agreement.read(folder.agreement).digest == agreement.digest
        settings = read_settings(folder.settings, PartySettings, "party")
        settings.policy.check(agreement)
        assert settings.name == name


def test_the_server_knows_each_supernode_by_its_key(consortium: Path) -> None:
    keys = ServerFolder(consortium / "server").public_keys()
    assert keys == {
        name: public_pem((consortium / "parties" / name / "node" / "key.pub").read_bytes()) for name in NAMES
    }
    Authority.read((consortium / "authority/ca.key").read_bytes(), (consortium / "authority/ca.crt").read_bytes())
    assert "BEGIN PUBLIC KEY" in keys["hospital-1"]


def test_a_consortium_is_never_written_over(consortium: Path) -> None:
    before = {path: path.read_bytes() for path in consortium.rglob("*") if path.is_file()}
    status, said = run("init", "--clients", "3", "--size", "600", "--out", str(consortium))
    assert (status, said.count("\n")) == (2, 1)
    assert "is there already; a consortium is never written over" in said.replace("\n", " ")
    assert {path: path.read_bytes() for path in consortium.rglob("*") if path.is_file()} == before


def test_parties_with_data_of_their_own_are_named(tmp_path: Path) -> None:
    out = tmp_path / "apart"
    status, said = run(
        *("init", "--party", "berlin=/data/berlin", "--party", "paris=/data/paris", "--dim", "16", "--rounds", "2"),
        *("--server", "federation.example.org:9443", "--out", str(out)),
    )
    assert status == 0, said
    assert json.loads((out / "parties/paris/party.json").read_text())["data"] == "/data/paris"
    assert json.loads((out / "parties/paris/node/node.json").read_text())["server"] == "federation.example.org:9443"
    assert json.loads((out / "server/server.json").read_text())["listen"] == "0.0.0.0"
    assert json.loads((out / "server/spec.json").read_text())["data"] == "parties"
    assert not list(out.rglob("train.txt"))


def test_what_parties_score_themselves_is_agreed_on(tmp_path: Path) -> None:
    status, said = run("init", "--size", "600", "--dim", "8", "--attack", "membership", "--out", str(tmp_path / "out"))
    assert status == 0, said
    assert Agreement.read(tmp_path / "out/server/agreement.json").audit == ("membership",)
    assert json.loads((tmp_path / "out/parties/hospital-2/party.json").read_text())["policy"]["terms"]["audit"] == [
        "membership"
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--party", "berlin"], "party must be NAME=FOLDER; got 'berlin'"),
        (["--party", "a=x", "--party", "a=y"], "party: a is given twice"),
        (["--party", "../a=x", "--party", "b=y"], "party: '../a' cannot be a folder's name"),
        (["--party", "a=x", "--party", "b=y", "--clients", "3"], "clients divides data among parties"),
        (["--server", "nowhere"], "server must be a host and a port, such as 127.0.0.1:8443; got 'nowhere'"),
        (["--server", "host:70000"], "server must be a host and a port"),
        (["--server", "no host:8443"], "host: 'no host' is no name or address of a host"),
        (["--superlink-port", "0"], "superlink_port must lie in 1..65535; got 0"),
        (["--algorithm", "fedavg"], "dim applies to knowledge-graph embedding"),
        (["--attack", "reconstruction"], "audit: 'reconstruction' cannot be scored by one party alone"),
        (["--algorithm", "single"], "algorithm: single exchanges nothing with parties apart"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    small = [] if "--party" in arguments else ["--size", "600"]
    status, said = run("init", *arguments, *small, "--dim", "8", "--out", str(tmp_path / "out"))
    assert status == 2
    assert said.startswith(f"fkgsec: {line}"), said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["superlink", "supernode", "party", "server", "up"])
def test_other_folders_are_refused_in_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("flwr", "flower-superlink", "flower-supernode", "python"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("FKGSEC_FLOWER", str(programs))
    status, said = run(command, str(tmp_path / "nothing"))
    assert (status, said.count("\n")) == (2, 1), said
    assert str(tmp_path / "nothing") in said


def test_a_party_refuses_terms_that_its_policy_does_not_allow(consortium: Path, tmp_path: Path) -> None:
    folder = tmp_path / "party"
    shutil.copytree(consortium / "parties" / "hospital-1", folder)
    agreement = Agreement.read(folder / "agreement.json")
    msgspec.structs.replace(agreement, options=msgspec.structs.replace(agreement.options, rounds=200)).write(
        folder / "agreement.json"
    )
    status, said = run("party", str(folder))
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("fkgsec: policy: accepts agreement ")


def test_services_use_commands_and_folders_that_are_there(consortium: Path) -> None:
    services = yaml.safe_load((consortium / "compose.yaml").read_text())["services"]
    assert len(services) == 2 + 2 * len(NAMES)
    for service in services.values():
        command = service["command"]
        assert run(command[1], "--help")[0] == 0
        for volume in service["volumes"]:
            assert (consortium / volume.split(":")[0]).is_dir()
    for place, name in enumerate(NAMES, 1):
        assert services[f"party-{place}"]["network_mode"] == "none"
        mounted = {volume.split(":")[0] for volume in services[f"supernode-{place}"]["volumes"]}
        assert mounted == {f"./parties/{name}/node", f"./parties/{name}/door"}
    readme = (consortium / "README.md").read_text()
    for command in commands(NAMES):
        assert f"    {command}\n" in readme


def test_services_are_what_the_compose_specification_allows(consortium: Path) -> None:
    words = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(consortium / "compose.yaml")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ok -- validation done")


def test_a_plan_names_folders() -> None:
    with pytest.raises(SpecError, match="cannot be a folder's name"):
        Plan(parties={"a/b": "", "c": ""})
    assert Plan(parties={"a": "", "b": ""}, server="[::1]:8443").host == "::1"


def test_a_folder_that_cannot_be_made_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        make_consortium(tmp_path / "file" / "out", SPEC, Plan(parties=dict.fromkeys(NAMES, "")))
