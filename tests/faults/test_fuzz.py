"""Every reader and decoder under input that nobody thought of (`tests.faults.damage`).

The ordinary suite tries a few of them, `make test-faults` thousands. What parties apart read is in `test_fuzz_deployed`.
"""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from fkgsec.data.escrow import Escrow, read_escrow
from fkgsec.data.formats.readers import read_path
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.experiments.audit.table_files import read_names, read_tables
from fkgsec.experiments.gate.baseline import read_baseline
from fkgsec.experiments.gate.policy import read_policy
from fkgsec.experiments.papers.spec import read_experiment
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.federation import messages
from fkgsec.federation.checkpoint import Progress, load, save
from fkgsec.graphs.tu import read_tu_folder
from fkgsec.protocols.psu.messages import decode_message
from fkgsec.protocols.secagg import messages as secagg
from fkgsec.unlearning.forget_sets import read_forget
from tests.faults.damage import MANY, QUICK, Target, tried

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TRIPLES = "".join(f"e{n % 7}\tr{n % 3}\té{n % 5}\n" for n in range(30))
ROWS = np.stack([np.arange(30) % 7, np.arange(30) % 3, np.arange(30) % 5], axis=1)
CSV = "head,relation,tail,split,client\n" + "".join(f'"e{n % 7}",r{n % 3},é{n % 5},train,c{n % 2}\n' for n in range(30))
RDF = "".join(f"<http://e{n % 7}> <http://r{n % 3}> <http://x{n % 5}> .\n" for n in range(10))
TURTLE = '@prefix a: <http://a#> .\na:x a:p [ a:q "text"@en, (1 2.5 a:y) ] ; a:r """long\n""" , <z> .\n' + RDF
SPEC = 'algorithm: fede\ndata: "graph.csv"\nleak: [0.5, 1.0]\nrounds: 3\nlearning_rate: 1e-3\ncolluder: ~\n'
POLICY = (
    "federations:\n  one: {data: consortium, algorithm: fede, rounds: 2}\nlimits:\n  reconstruction.err: {max: 0.5}\n"
)


def federation() -> FederatedGraph:
    names = tuple(f"e{n}" for n in range(7)), tuple(f"r{n}" for n in range(3))
    none = np.empty((0, 3), dtype=np.int64)
    return FederatedGraph("tiny", *names, (ClientGraph.from_global("c", ROWS, none, none),))


def text(content: str) -> Callable[[Path], bytes]:
    return lambda folder: content.encode()


def parquet(folder: Path) -> bytes:
    columns = {name: pa.array([f"{name[0]}{n % 5}" for n in range(30)]) for name in ("head", "relation", "tail")}
    pq.write_table(pa.table(columns), folder / "made")
    return (folder / "made").read_bytes()


def array(folder: Path) -> bytes:
    np.save(folder / "made.npy", np.ones((3, 4), dtype=np.float32))
    return (folder / "made.npy").read_bytes()


def state(folder: Path) -> bytes:
    torch.save({"entities": torch.ones(3, 4), "relations": torch.ones(3, 4)}, folder / "made")
    return (folder / "made").read_bytes()


def tables(folder: Path) -> bytes:
    names = msgspec.json.encode({"c/entities": ["a", "b", "c"], "c/relations": ["r"]}).decode()
    save_file({"c/entities": torch.ones(3, 4), "c/relations": torch.ones(1, 4)}, folder / "made", {"names": names})
    return (folder / "made").read_bytes()


def checkpoint(folder: Path) -> bytes:
    save(folder / "made", {"now": torch.ones(3, 4)}, Progress("run"))
    return (folder / "made").read_bytes()


def pickled(folder: Path) -> bytes:
    heads, relations, tails = ROWS.T
    part = {"edge_index": np.stack([heads, tails]), "edge_type": relations}
    both = part | {"edge_index_ori": part["edge_index"], "edge_type_ori": relations}
    return pickle.dumps([dict.fromkeys(("train", "valid", "test"), both)])


def escrow(folder: Path) -> bytes:
    return msgspec.json.encode(Escrow.seal(federation(), {"c": ROWS[:2]}))


def upload(folder: Path) -> bytes:
    return messages.encode(messages.Alignment(0, "client/a", messages.SERVER, "entities", ["a", "b"], 2))


NAMES = "0\ta\n1\tb\n2\tc\n"
TARGETS = (
    Target("text", "g.txt", text(TRIPLES), read_path),
    Target("splits", "train.txt", text(TRIPLES), lambda path: read_path(path.parent), {"valid.txt": "", "test.txt": ""}),
    Target("dict", "entities.dict", text("".join(f"{n}\te{n}\n" for n in range(7))), lambda path: read_path(path.parent),
           {"train.txt": "e0\tr\te1\n", "valid.txt": "", "test.txt": ""}),
    Target("csv", "g.csv", text(CSV), read_path),
    Target("parquet", "g.parquet", parquet, read_path),
    Target("ntriples", "g.nt", text(RDF), read_path),
    Target("turtle", "g.ttl", text(TURTLE), read_path),
    Target("pickle", "g.pkl", pickled, read_path),
    Target("names", "entity_ids.del", text(NAMES), read_names),
    Target("packed names", "entity_to_id.tsv.gz", lambda folder: gzip.compress(NAMES.encode(), mtime=0), read_names),
    Target("array", "c/entities.npy", array, lambda path: read_tables(path.parents[1], "transe"),
           {"c/entities.dict": NAMES}),
    Target("state", "c/model.pt", state, lambda path: read_tables(path.parents[1], "transe"),
           {"c/entities.dict": NAMES, "c/relations.dict": NAMES}),
    Target("tables", "t.safetensors", tables, lambda path: read_tables(path, "transe")),
    Target("checkpoint", "checkpoint.safetensors", checkpoint, lambda path: load(path, "run")),
    Target("spec", "spec.yaml", text(SPEC), lambda path: make_spec(path, {})),
    Target("policy", "policy.yaml", text(POLICY), read_policy),
    Target("experiment", "t.yaml", lambda folder: (EXPERIMENTS / "specs" / "zhang2022_fedr_table7.yaml").read_bytes(),
           read_experiment),
    Target("record", "record.json",
           lambda folder: (EXPERIMENTS.parent / "results" / "ddb14-fed5-fedr-6rounds.json").read_bytes(), read_record),
    Target("baseline", "baseline.json", text('{"schema": "fkgsec/baseline/1", "figures": {}}'), read_baseline),
    Target("escrow", "escrow.json", escrow, lambda path: read_escrow(path, federation())),
    Target("forget", "forget.tsv", text("e0\tr0\te0\n"), lambda path: read_forget(path, federation())),
    Target("graphs", "M_A.txt", text("1, 2\n2, 1\n3, 4\n4, 3\n"), lambda path: read_tu_folder(path.parent),
           {"M_graph_indicator.txt": "1\n1\n2\n2\n", "M_graph_labels.txt": "0\n1\n"}),
    Target("upload", "frame", upload, lambda path: messages.decode(path.read_bytes())),
    Target("masked", "frame", text("secagg"), lambda path: secagg.decode(path.read_bytes())),
    Target("union", "frame", text("psu"), lambda path: decode_message(path.read_bytes())),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.filterwarnings("ignore")
def test_a_few_damaged_inputs(target: Target, tmp_path: Path) -> None:
    assert tried(target, tmp_path, QUICK) >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.filterwarnings("ignore")
def test_many_damaged_inputs(target: Target, tmp_path: Path) -> None:
    assert tried(target, tmp_path, MANY) >= MANY


@pytest.mark.parametrize("target", TARGETS[:-3], ids=lambda target: target.name)
def test_what_is_not_damaged_is_read(target: Target, tmp_path: Path) -> None:
    if target.name in ("baseline", "policy", "forget", "escrow"):
        pytest.skip("needs a run, or is read elsewhere")
    file = tmp_path / target.file
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, beside in target.beside.items():
        (tmp_path / name).write_text(beside)
    file.write_bytes(target.content(tmp_path))
    if target.name == "array":
        (file.parent / "relations.npy").write_bytes(file.read_bytes())
        (file.parent / "relations.dict").write_text(NAMES)
    target.read(file)
