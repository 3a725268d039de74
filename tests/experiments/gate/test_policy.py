"""Policies: what a file may say, and one line with file, line and key for what it may not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.attacks import ATTACKS, THREAT_MODELS, Needs
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate.measures import MEASURES, Question
from fkgsec.experiments.gate.policy import figure_id, read_policy

GOOD = """\
federations:
  hospitals:
    defense: psu,secagg
    rounds: 3
  relations: {algorithm: fedr, leak: [0.3, 1.0]}
seeds: [0, 1]
limits:
  reconstruction.trr:
    - {max: 0.05, leak: 0.7, threat: collusion, federation: hospitals}
    - {max: 0.5, threat: collusion+entities, federation: relations}
  utility.mrr: {min: 0.2}
  bytes.per_round: {max: 1.5 MiB}
  epsilon: {max: 8, unit: row, delta: 1e-5}
  no_worse_than: {baseline: old.json, by: 0.01}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def test_limits_stand_for_every_federation_threat_and_leak_that_they_do_not_name(tmp_path: Path) -> None:
    policy = read_policy(write(tmp_path, GOOD))
    assert [limit.id for limit in policy.limits] == [
        "hospitals/reconstruction.trr/collusion/0.7/all",
        "relations/reconstruction.trr/collusion+entities/0.3/all",
        "relations/reconstruction.trr/collusion+entities/1/all",
        "hospitals/utility.mrr",
        "relations/utility.mrr",
        "hospitals/bytes.per_round",
        "relations/bytes.per_round",
        "hospitals/epsilon",
        "relations/epsilon",
    ]
    assert [limit.line for limit in policy.limits[:4]] == [9, 10, 10, 11]
    assert policy.limits[5].allowed == 1.5 * 2**20
    assert policy.limits[7].question == Question(unit="row", delta=1e-5)
    assert policy.seeds == {"hospitals": (0, 1), "relations": (0, 1)}
    assert policy.no_worse is not None
    assert (policy.no_worse.baseline, policy.no_worse.by, policy.no_worse.line) == (Path("old.json"), 0.01, 14)


def test_a_run_answers_every_question_on_the_processor_where_results_repeat(tmp_path: Path) -> None:
    spec = read_policy(write(tmp_path, GOOD)).federations["hospitals"]
    assert (spec.threat, spec.leak, spec.device) == (("collusion", "identifiers"), (0.5, 0.7), "cpu")


def test_a_federation_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("dim: 16\nrounds: 7\nseed: 4\n")
    federation = f"{{spec: {tmp_path / 'spec.yaml'}, rounds: 9}}"
    policy = read_policy(write(tmp_path, f"federations: {{own: {federation}}}\nlimits: {{utility.mrr: {{min: 0.1}}}}"))
    spec = policy.federations["own"]
    assert (spec.dim, spec.rounds, policy.seeds) == (16, 9, {"own": (4,)})


def test_an_empty_defense_is_none(tmp_path: Path) -> None:
    text = GOOD.replace("defense: psu,secagg", "defense:")
    assert read_policy(write(tmp_path, text)).federations["hospitals"].defense == ""


MEMBER, FORGET = "{max: 0.6, victim: hospital-2, shadows: 4}", "{max: 0.6, forget: f.tsv, method: ascent}"
AUDITS = f"federations: {{a: {{rounds: 3}}}}\nlimits:\n  membership.auc: {MEMBER}\n  unlearning.auc: {FORGET}\n"


def test_membership_and_unlearning_say_what_they_ask(tmp_path: Path) -> None:
    policy = read_policy(write(tmp_path, AUDITS))
    assert [limit.question for limit in policy.limits] == [
        Question(victim="hospital-2", shadows=4), Question(forget="f.tsv", method="ascent"),
    ]  # fmt: skip
    assert [limit.id for limit in policy.limits] == [
        "a/membership.auc/hospital-2/4 shadows", "a/unlearning.auc/ascent/f.tsv",
    ]  # fmt: skip


def test_a_gain_is_of_all_clients_of_each_or_of_one(tmp_path: Path) -> None:
    text = gain("0").replace(
        " {min: 0}", "\n    - {min: 0}\n    - {min: -0.01, client: each}\n    - {min: 0, client: hospital-2}"
    )
    limits = [limit for limit in read_policy(write(tmp_path, text)).limits if limit.measure == "gain_over_single"]
    assert [(limit.id, limit.allowed) for limit in limits if limit.federation == "hospitals"] == [
        ("hospitals/gain_over_single", 0.0),
        ("hospitals/gain_over_single/each", -0.01),
        ("hospitals/gain_over_single/hospital-2", 0.0),
    ]


def audits(old: str, new: str) -> str:
    assert old in AUDITS
    return AUDITS.replace(old, new)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def gain(limit: str) -> str:
    return changed("utility.mrr: {min: 0.2}", f"gain_over_single: {{min: {limit}}}")


TRR = "{max: 0.05, leak: 0.7, threat: collusion, federation: hospitals}"
BAD: list[tuple[str, str]] = [
    ("", "policy.yaml: federations: missing or empty; a policy names federations and limits"),
    ("limits: {utility.mrr: {min: 0.1}}", "policy.yaml: federations: missing or empty"),
    ("federations: {a: {rounds: 3}}\nlimits: {}", "policy.yaml: limits: missing or empty"),
    ("- a", "policy.yaml:1: expected a mapping; got list"),
    ("federations: {a: [\n", "policy.yaml:2: not YAML (expected the node content, but found '<stream end>')"),
    ("federations:\n  a: {rounds: 3}\n a: 3", "policy.yaml:3: not YAML"),
    ("federations: &a {x: *a}", "aliases are not supported"),
    (changed("limits:\n", "limit:\n"), "policy.yaml:7: limit: unknown key; did you mean limits?"),
    (changed("utility.mrr", "utility.mmr"), "policy.yaml:11: limits.utility.mmr: unknown key; did you mean utility.mrr?"),
    (changed("{min: 0.2}", "{mim: 0.2}"), "policy.yaml:11: limits.utility.mrr.mim: unknown key; did you mean min?"),
    (changed("{min: 0.2}", "{max: 0.2}"), "limits.utility.mrr.max: unknown key"),
    (changed("{min: 0.2}", "{federation: hospitals}"), "policy.yaml:11: limits.utility.mrr: min is missing"),
    (changed("{min: 0.2}", "0.2"), "limits.utility.mrr: expected a mapping; got float"),
    (changed("{min: 0.2}", "{min: 20 %}"), "limits.utility.mrr.min: must be a share above 0 and below 1; got '20 %'"),
    (changed("max: 0.05", "max: -0.05"), "policy.yaml:9: limits.reconstruction.trr.0.max: must be a share above 0"),
    (changed("max: 0.05", "max: 0"), "must be a share above 0 and below 1; got 0"),
    (changed("max: 0.05", "max: .nan"), "must be a share above 0 and below 1; got nan"),
    (changed("max: 0.05", "max: true"), "must be a share above 0 and below 1; got True"),
    (changed("threat: collusion,", "threat: colusion,"), "'colusion' is unknown; did you mean collusion?"),
    (changed("threat: collusion,", "threat: server,"), "cannot run on hospitals under server: no element-embedding pair"),
    (changed("threat: collusion+entities", "threat: collusion"), "relations under collusion: fedr transmits no entity"),
    (changed("leak: 0.7", "leak: 1.7"), "limits.reconstruction.trr.0.leak: must be in (0, 1]; got 1.7"),
    (changed("federation: hospitals", "federation: hospital"), "no federation 'hospital'; did you mean hospitals?"),
    (changed("max: 0.05", "victim: 3, max: 0.05"), "trr.0.victim: expected a client's name; got 3"),
    (changed(f"- {TRR}\n", f"- {TRR}\n    - {TRR}\n"), "hospitals/reconstruction.trr/collusion/0.7/all is limited twice"),
    (changed("utility.mrr:", "bytes.per_round: {max: 3}\n  utility.mrr:"), "limits.bytes.per_round: given twice"),
    (changed("1.5 MiB", "1.5 MBit"), "policy.yaml:12: limits.bytes.per_round.max: unknown unit 'MBit'; allowed: B, kB, MB"),
    (changed("1.5 MiB", "-1 MB"), "limits.bytes.per_round.max: must be above 0; got '-1'"),
    (changed("1.5 MiB", "1e308 TB"), "limits.bytes.per_round.max: must be at most 1e+18 B"),
    (changed("max: 8", "max: 1e308"), "limits.epsilon.max: must be above 0 and at most 1e+06; got"),
    (changed("delta: 1e-5", "delta: 0.999999"), "limits.epsilon.delta: must be in (0, 0.1); got 0.999999"),
    (changed("{min: 0.2}", "{min: 1e-12}"), "limits.utility.mrr.min: must be at least 0.0001"),
    (changed("1.5 MiB", "much"), "expected a number with a unit, such as 5 MB; got 'much'"),
    (changed("max: 8", "max: -8"), "limits.epsilon.max: must be above 0 and at most 1e+06; got -8"),
    (changed("unit: row", "unit: triple"), "limits.epsilon.unit: must be client or row; got 'triple'"),
    (changed("by: 0.01", "by: -0.01"), "limits.no_worse_than.by: must be in [0, 1); got -0.01"),
    (changed(", by: 0.01", ""), "limits.no_worse_than: by is missing"),
    (changed("baseline: old.json, ", ""), "limits.no_worse_than.baseline: expected a path; got None"),
    (changed("rounds: 3", "rounds: 0"), "policy.yaml:4: federations.hospitals.rounds: rounds must be at least 1; got 0"),
    (changed("rounds: 3", "round: 3"), "policy.yaml:4: federations.hospitals.round: unknown key; did you mean rounds?"),
    (changed("rounds: 3", "rounds:"), "policy.yaml:4: federations.hospitals.rounds: has no value"),
    (changed("fedr,", "fedr, metric: published,"), "policy.yaml:5: federations.relations.metric: metric must be paper: the"),
    (changed("fedr,", "fedr, inference: cosine,"), "policy.yaml:5: federations.relations.inference: inference must not be set"),
    (changed("rounds: 3", "seed: 3"), "federations.hospitals.seed: set seed here or seeds for all, not both"),
    (changed("rounds: 3", "spec: none.yaml"), "none.yaml: cannot be read"),
    (changed("psu,secagg", "psu"), "policy.yaml:3: federations.hospitals.defense: defense: psu needs secagg"),
    (changed("hospitals:\n", "a/b:\n"), "a federation's name must not contain /"),
    (changed("algorithm: fedr", "algorithm: collective"), "cannot run on relations under collusion+entities: one party"),
    (changed("[0, 1]", "[]"), "policy.yaml:6: seeds: expected a list of whole numbers; got []"),
    (changed("[0, 1]", "[0, 0]"), "seeds: a seed is given twice: 0, 0"),
    (audits("shadows: 4", "shadows: 3"), "policy.yaml:3: limits.membership.auc.shadows: must be 0 or an even number of at"),
    (audits("shadows: 4", "shadows: true"), "limits.membership.auc.shadows: must be 0 or an even number"),
    (audits("shadows: 4", "threat: collusion"), "limits.membership.auc.threat: must be one of identifiers, models, "),
    (audits("victim: hospital-2", "victim: 2"), "limits.membership.auc.victim: expected a client's name; got 2"),
    (audits("forget: f.tsv, ", ""), "policy.yaml:4: limits.unlearning.auc: forget is missing: the file with the triples"),
    (audits("forget: f.tsv", "forget: 3"), "limits.unlearning.auc.forget: expected a path; got 3"),
    (audits("forget: f.tsv", "forget: ''"), "limits.unlearning.auc.forget: expected a path; got ''"),
    (audits("method: ascent", "method: hope"), "limits.unlearning.auc.method: must be one of fedlu, retrain"),
    (audits("method: ascent", "client: 1"), "limits.unlearning.auc.method: fedlu cannot unlearn a, whose algorithm is fede"),
    (audits("method: ascent", "method: ascent, client: 1"), "limits.unlearning.auc.client: expected a client's name"),
    (gain("1.5"), "policy.yaml:11: limits.gain_over_single.min: must be a difference above -1 and below 1; got 1.5"),
    (gain("-1"), "limits.gain_over_single.min: must be a difference above -1 and below 1; got -1"),
    (gain("much"), "limits.gain_over_single.min: must be a difference above -1 and below 1; got 'much'"),
    (gain("0, client: 3"), "policy.yaml:11: limits.gain_over_single.client: expected a client's name; got 3"),
    (gain("0, victim: all"), "limits.gain_over_single.victim: unknown key"),
    (gain("0").replace("min", "max"), "limits.gain_over_single.max: unknown key"),
    (gain("0").replace("fedr", "single, threat: [models]"), "limits.gain_over_single: relations has nothing to gain: its"),
    (changed("[0, 1]", "[0, -1]"), "seeds: a seed is a whole number that is not negative; got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), BAD)
def test_what_a_policy_must_not_say(text: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        read_policy(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_threat_that_the_federation_names_and_that_cannot_run_is_not_dropped_silently(tmp_path: Path) -> None:
    text = "federations: {a: {threat: [collusion, server]}}\nlimits: {reconstruction.trr: {max: 0.1}}"
    with pytest.raises(SpecError, match="cannot run on a under server"):
        read_policy(write(tmp_path, text))


def test_wrong_input_exits_2_with_one_line_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, says in (
        (GOOD.replace("utility.mrr", "utility.mmr"), "fkgsec: policy.yaml:11: limits.utility.mmr: unknown key"),
        (GOOD, "fkgsec: old.json: the baseline cannot be read (No such file or directory)"),
        (
            GOOD.replace("max: 0.05", "victim: nobody, max: 0.05"),
            "victim: must be all or one of hospital-2, hospital-3",
        ),
        (
            gain("0, client: nobody"),
            "gain_over_single.client: must be each or one of hospital-1, hospital-2, hospital-3;",
        ),
        (GOOD.replace("psu,secagg", "psu,secagg,suppress:t=9"), "suppress: t is 9, but 3 clients"),
        (GOOD.replace("rounds: 3", "data: nowhere"), "nowhere"),
    ):
        write(tmp_path, text)
        (tmp_path / "check.xml").write_text("<testsuites>the verdict of an earlier check</testsuites>")
        result = CliRunner().invoke(app, ["check", "policy.yaml", "--junit", "check.xml"])
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("fkgsec: ")
        assert says in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "check.xml").exists()
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.yaml"], "nothing.yaml: cannot be read (No such file or directory)"),
        (["--init", "policy.yaml"], "policy.yaml: exists, and may have been edited; name another place"),
        (["--init", "none/policy.yaml"], "none/policy.yaml: its folder does not exist"),
        (["--data", "Nations"], "--data, --clients and --partition apply to --init only"),
        (["--junit", "none/check.xml"], "--junit: none/check.xml: its folder does not exist"),
        (["--markdown", "."], "--markdown: .: is not a plain file"),
        (["--update-baseline"], "limits.no_worse_than is missing; --update-baseline writes the file that it names"),
    ],
)
def test_wrong_options(arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "federations: {a: {rounds: 3}}\nlimits: {utility.mrr: {min: 0.1}}\n")
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("fkgsec: ")
    assert says in result.stderr


def test_a_report_that_is_a_device_or_a_link_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "federations: {a: {rounds: 3}}\nlimits: {utility.mrr: {min: 0.1}}\n")
    (tmp_path / "aim").write_text("kept")
    (tmp_path / "link").symlink_to("aim")
    result = CliRunner().invoke(app, ["check", "--json", "link"])
    assert (result.exit_code, result.stderr) == (2, "fkgsec: --json: link: is not a plain file\n")
    assert (tmp_path / "link").read_text() == "kept"


def test_every_measure_of_an_attack_has_an_id_with_threat_leak_and_victim() -> None:
    for name, measure in MEASURES.items():
        question = Question("collusion", 0.5) if "threat" in measure.keys else Question()
        assert figure_id("a", name, question).count("/") == (4 if "threat" in measure.keys else 1)


def test_what_cannot_run_is_what_the_attack_finds_nothing_in() -> None:
    never = ATTACKS["reconstruction"].needs.never
    assert never("fede", THREAT_MODELS["collusion"]) is None
    assert never("fedr", THREAT_MODELS["collusion+entities"]) is None
    assert never("single", THREAT_MODELS["identifiers"]) == "single transmits no entity embedding"
    assert never("fede", THREAT_MODELS["server"]) == "no element-embedding pair is known without a colluder"
    assert never("collective", THREAT_MODELS["collusion"]) == "one party holds all triples"
    assert Needs(single_uploads=("entities",)).never("fedr", THREAT_MODELS["server"]) == "fedr transmits no entities"
    assert Needs(names=True).never("fede", THREAT_MODELS["collusion"]) == "names are hidden"
    for attack in ("reconstruction", "structure", "edges"):  # a lone client sees no upload
        assert ATTACKS[attack].needs.never("fede", THREAT_MODELS["client"]) == "it takes a server"
        assert "client" not in ATTACKS[attack].threat_models
