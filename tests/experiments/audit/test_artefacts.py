"""Tables as files: a run's give its figures again, what others trained is read as they mean it, nothing is executed."""

import gzip
import json
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from fkgsec import FederatedGraph, KgeOptions
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.reconstruction.leakage import rebuilt
from fkgsec.errors import FkgsecError, RunError, SpecError, ThreatModelError
from fkgsec.experiments.audit.artefacts import audit_tables, collect_tables, infer_dim
from fkgsec.experiments.audit.cli import audit, export
from fkgsec.experiments.audit.table_files import (
    Manifest,
    NamedRows,
    Tables,
    read_manifest,
    read_names,
    read_tables,
    write_tables,
)
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import Spec
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.models import ModelName
from fkgsec.kge.result import KgeResult

SPEC = Spec(
    size=300, dim=8, gamma=4.0, rounds=2, local_epochs=1, eval_every=1, patience=0, batch_size=64, num_negatives=8,
    learning_rate=0.05, unlinked_heads=0, leak=(0.5,), device="cpu",
)  # fmt: skip
RUNS = {
    "fede": {"unlinked_heads": 2},
    "fedr": {"algorithm": "fedr"},
    "rotate": {"model": "rotate"},
    "noise": {"defense": "dp:clip=0.5,noise_multiplier=0.5"},
    "absent": {"participation": 0.34, "colluder": "hospital-2"},
    "single": {"algorithm": "single"},
    "another colluder": {"colluder": "hospital-3", "threat": ("collusion", "collusion+entities", "identifiers")},
}
Run = tuple[Spec, KgeResult]
Finish = Callable[..., Path]

app = typer.Typer()
app.command()(expected_errors(audit))
app.command()(expected_errors(export))


def fkgsec(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def finish(tmp_path_factory: pytest.TempPathFactory) -> Finish:
    """Train and attack once with changes to `SPEC`; the run folder."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(**changes: object) -> Path:
        key = msgspec.json.encode(changes)
        if key not in made:
            spec = msgspec.structs.replace(SPEC, **changes)
            made[key] = root / str(len(made))
            execute(spec, spec.load_graph(), made[key], attack=True)
        return made[key]

    return run


@pytest.fixture(scope="module")
def fede(finish: Finish) -> tuple[Manifest, Tables, FederatedGraph]:
    spec, result = load_run(finish())
    return *collect_tables(spec, result), result.graph


def rebuilt_in(path: Path) -> list[Figure]:
    """ERR and TRR in an audit or a record."""
    return rebuilt(msgspec.convert(json.loads(path.read_text())["figures"], list[Figure]))


# What a run exports.


@pytest.mark.parametrize(("run", "where"), [*((run, "tables") for run in RUNS), ("noise", "tables.safetensors")])
def test_exported_tables_give_the_figures_of_the_run(run: str, where: str, finish: Finish, tmp_path: Path) -> None:
    folder = finish(**RUNS[run])
    assert fkgsec("export", "--run", folder, "--out", tmp_path / where)[0] == 0
    status, out, _ = fkgsec("audit", "--tables", tmp_path / where, "--json", tmp_path / "audit.json", "--quiet")
    assert (status, out) == (0, "")
    audited, attacked = rebuilt_in(tmp_path / "audit.json"), rebuilt_in(folder / "record.json")
    if run == "noise":  # exported tables hold no broadcast, by which the adversary of the run also names entities then
        audited, attacked = ([one for one in found if one.variant == "cosine"] for found in (audited, attacked))
        assert audited
    assert audited == attacked


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name, recipe in algorithms_of("kge").items() if not recipe.pooled])
def test_of_every_algorithm(algorithm: str, finish: Finish, tmp_path: Path) -> None:
    folder = finish(algorithm=algorithm, dim=96, rounds=3)
    manifest, tables = collect_tables(*load_run(folder))
    write_tables(manifest, tables, tmp_path / "tables")
    spec = manifest.spec
    read = read_tables(tmp_path / "tables", spec.model)
    made, _ = audit_tables(read, spec.load_graph(), spec.federation_options(), spec.attack_options(), manifest)
    assert rebuilt(made.figures) == rebuilt_in(folder / "record.json")


def test_runs_that_tell_the_figures_apart(finish: Finish) -> None:
    """So that the test above compares something: uploads that are not the client's table, clients that sent nothing."""
    assert rebuilt_in(finish() / "record.json")[0].advantage > 0.1
    manifest, noisy = collect_tables(*load_run(finish(**RUNS["noise"])))
    assert all("uploaded_entities" in own for own in noisy.values())
    manifest, _ = collect_tables(*load_run(finish(**RUNS["absent"])))
    assert manifest.crossed == {"hospital-1": [], "hospital-2": ["entities"], "hospital-3": ["entities"]}


def test_the_audit_is_of_the_tables_it_got(fede: tuple[Manifest, Tables, FederatedGraph]) -> None:
    manifest, tables, graph = fede
    attack = KgeAttackOptions(threat=("collusion",), leak=(1.0,), unlinked_heads=0)

    def err(changed: Tables) -> float:
        made, _ = audit_tables(changed, graph, manifest.spec.federation_options(), attack, manifest)
        return next(one.estimate.value for one in reversed(made.figures) if one.metric == "err")

    rolled = {
        client: {key: NamedRows(table.names, table.rows.roll(1, 0) if client != "hospital-1" else table.rows)}
        | {other: own[other] for other in own if other != key}
        for client, own in tables.items()
        for key, table in own.items()
        if key == "entities"
    }
    assert err(tables) > 0.3
    assert err(rolled) < 0.1


def test_rows_are_found_by_name(fede: tuple[Manifest, Tables, FederatedGraph]) -> None:
    manifest, tables, graph = fede
    rng = np.random.default_rng(3)

    def shuffled(table: NamedRows) -> NamedRows:
        order = rng.permutation(len(table.names))
        names = [table.names[place] for place in order]
        return NamedRows(["stranger", *names], torch.cat([torch.ones(1, table.rows.shape[1]), table.rows[order]]))

    other = {client: {key: shuffled(table) for key, table in own.items()} for client, own in tables.items()}
    options, attack = manifest.spec.federation_options(), manifest.spec.attack_options()
    made = [audit_tables(each, graph, options, attack, manifest)[0] for each in (tables, other)]
    assert made[0].figures == made[1].figures
    assert made[0].tables_hash != made[1].tables_hash


def test_a_partial_upload_is_kept_apart_from_what_the_client_holds(
    fede: tuple[Manifest, Tables, FederatedGraph],
) -> None:
    """Names say which rows crossed; the others are not in what the server is given."""
    from fkgsec.experiments.audit.artefacts import federation_of

    manifest, tables, graph = fede
    whole = tables["hospital-2"]["entities"]
    part = NamedRows(whole.names[:5], whole.rows[:5] + 1)
    changed = {**tables, "hospital-2": {**tables["hospital-2"], "uploaded_entities": part}}
    result = federation_of(
        changed, graph, manifest.spec.federation_options(), "hospital-1",
        crossed=manifest.crossed, round=2, needs_entities=False,
    )  # fmt: skip
    observed = result.observed["entities"]["client/hospital-2"]
    assert observed.seen.nonzero().ravel().tolist() == list(range(5))
    assert torch.equal(observed.rows[:5], part.rows)
    assert not observed.rows[5:].any()
    assert torch.equal(result.trained[1].entities, whole.rows[: len(observed.rows)])


def test_sums_are_nobodys_tables(finish: Finish, tmp_path: Path) -> None:
    status, _, err = fkgsec("export", "--run", finish(defense="psu,secagg", rounds=1), "--out", tmp_path / "tables")
    assert status == 2
    assert err.startswith("fkgsec: defense psu,secagg: the server has only sums")
    assert not (tmp_path / "tables").exists()


def test_other_data_are_refused(fede: tuple[Manifest, Tables, FederatedGraph], finish: Finish, tmp_path: Path) -> None:
    write_tables(*fede[:2], tmp_path / "tables")
    assert fkgsec("audit", "--tables", tmp_path / "tables", "--size", "600")[0] == 2  # what the manifest says
    changed = msgspec.structs.replace(fede[0], spec=msgspec.structs.replace(fede[0].spec, size=600))
    (tmp_path / "tables" / "manifest.json").write_bytes(msgspec.json.encode(changed))
    status, _, err = fkgsec("audit", "--tables", tmp_path / "tables")
    assert (status, err) == (
        2,
        "fkgsec: consortium-3: not the data on which the tables were trained, or changed since\n",
    )


def test_a_folder_appears_whole_or_not_at_all(fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path) -> None:
    manifest, tables, _ = fede
    assert write_tables(manifest, tables, tmp_path / "tables")
    assert not write_tables(manifest, tables, tmp_path / "tables")
    other = msgspec.structs.replace(manifest, round=manifest.round + 1)
    with pytest.raises(RunError, match=r"tables: exists and differs"):
        write_tables(other, tables, tmp_path / "tables")
    assert read_manifest(tmp_path / "tables") == manifest
    assert write_tables(other, tables, tmp_path / "tables", overwrite=True)
    assert read_manifest(tmp_path / "tables") == other
    (tmp_path / "tables" / "mine.txt").touch()
    with pytest.raises(RunError, match="tables: was not written by this command"):
        write_tables(manifest, tables, tmp_path / "tables", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        write_tables(manifest, tables, tmp_path / "file" / "tables")
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "file"}


@pytest.mark.parametrize(
    ("client", "name"), [("../a", "x"), (".a", "x"), ("a/b", "x"), ("a", "x\ty"), ("a", "x\ny"), ("a", " ")]
)
def test_names_that_a_folder_cannot_hold_go_into_one_file(
    client: str, name: str, fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path
) -> None:
    tables = {client: {key: NamedRows([name], torch.ones(1, 2)) for key in ("entities", "relations")}}
    with pytest.raises(RunError, match=r"--out NAME\.safetensors"):
        write_tables(fede[0], tables, tmp_path / "tables")
    assert not list(tmp_path.iterdir())
    write_tables(fede[0], tables, tmp_path / "t.safetensors")
    assert read_tables(tmp_path / "t.safetensors", "transe")[client]["entities"].names == [name]


# What others trained. Each test hands a run's tables over in another layout, and asks for the run's figures.


@pytest.fixture(scope="module", params=["transe", "complex", "rotate"])
def trained(request: pytest.FixtureRequest, finish: Finish) -> tuple[Path, Run, Tables]:
    folder = finish(model=request.param)
    run = load_run(folder)
    return folder, run, collect_tables(*run)[1]


def foreign_audit(path: Path, out: Path, spec: Spec, *more: str) -> list[Figure]:
    status, _, err = fkgsec(
        "audit", "--tables", path, "--size", "300", "--model", spec.model, "--leak", "0.5",
        "--unlinked-heads", "0", "--quiet", "--json", out, *more,
    )  # fmt: skip
    assert (status, err) == (0, "")
    return rebuilt_in(out)


def same_figures(found: list[Figure], record: Path) -> None:
    """Nothing but the round differs; a run says which, tables that come from elsewhere do not."""
    ours, theirs = (
        [msgspec.structs.replace(one, round=0) for one in figures]
        for figures in (found, rebuilt_in(record / "record.json"))
    )
    assert ours == theirs


def complex_parts(rows: Tensor) -> Tensor:
    real, imaginary = rows.chunk(2, dim=1)
    return torch.complex(real, imaginary)


def turned(rows: Tensor, spec: Spec) -> Tensor:
    """RotatE's relation rows as angles."""
    return rows * (math.pi / spec.kge_model().initial_range)


@pytest.mark.filterwarnings("ignore")
def test_pykeen(trained: tuple[Path, Run, Tables], tmp_path: Path) -> None:
    models = pytest.importorskip("pykeen.models")
    from pykeen.triples import TriplesFactory

    folder, (spec, result), tables = trained
    kind = {"transe": "TransE", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}[spec.model]
    for client in result.graph.clients:
        own = tables[client.name]
        names = {key: np.array(table.names, dtype=object) for key, table in own.items()}
        named = [
            names["entities"][client.train[:, 0]],
            names["relations"][client.train[:, 1]],
            names["entities"][client.train[:, 2]],
        ]
        factory = TriplesFactory.from_labeled_triples(np.stack(named, axis=1).astype(str))
        model = getattr(models, kind)(triples_factory=factory, embedding_dim=spec.dim)
        for key, ids, there in (
            ("entities", factory.entity_to_id, model.entity_representations[0]),
            ("relations", factory.relation_to_id, model.relation_representations[0]),
        ):
            rows = own[key].rows
            if spec.model == "complex" or (spec.model, key) == ("rotate", "entities"):
                rows = torch.view_as_real(complex_parts(rows)).flatten(1)
            elif spec.model == "rotate":
                rows = torch.view_as_real(torch.polar(torch.ones_like(rows), turned(rows, spec))).flatten(1)
            place = {name: row for row, name in enumerate(own[key].names)}
            there._embeddings.weight.data.copy_(rows[[place[name] for name in ids]])
        home = tmp_path / "tables" / client.name
        factory.to_path_binary(home / "training_triples")
        torch.save(model.state_dict(), home / "model.pt")
    same_figures(foreign_audit(tmp_path / "tables", tmp_path / "audit.json", spec), folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["transe", "distmult", "complex", "rotate"])
def test_rows_of_pykeen_mean_what_they_mean_there(model: ModelName, tmp_path: Path) -> None:
    """Its own scores, from its own weights; RotatE's there is another norm, so the difference is compared instead."""
    from fkgsec.experiments.audit.artefacts import pick_rows

    models = pytest.importorskip("pykeen.models")
    from pykeen.triples import TriplesFactory

    kind = {"transe": "TransE", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}[model]
    labels = np.array([[f"e{head}", f"r{head % 3}", f"e{(head * 3 + 1) % 7}"] for head in range(7)])
    factory = TriplesFactory.from_labeled_triples(labels)
    there = getattr(models, kind)(triples_factory=factory, embedding_dim=6, random_seed=5)
    there.post_parameter_update()
    factory.to_path_binary(tmp_path / "a" / "training_triples")
    torch.save(there.state_dict(), tmp_path / "a" / "model.pt")
    tables = read_tables(tmp_path, model)["a"]
    kge = KgeOptions(model=model, dim=infer_dim({"a": tables}, model), gamma=5).kge_model()
    assert kge.dim == 6
    entities = pick_rows(tables["entities"], list(factory.entity_to_id), kge, "entities", "")
    relations = pick_rows(tables["relations"], list(factory.relation_to_id), kge, "relations", "")
    heads, kinds, tails = factory.mapped_triples.T
    with torch.no_grad():
        ours = kge.score(entities[heads], relations[kinds], entities[tails]) - kge.margin
        theirs = there.score_hrt(factory.mapped_triples).squeeze(1)
        if model == "rotate":
            vectors, rotations = there.entity_representations[0](), there.relation_representations[0]()
            theirs = -(vectors[heads] * rotations[kinds] - vectors[tails]).abs().sum(dim=1)
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert theirs.std() > 1e-3


def test_libkge(trained: tuple[Path, Run, Tables], tmp_path: Path) -> None:
    folder, (spec, _), tables = trained
    for client, own in tables.items():
        home = tmp_path / "tables" / client
        home.mkdir(parents=True)
        relations = turned(own["relations"].rows, spec) if spec.model == "rotate" else own["relations"].rows
        state = {
            "_entity_embedder._embeddings.weight": own["entities"].rows,
            "_relation_embedder._embeddings.weight": relations,
        }
        torch.save({"type": "train", "epoch": 3, "model": (state, {})}, home / "checkpoint_best.pt")
        for key, name in (("entities", "entity_ids.del"), ("relations", "relation_ids.del")):
            (home / name).write_text("".join(f"{row}\t{name}\n" for row, name in enumerate(own[key].names)))
    same_figures(foreign_audit(tmp_path / "tables", tmp_path / "audit.json", spec), folder)


def test_dgl_ke(trained: tuple[Path, Run, Tables], tmp_path: Path) -> None:
    """Its rows are laid out as ours are. All clients have one vocabulary, whose files lie above their folders."""
    folder, (spec, result), tables = trained
    root = tmp_path / "tables"
    vocabulary = {"entities": result.graph.entities, "relations": result.graph.relations}
    root.mkdir()
    for key, names in vocabulary.items():
        (root / f"{key}.tsv").write_text("".join(f"{row}\t{name}\n" for row, name in enumerate(names)))
    for client, own in tables.items():
        (root / client).mkdir()
        for key, file in (("entities", "entity"), ("relations", "relation")):
            place = {name: row for row, name in enumerate(own[key].names)}
            rows = torch.zeros(len(vocabulary[key]), own[key].rows.shape[1])
            rows[[vocabulary[key].index(name) for name in place]] = own[key].rows
            np.save(root / client / f"graph_{kind_of(spec)}_{file}.npy", rows.numpy())
    same_figures(foreign_audit(root, tmp_path / "audit.json", spec, "--gamma", "4"), folder)
    status, _, err = fkgsec("audit", "--tables", root, "--size", "300", "--model", spec.model, "--quiet")
    assert (status, "add --gamma" in err) == ((2, True) if spec.model == "rotate" else (0, False))


def kind_of(spec: Spec) -> str:
    return {"transe": "TransE_l1", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}[spec.model]


def test_plain_tensors_and_a_client_without_tables(
    fede: tuple[Manifest, Tables, FederatedGraph], finish: Finish, tmp_path: Path
) -> None:
    _, tables, _ = fede
    for client in ("hospital-1", "hospital-2"):
        home = tmp_path / "tables" / client
        home.mkdir(parents=True)
        save_file({key: table.rows.to(torch.float64) for key, table in tables[client].items()}, home / "t.safetensors")
        for key, table in tables[client].items():
            (home / f"{key}.dict").write_text("".join(f"{row}\t{name}\n" for row, name in enumerate(table.names)))
    audited = foreign_audit(tmp_path / "tables", tmp_path / "audit.json", SPEC)
    found = {(one.threat_model, one.leak, one.variant): one for one in audited
             if (one.victim, one.metric) == ("hospital-2", "err")}  # fmt: skip
    expected = [
        one for one in rebuilt_in(finish() / "record.json") if (one.victim, one.metric) == ("hospital-2", "err")
    ]
    assert expected
    for one in expected:
        assert found[one.threat_model, one.leak, one.variant].estimate == one.estimate
    silent = [one for one in audited if (one.threat_model, one.leak, one.victim) == ("collusion", 0.5, "hospital-3")]
    assert {one.reason for one in silent} == {"no embedding of this client was transmitted"}


@pytest.mark.slow  # it trains
@pytest.mark.filterwarnings("ignore")
def test_a_real_save_of_pykeens_pipeline(tmp_path: Path) -> None:
    """Trained there, saved there. The model itself is a pickle, and stays closed; its weights alone are read."""
    pipeline = pytest.importorskip("pykeen.pipeline").pipeline
    from pykeen.triples import TriplesFactory

    graph = msgspec.structs.replace(SPEC, clients=2, size=300).load_graph()
    saves = {}
    for client in graph.clients:
        ids = client.to_global(client.train)
        named = np.stack(
            [
                np.array(names)[ids[:, column]]
                for column, names in enumerate((graph.entities, graph.relations, graph.entities))
            ],
            axis=1,
        )
        factory = TriplesFactory.from_labeled_triples(named)
        saves[client.name] = pipeline(
            training=factory, testing=factory, model="TransE", model_kwargs={"embedding_dim": 8}, random_seed=0, device="cpu",
            training_kwargs={"num_epochs": 1, "use_tqdm": False}, evaluation_kwargs={"use_tqdm": False},
        )  # fmt: skip
        saves[client.name].save_to_directory(tmp_path / "tables" / client.name)
    asked = ("audit", "--tables", tmp_path / "tables", "--size", "300", "--clients", "2", "--model", "transe")
    status, _, err = fkgsec(*asked)
    assert status == 2
    assert "trained_model.pkl is a pickle" in err
    assert "torch.save(model.state_dict(), 'model.pt')" in err
    for name, save in saves.items():
        torch.save(save.model.state_dict(), tmp_path / "tables" / name / "model.pt")
    status, out, _ = fkgsec(*asked)
    assert status == 0
    assert out.startswith("Verdict on the tables")
    assert "entities: reconstruction.err by " in out


# Nothing is executed, and nothing is guessed.


class Trap:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "entities.npy"])
def test_a_pickle_is_not_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / "tables" / "a").mkdir(parents=True)
    trap = Trap(tmp_path / "sprung")
    if name.endswith("npy"):
        np.save(tmp_path / "tables" / "a" / name, np.array([trap], dtype=object), allow_pickle=True)
    else:
        torch.save({"model": trap}, tmp_path / "tables" / "a" / name)
    with pytest.raises(RunError):
        read_tables(tmp_path / "tables", "transe")
    assert not (tmp_path / "sprung").exists()
    with (tmp_path / "pickle").open("wb") as handle:
        pickle.dump(trap, handle)
    pickle.loads((tmp_path / "pickle").read_bytes())
    assert (tmp_path / "sprung").exists(), "the trap works"


def array_client(root: Path, changes: Mapping[str, np.ndarray | str | None] | None = None) -> Path:
    """A client folder of arrays and names, some of them changed, left out (None) or added."""
    files: dict[str, np.ndarray | str | None] = {
        "entities.npy": np.ones((3, 4), dtype=np.float32), "relations.npy": np.ones((2, 4), dtype=np.float32),
        "entities.dict": "0\ta\n1\tb\n2\tc\n", "relations.dict": "0\tr\n1\ts\n",
    }  # fmt: skip
    files.update(changes or {})
    (root / "a").mkdir(parents=True)
    for name, value in files.items():
        if isinstance(value, np.ndarray):
            np.save(root / "a" / name, value)
        elif value is not None:
            (root / "a" / name).write_text(value)
    return root


def test_the_folder_that_the_next_test_spoils_is_read(tmp_path: Path) -> None:
    assert read_tables(array_client(tmp_path / "t"), "transe")["a"]["relations"].names == ["r", "s"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entities.npy": np.ones((4, 4))}, "4 rows, but 3 names$"),
        ({"relations.npy": np.ones((4, 4))}, "4 rows, but 2 names; tables with inverse relations are not supported"),
        ({"entities.npy": np.full((3, 4), np.nan)}, "has a value that is not finite"),
        ({"entities.npy": np.ones((3, 4), dtype=np.int64)}, "expected an array of floats, found int64"),
        ({"entities.npy": np.ones(3)}, r"expected floats \[rows, width\], found torch.float64 \[3\]"),
        ({"entities.npy": np.ones((0, 4))}, r"expected floats \[rows, width\]"),
        ({"entities.npy": "no array"}, "entities.npy: not a readable array"),
        ({"entities.dict": None}, r"no file names the rows of entities \(expected entities.dict, entities.tsv, "),
        ({"entities.dict": "0\ta\n1\tb\n1\tc\n"}, r"entities.dict:3: expected id<TAB>name, each id of 0..2 once; found '1\\tc'"),
        ({"entities.dict": "0\ta\n1\tb\n3\tc\n"}, "entities.dict:3: "),
        ({"entities.dict": "0\ta\n1 b\n2\tc\n"}, "entities.dict:2: "),
        ({"entities.dict": "0\ta\n1\ta\n2\tc\n"}, "two rows have the same name"),
        ({"entities.npy": None, "relations.npy": None}, r"no tables \(expected entities.npy and relations.npy; or DGL-KE's"),
        ({"model.pt": "x"}, "found entities.npy, relations.npy, model.pt; keep only one table of each kind"),
        ({"x_entity.npy": np.ones((3, 4))}, "found entities.npy, relations.npy, x_entity.npy; keep only one"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_so(changes: dict[str, np.ndarray | str | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=message):
        read_tables(array_client(tmp_path / "t", changes), "transe")


def test_state_dicts_without_tables(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for content in ({"weight": torch.ones(2, 2)}, [torch.ones(2)], {"model": ({}, {})}):
        torch.save(content, tmp_path / "a" / "model.pt")
        with pytest.raises(RunError, match="has none of entities, relations, entity_representations"):
            read_tables(tmp_path, "transe")
    (tmp_path / "a" / "model.pt").write_bytes(b"no file of torch")
    with pytest.raises(RunError, match=r"model\.pt"):
        read_tables(tmp_path, "transe")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_state_dict_is_one_error_whatever_torch_makes_of_it(zipped: bool, tmp_path: Path) -> None:
    """Read or refused: half of the files are cut off, half have a few wrong bytes near their head."""
    path = tmp_path / "a" / "model.pt"
    path.parent.mkdir()
    weights = {"entities": torch.ones(9, 4), "relations": torch.ones(3, 4)}
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    for name, count in (("entity_ids.del", 9), ("relation_ids.del", 3)):
        (path.parent / name).write_text("".join(f"{row}\tn{row}\n" for row in range(count)))
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = []
    for number in range(300):
        damaged = bytearray(whole)
        if number % 2:
            damaged = damaged[: int(rng.integers(len(whole)))]
        else:
            for place in rng.integers(min(len(whole), 700), size=3):
                damaged[place] = int(rng.integers(256))
        path.write_bytes(damaged)
        try:
            read_tables(tmp_path, "transe")
        except RunError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert not any("\n" in said for said in refused)


def test_names_with_a_header_in_gzip(tmp_path: Path) -> None:
    path = tmp_path / "entity_to_id.tsv.gz"
    path.write_bytes(gzip.compress(b"id\tlabel\n1\tb\tc\n0\ta\n"))
    assert read_names(path) == ["a", "b\tc"]
    path.write_bytes(b"no gzip")
    with pytest.raises(RunError, match="cannot be read"):
        read_names(path)


@pytest.mark.parametrize("cut", [0, 7, 40, 400])
def test_a_damaged_file_is_one_error(cut: int, fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tables(*fede[:2], path)
    path.write_bytes(path.read_bytes()[:cut])
    status, _, err = fkgsec("audit", "--tables", path)
    assert status == 2
    assert err.count("\n") == 1
    with pytest.raises(RunError):
        read_tables(path, "transe")


def test_a_file_of_tensors_without_names_or_with_others(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"a/entities": torch.ones(2, 2)}, path)
    with pytest.raises(RunError, match="no metadata 'names'"):
        read_tables(path, "transe")
    save_file({"entities": torch.ones(2, 2)}, path, {"names": "{}"})
    with pytest.raises(RunError, match="tensor 'entities' must be CLIENT/KEY"):
        read_tables(path, "transe")
    save_file({"a/entities": torch.ones(2, 2)}, path, {"names": '{"a/entities": ["x"]}'})
    with pytest.raises(RunError, match="2 rows, but 1 names"):
        read_tables(path, "transe")


def test_a_manifest_of_another_schema(fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(fede[0], schema="fkgsec/tables/9")))
    with pytest.raises(RunError, match="schema fkgsec/tables/9"):
        read_manifest(tmp_path)
    old = msgspec.to_builtins(fede[0]) | {"spec": {"defense": "dp:clip=1,epsilon=1,delta=0.5"}}
    for content in ("{", json.dumps(old)):  # cut off; a value that this version does not allow
        file.write_text(content)
        with pytest.raises(RunError, match=r"manifest\.json: not a manifest of schema fkgsec/tables/1"):
            read_manifest(tmp_path)


Change = Callable[[Tables], object]


@pytest.mark.parametrize(
    ("change", "attack", "error", "message"),
    [
        (lambda t: t.pop("hospital-1"), {}, RunError, "client hospital-1: no entities table; the colluder hospital-1 needs both"),
        (lambda t: t["hospital-1"].pop("relations"), {}, RunError, "client hospital-1: no relations table"),
        (lambda t: t["hospital-2"].pop("entities"), {}, RunError, "client hospital-2: no entities table"),
        (lambda t: t.pop("hospital-2"), {"threat": ("collusion+entities",)}, RunError, "client hospital-2: no entities table"),
        (lambda t: t.update(clinic={}), {}, RunError, "tables of clinic, which consortium-3 does not have"),
        (lambda t: rename(t, "hospital-2"), {}, RunError, "client hospital-2, entities: no row named '.*' \\(1 of [0-9]+ needed"),
        (lambda t: widen(t, "hospital-3"), {}, RunError, "client hospital-3, entities: width 9, but transe of dim"),
        (lambda t: None, {"metric": "published"}, SpecError, "metric published needs the server's broadcast"),
        (lambda t: None, {"colluder": "clinic"}, ThreatModelError, "colluder must be one of hospital-1, "),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit(
    change: Change, attack: dict[str, object], error: type[FkgsecError], message: str,
    fede: tuple[Manifest, Tables, FederatedGraph],
) -> None:  # fmt: skip
    manifest, tables, graph = fede
    tables = {client: dict(own) for client, own in tables.items()}
    change(tables)
    options = manifest.spec.federation_options()
    with pytest.raises(error, match=message):
        audit_tables(tables, graph, options, KgeAttackOptions(**attack))  # type: ignore[arg-type]


def rename(tables: Tables, client: str) -> None:
    names, rows = tables[client]["entities"]
    tables[client]["entities"] = NamedRows(["somebody", *names[1:]], rows)


def widen(tables: Tables, client: str) -> None:
    names, rows = tables[client]["entities"]
    tables[client]["entities"] = NamedRows(names, torch.cat([rows, rows[:, :1]], dim=1))


# The commands.


def test_what_the_terminal_shows(fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path) -> None:
    write_tables(*fede[:2], tmp_path / "tables")
    command = ("audit", "--tables", tmp_path / "tables", "--threat", "identifiers", "--leak", "0.3")
    status, out, err = fkgsec(*command)
    assert (status, err) == (0, "")
    assert out.startswith("Verdict on the tables")
    assert "if linked rows are known (reconstruction.trr) by identifiers" in out
    status, out, err = fkgsec(*command, "--details")
    assert "--seeds" not in out
    shown = out[: out.index("reconstruction.err: ")]
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "identifiers 0.3" in shown
    assert "collusion" not in shown
    status, out, _ = fkgsec("audit", "--tables", tmp_path / "tables", "--json", "-", "--scores", tmp_path / "s.parquet")
    assert status == 0
    assert json.loads(out)["exported"]["size"] == 300
    assert (tmp_path / "s.parquet").stat().st_size > 0


def test_what_is_missing_or_too_much_is_said(fede: tuple[Manifest, Tables, FederatedGraph], tmp_path: Path) -> None:
    write_tables(*fede[:2], tmp_path / "tables")
    for arguments, message in (
        (
            ["audit", "--tables", tmp_path / "tables", "--model", "rotate", "--gamma", "3"],
            "its manifest sets gamma, model;",
        ),
        (["audit", "--tables", tmp_path / "tables", "--leak", "2"], "leak must lie in (0, 1]; got 2.0"),
        (["audit", "--tables", tmp_path], "no manifest names the model of these tables; add --model"),
        (["audit", "--tables", tmp_path / "nowhere"], "neither a folder of tables nor a safetensors file"),
        (
            ["export", "--run", tmp_path, "--out", tmp_path / "x"],
            "not a run folder (spec.json: No such file or directory)",
        ),
    ):
        status, _, err = fkgsec(*arguments)  # type: ignore[arg-type]
        assert status == 2
        assert err.count("\n") == 1
        assert message in err
