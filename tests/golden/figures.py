"""Run golden cases by the command line, and read out of their records what must not move.

    golden = Golden(folder)                        # an empty folder, in which the data are generated
    golden.outcome("fede").figures["utility/mrr"]  # [value, low, high]

Names of figures are the golden file's own. Where a record gets another layout, only the readers below follow it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from matplotlib.figure import Figure
from safetensors import safe_open
from typer.testing import CliRunner

from fkgsec.attacks.figure import STRONGEST, headline
from fkgsec.attacks.figure import Figure as AttackFigure
from fkgsec.attacks.reconstruction.leakage import PAPER, PUBLISHED, RECONSTRUCTION, UNLINKED, rebuilt
from fkgsec.experiments.cli.main import app
from tests.golden.cases import BY_NAME

DIGITS = 10
# best.final.entities, best.final.private.entities; tables.0.entities, private.0.entities
_KEPT = re.compile(
    r"(best[.]final[.](?P<private>private[.])?|(tables|(?P<own>private))[.]\d+[.])(?P<table>entities|relations)"
)
_TINY_POLICY = """
federations:
  tiny: {size: 300, dim: 8, batch_size: 64, num_negatives: 8, rounds: 3, eval_every: 1, learning_rate: 0.01, device: cpu,
    protocol_seed: 7, unlinked_heads: 0%s}
limits:
"""
_FIGURES = """  reconstruction.err: {max: 0.3, threat: identifiers, leak: 1}
  reconstruction.trr: [{max: 0.9, threat: collusion, leak: 1}, {max: 0.9, threat: identifiers, leak: 1}]
  reconstruction.err_advantage: {max: 0.3, threat: collusion, leak: 1}
  reconstruction.trr_advantage: {max: 0.3, threat: identifiers, leak: 1, victim: hospital-2}
  utility.mrr: {min: 0.15}
  utility.hits@10: {min: 0.1}
  bytes.per_round: {max: 1 MB}
  bytes.total: {max: 2 MB}
  epsilon: {max: 40, delta: 1e-4, unit: row}
  membership.auc: {max: 0.7}
"""
_AUDITS = """  membership.auc: [{max: 0.7, shadows: 4}, {max: 0.7, victim: hospital-1}]
  membership.advantage: {max: 0.7}
  unlearning.auc: {max: 0.7, forget: forget-of-900.tsv, client: hospital-1, method: retrain, shadows: 4}
  unlearning.ks: {max: 0.9, forget: forget-of-900.tsv, client: hospital-1, method: retrain, shadows: 4}
  unlearning.forget_mrr: {max: 0.9, forget: forget-of-900.tsv, client: hospital-1, method: retrain, shadows: 4}
"""
_EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


class Outcome(NamedTuple):
    """What a case came to.

    Attributes:
        figures: numbers (bytes, losses), lists of value and interval, and words (outcomes of verdicts), by name.
        digests: sha256 of the final tables, clients in their order, by table; equal only where every bit is.
    """

    figures: dict[str, Any]
    digests: dict[str, str]


class Golden:
    """The cases' runs in one folder; each is made when it is first asked for, after those whose folders it reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Outcome] = {}
        prepare(folder)

    def outcome(self, name: str) -> Outcome:
        """Figures and digests of a case."""
        if name not in self._made:
            case = BY_NAME[name]
            for needed in case.needs:
                if needed in BY_NAME:
                    self.outcome(needed)
            status, error = _fkgsec(case.command, self.folder)
            made = Outcome({"status": status}, {})
            if name.startswith("refused-"):
                assert status != 0, f"{name}: was not refused"
                assert "No such option" not in error, f"{name}: {error}"
            else:
                judged = case.command.startswith(("check ", "verify "))  # 1 and 3 are verdicts
                assert status in ((0, 1, 3) if judged else (0,)), f"{name}: {error}"
                made = read_outcome(self.folder / "runs", name, status)
            self._made[name] = made
        return self._made[name]


def prepare(folder: Path) -> None:
    """Generate what the commands read: a graph in one piece, forget sets, and policies."""
    clients = _generate(folder, 300)
    (folder / "graph").mkdir()
    for split in ("train", "valid", "test"):
        lines = [line for client in clients for line in (client / f"{split}.txt").read_text().splitlines()]
        (folder / "graph" / f"{split}.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    _choose_forgotten(clients, folder / "forget.tsv", 4)
    _choose_forgotten(_generate(folder, 900), folder / "forget-of-900.tsv", 12)
    noise = ', defense: "psu,secagg,dp:unit=row,noise=skellam,clip=0.1,epsilon=40"'
    (folder / "tiny.yaml").write_text(_TINY_POLICY % noise + _FIGURES)
    audited = (_TINY_POLICY % "").replace("size: 300", "size: 900").replace("rounds: 3", "rounds: 12")
    (folder / "audits.yaml").write_text(audited + _AUDITS)
    example = _EXAMPLE.read_text()
    assert "    dim: 32\n" in example
    (folder / "example.yaml").write_text(example.replace("    dim: 32\n", "    dim: 32\n    protocol_seed: 7\n"))
    (folder / "runs").mkdir()


def _generate(folder: Path, size: int) -> list[Path]:
    """The embedded federation as files; the folders of its clients."""
    status, error = _fkgsec(f"data generate --size {size} --out hospitals-{size}", folder)
    assert status == 0, error
    return sorted(path for path in (folder / f"hospitals-{size}").iterdir() if path.is_dir())


def _choose_forgotten(clients: list[Path], file: Path, count: int) -> None:
    """Some training triples of the first client that no other holds, spread over its file."""
    own = (clients[0] / "train.txt").read_text().splitlines()
    others = {line for client in clients[1:] for line in (client / "train.txt").read_text().splitlines()}
    alone = [line for line in own if line not in others]
    file.write_text("\n".join(alone[3 :: len(alone) // count][:count]) + "\n")


def _fkgsec(command: str, folder: Path) -> tuple[int, str]:
    """Status and standard error of a command in a folder. Pictures hold no figure and take longest, so none are drawn."""
    with contextlib.chdir(folder), _no_pictures():
        done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    return done.exit_code, done.stderr


@contextlib.contextmanager
def _no_pictures() -> Iterator[None]:
    original = Figure.savefig
    Figure.savefig = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Figure.savefig = original  # type: ignore[method-assign]


# Reading.


def read_outcome(runs: Path, name: str, status: int) -> Outcome:
    """The figures of whatever a case wrote under its name, and the digests of its tables where it has any."""
    folder = runs / name
    if (file := folder / "verification.json").exists():
        return Outcome({"status": status, **verification_figures(_read(file))}, {})
    if (file := folder / "unlearning.json").exists():
        figures, tables = unlearning_figures(_read(file)), folder / "unlearned.safetensors"
        return Outcome(figures | _message_figures(tables, "result"), table_digests(tables))
    if (file := folder / "comparison.json").exists():
        cases = {case["name"]: record_figures(case["record"]) for case in _read(file)["cases"]}
        return Outcome({f"{case}: {key}": value for case, found in cases.items() for key, value in found.items()}, {})
    if (file := folder / "seeds.json").exists():
        several = _read(file)["figures"]
        return Outcome({key: [_estimate(one["over"]), _number(one["values"][-1])] for key, one in several.items()}, {})
    if (file := folder / "record.json").exists():
        tables = folder / "checkpoint.safetensors"
        figures = record_figures(_read(file))
        if not tables.exists():  # a further attack on another case's run
            return Outcome({key: value for key, value in figures.items() if key.startswith(("leakage", "update"))}, {})
        return Outcome(figures | _message_figures(tables, "progress"), table_digests(tables))
    file = folder.with_suffix(".json") if not name.endswith(".json") else folder
    if not file.exists():
        return Outcome({"status": status}, {})
    return Outcome({"status": status, **_json_figures(_read(file))}, {})


def record_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's record: utility, losses, validation, bytes, guarantees, leakage."""
    figures: dict[str, Any] = {"best_round": record["best_round"]}
    for part in ("utility", "utility_shared"):
        figures |= {f"{part}/{name}": _estimate(one) for name, one in record[part].items()}
    for part in ("utility_by_client", "utility_by_leak"):
        figures |= {f"{part}/{key}/mrr": _estimate(one["mrr"]) for key, one in record[part].items()}
    figures |= {
        f"rounds/{'valid_mrr' if name == 'valid' else name}": [_number(entry[name]) for entry in record["rounds"]]
        for name in ("loss", "valid", "bytes_up", "bytes_down", "num_survivors", "num_clipped")
    }
    for tables, one in record["guarantees"].items():
        figures[f"guarantee/{tables}"] = [_number(one["epsilon"]), _number(one["delta"]), one["unit"], one["rounds"]]
    figures["protection lines"] = len(record["protection"])
    return figures | leakage_figures(record["figures"], record["spec"]) | update_figures(record["figures"])


def leakage_figures(found: list[dict[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of reconstruction: ERR and TRR with their baselines and ceilings, and the attack without linked pairs."""
    figures: dict[str, Any] = {}
    listed = msgspec.convert([one for one in found if one["attack"] == RECONSTRUCTION], list[AttackFigure])

    def place(one: AttackFigure, inference: str) -> str:
        leak = one.leak or asked["leak"][0]  # which stood in the rows of before where nobody colludes, too
        return f"leakage/{one.threat_model}/{leak:g}/{inference}/{one.victim}"

    for one in rebuilt(listed):
        where = place(one, PAPER if one.variant == PUBLISHED else one.variant)
        base = one.guesses.get("majority", one.baseline)
        figures[f"{where}/{one.metric}"] = _estimate(msgspec.to_builtins(one.estimate))
        figures[f"{where}/{one.metric} reference"] = [
            _number(value) for value in (base and base.value, one.advantage, one.attainable)
        ]
        if one.metric == "err":
            figures[f"{where}/by"] = [one.by]
            if one.counts:
                figures[f"{where}/sources"] = [*sorted(one.counts.values())]
        else:
            figures[f"{where}/prior"] = _number(one.guesses["prior"].value)
            figures[f"{where}/by"] += [one.by, one.compared, one.num_attacked]
    for one in headline(listed):
        if one.metric in UNLINKED:
            figures[f"{place(one, STRONGEST)}/unlinked {one.metric}"] = _estimate(msgspec.to_builtins(one.estimate))
    return figures


def update_figures(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of update recovery: cosine and relative error, and those of the mean change; of the largest leak."""
    figures = {}
    for one in sorted((one for one in found if one["attack"] == "update-recovery"), key=lambda one: one.get("leak", 0)):
        name, relations, _ = one["metric"].partition("_relations")
        place = f"update recovery/{one['threat_model']}/{one['victim']}/{'relations' if relations else 'entities'}"
        figures[f"{place}/{name}"] = _estimate(one["estimate"])
        figures[f"{place}/base_{name}"] = _estimate(one.get("baseline", one["estimate"]))
    return figures


def unlearning_figures(unlearning: Mapping[str, Any]) -> dict[str, Any]:
    """Of a folder of `fkgsec unlearn`."""
    return {
        "asked": unlearning["asked"],
        "bytes_up": unlearning["bytes_up"],
        "bytes_down": unlearning["bytes_down"],
        **{f"utility/{name}": _estimate(one) for name, one in unlearning["utility"].items()},
    }


def verification_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a verification: its verdict and every estimate of what is still remembered."""
    figures: dict[str, Any] = {"outcome": record["verdict"]["outcome"]}
    for part in ("quality", "membership", "distances", "relearning", "updates", "rebuilt"):
        for row in record["forgetting"][part]:
            place = "/".join(str(row[key]) for key in ("client", "model", "attack", "triples") if key in row)
            for key, one in _estimates(row, ""):
                figures[f"{part}/{place}{key}"] = one
    return figures


def _json_figures(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of a check's verdicts, an audit's leakage, or a graph's statistics."""
    if "verdicts" in content:
        return {
            f"{one['id']}": [one["status"], _estimate(one["measured"]), _number(one.get("attainable"))]
            for one in content["verdicts"]
        }
    if "figures" in content:
        return leakage_figures(content["figures"], content["attack"])
    rows = {
        row["client"]: [_number(one) for one in row.values() if not isinstance(one, str)]
        for row in content["statistics"]
    }
    return {"hash": content["hash"], **{f"statistics/{name}": row for name, row in rows.items()}}


def _estimates(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every estimate inside a row, by the keys that lead to it."""
    if isinstance(content, dict) and {"value", "low", "high"} <= set(content):
        yield place, _estimate(content)
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _estimates(value, f"{place}/{key}")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _estimates(value, f"{place}/{number}")


def _message_figures(tables: Path, key: str) -> dict[str, Any]:
    """Bytes of all messages by direction and kind, and the rounds' losses, from what a safetensors file says of a run."""
    with safe_open(tables, framework="pt") as handle:
        about = json.loads(handle.metadata()[key])
    sums: dict[str, Any] = {"rounds/loss": [_number(entry["loss"]) for entry in about["rounds"]]}
    for _, _, receiver, kind, table, num_bytes in about["entries"]:
        name = f"bytes/{'up' if receiver == 'server' else 'down'}/{table}/{kind}"
        sums[name] = sums.get(name, 0) + num_bytes
    return dict(sorted(sums.items()))


def table_digests(file: Path) -> dict[str, str]:
    """sha256 of the kept tables' bytes: all clients' rows in a run's checkpoint, client after client in an unlearning's."""
    digests: dict[str, Any] = {}
    with safe_open(file, framework="pt") as handle:
        for name in sorted(handle.keys()):
            if found := _KEPT.fullmatch(name):
                digest = digests.setdefault(
                    f"{'private ' if found['private'] or found['own'] else ''}{found['table']}", hashlib.sha256()
                )
                digest.update(handle.get_tensor(name).numpy().tobytes())
    return {name: digest.hexdigest()[:16] for name, digest in digests.items()}


def _estimate(one: Mapping[str, Any] | None) -> list[float] | None:
    return None if one is None else [_number(one["value"]), _number(one["low"]), _number(one["high"])]


def _number(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _read(file: Path) -> Any:
    return msgspec.json.decode(file.read_bytes())
