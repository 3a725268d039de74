"""Record of a run in one versioned JSON file: spec, data, environment, and every figure with its interval."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pandas as pd
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.frames import COLUMNS, HEADS, figure_rows, summary_rows
from fkgsec.attacks.options import threat_models
from fkgsec.attacks.reconstruction.leakage import rebuilt
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.view import ALL
from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.data.split_leaks import OWN_TRAIN
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.integrity.origin import Origin, seal_of
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import read_bytes
from fkgsec.experiments.tasks.items import TestItems
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import RunTask, task_of
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.options import RunOptions
from fkgsec.federation.protection import Withstands
from fkgsec.federation.result import RunResult
from fkgsec.frames import block, interval, tidy
from fkgsec.protocols.noise.guarantee import Guarantee
from fkgsec.version import __version__

SCHEMA = "fkgsec/record/2"
_ROUNDING = 1e-9
# Start of a protection line that names a client whose figures are missing.
ABSENT = "apart: utility is without "
_PACKAGES = ("torch", "numpy", "numba", "pandas", "cryptography", "opacus")


class DataRecord(msgspec.Struct, frozen=True):
    """Data of a run.

    Attributes:
        name: name of the data set, and the number of clients.
        hash: digest of everything that training reads, independent of the files.
        clients: sizes of each client's data by name, such as entities and triples.
        sensitive: relations whose answers the attack `attributes` infers; empty for graph classification.
        warnings: remarks of the loader, such as test items that are also in train.
    """

    name: str
    hash: str
    clients: dict[str, dict[str, int]]
    sensitive: list[str]
    warnings: list[str]


class Environment(msgspec.Struct, frozen=True):
    """Machine, versions and command of a run. Fields with defaults are missing in older records.

    Attributes:
        commit: commit of the checkout; None outside a checkout of fkgsec.
        dirty: True if the checkout had changes.
        python: version of Python.
        platform: system and machine.
        versions: versions of packages by name.
        device: name of the GPU, or cpu.
        threads: number of torch's threads.
        command: the command line; empty for a script.
        vector_level: vector unit of the CPU; figures agree to the last bit only on the same one.
        attack_s: seconds of its attacks.
        processor: model of the CPU.
        peak_bytes: largest memory of this process so far.
    """

    commit: str | None
    dirty: bool | None
    python: str
    platform: str
    versions: dict[str, str]
    device: str
    threads: int
    command: str
    vector_level: str = ""
    attack_s: float | None = None
    processor: str = ""
    peak_bytes: int | None = None


class Bytes(msgspec.Struct, frozen=True):
    """Serialized bytes to and from the server.

    Attributes:
        up: bytes to the server, in all rounds.
        down: bytes from the server, in all rounds.
        up_by_round: bytes to the server in each round; round 0 is the alignment.
        down_by_round: bytes from the server in each round.
    """

    up: int
    down: int
    up_by_round: list[int]
    down_by_round: list[int]


class Record(msgspec.Struct, frozen=True):
    """All figures of a run, from which tables and pictures are made. Fields with defaults are missing in older records.

    Attributes:
        schema: schema of the file.
        spec: the options, with values left to the algorithm spelled out, such as a temperature.
        seed: seed of training, as in the spec.
        data: the clients' data.
        environment: machine, versions and command.
        utility: test figures over all clients; of the private models if clients have two.
        utility_by_client: test figures of each client.
        utility_by_leak: figures of test triples in their own client's train split ("leaked"), only in another client's
            ("elsewhere"), and in none ("new"); for deployed clients and older records "clean" replaces the last two. For
            graphs: with a twin in any client's train split ("leaked") and without ("clean").
        bytes: transmitted bytes.
        rounds: figures of each round.
        best_round: the round whose models were evaluated and attacked.
        protection: statement of the defense, in lines.
        utility_shared: test figures of the shared models after the broadcast, if clients have two models; else empty.
        guarantees: guarantees of differential privacy, by the tables that each covers.
        withstands: for each part of the protection, the kind of server and the number of colluders that it withstands.
        figures: figures of all attacks.
        metric: the task's validation metric.
        valid: validation metric of the best round.
        validation: estimate of a sampled validation with its interval; None for full validation.
        origin: digests of the inputs; None for runs without a folder.
        whose: source of each option that differs from its default.
        items: outcome on each test item; None for deployed clients.
        items_shared: outcome of the shared models on each test item.
        gains: gain of each client, and of all, over training alone, in `metric`; only in copies that `--json` writes.
    """

    schema: str
    spec: RunSpec
    seed: int
    data: DataRecord
    environment: Environment
    utility: dict[str, Estimate]
    utility_by_client: dict[str, dict[str, Estimate]]
    utility_by_leak: dict[str, dict[str, Estimate]]
    bytes: Bytes
    rounds: list[RoundEntry]
    best_round: int
    protection: list[str] = []
    utility_shared: dict[str, Estimate] = {}
    guarantees: dict[str, Guarantee] = {}
    withstands: tuple[Withstands, ...] = ()
    figures: list[Figure] = []
    metric: str = "mrr"
    valid: float | None = None
    validation: Estimate | None = None
    origin: Origin | None = None
    whose: dict[str, str] = {}
    items: TestItems | None = None
    items_shared: TestItems | None = None
    gains: dict[str, Estimate] = {}

    @property
    def unseen(self) -> dict[str, Estimate]:
        """Utility on test items outside training: "new", or "clean" in older records."""
        return self.utility_by_leak.get("new") or self.utility_by_leak["clean"]

    @property
    def attacked(self) -> bool:
        """True if any attack was run."""
        return bool(self.figures)

    @property
    def rebuilt(self) -> list[Figure]:
        """ERR and TRR of each victim by each inference."""
        return rebuilt(self.figures)

    def to_frame(self) -> pd.DataFrame:
        """Return every figure in a row, with its interval and baseline; utility and bytes appear as further "attacks".

        Returns:
            Columns `fkgsec.attacks.frames.COLUMNS`. For utility, `metric` is for example "mrr" and `victim` a client or
            "all"; for bytes, `metric` is "up" or "down".
        """
        rows = [
            {"attack": "utility", "metric": metric, "victim": client, "round": self.best_round, **interval(figure)}
            for client, figures in (*self.utility_by_client.items(), (ALL, self.utility))
            for metric, figure in figures.items()
        ]
        for metric, count in (("up", self.bytes.up), ("down", self.bytes.down)):
            rows.append(
                {"attack": "bytes", "metric": metric, "victim": ALL, **interval(exact(count, len(self.rounds)))}
            )
        rows = [row | {"headline": True, "less_is_worse": False} for row in rows]
        return tidy(rows + figure_rows(self.figures), COLUMNS)

    def _repr_html_(self) -> str:
        spec = self.spec
        lines = [
            f"{len(self.data.clients)} clients of {self.data.name}; best round {self.best_round}",
            *self.protection,
        ]
        reached = [("utility", name, None, None, ALL, figure, None, None) for name, figure in self.utility.items()]
        title = f"{spec.algorithm}, {spec.model}, {spec.defense or 'no defense'}"
        return block(title, lines, heads=HEADS, rows=[*reached, *summary_rows(self.figures)])

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "spec", self.spec.settled().replace(device=self.spec.device))


def make_record(
    spec: RunSpec,
    result: RunResult,
    figures: Sequence[Figure] = (),
    origin: Origin | None = None,
    whose: Mapping[str, str] | None = None,
    attack_s: float | None = None,
) -> Record:
    """Build the record of a finished run.

    Args:
        spec: the run and its attack.
        result: result of the training.
        figures: figures of attacks.
        origin: digests of the inputs.
        whose: source of each option.
        attack_s: seconds of the attacks.
    """
    reached = task_of(spec).reached(result)
    return Record(
        schema=SCHEMA,
        spec=spec,
        seed=spec.seed,
        data=describe_data(task_of(spec), result.graph),
        environment=msgspec.structs.replace(
            environment_of(result.options),
            attack_s=attack_s,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts kibibytes
        ),
        utility=reached.of_all,
        utility_by_client=reached.by_client,
        utility_by_leak=reached.by_leak,
        bytes=Bytes(
            result.transcript.num_bytes("up"),
            result.transcript.num_bytes("down"),
            [entry.bytes_up for entry in result.rounds],
            [entry.bytes_down for entry in result.rounds],
        ),
        rounds=result.rounds,
        best_round=result.best_round,
        protection=result.protection.lines(),
        utility_shared=reached.shared,
        guarantees=dict(result.protection.guarantees),
        withstands=result.protection.withstands,
        figures=list(figures),
        metric=result.metric,
        valid=result.valid,
        validation=result.validation,
        origin=origin,
        whose=dict(whose or {}),
        items=reached.items,
        items_shared=reached.items_shared,
    )


def describe_data(task: RunTask, graph: Any) -> DataRecord:
    """Describe the clients' data by name, hash and sizes.

    Args:
        task: the task, which counts the sizes.
        graph: the clients' data.
    """
    # Records are published, so they must not name this machine's data folder.
    folder = os.environ.get(DATA_VARIABLE)
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    warnings = [warning.replace(prefix, "") if prefix else warning for warning in graph.warnings]
    return DataRecord(graph.name, graph.hash, task.describe(graph), task.sensitive(graph), warnings)


def environment_of(options: RunOptions) -> Environment:
    """Describe this process: versions, device, commit and command line.

    Args:
        options: options of a run, for its device.
    """
    here = Path(str(resources.files("fkgsec")))

    def _git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # fkgsec may be installed inside another project's repository, whose commit would mislead.
    root = _git("rev-parse", "--show-toplevel")
    ours = root is not None and Path(root) == here.parent
    status = _git("status", "--porcelain") if ours else None
    device = options.torch_device()
    return Environment(
        commit=_git("rev-parse", "HEAD") if ours else None,
        dirty=bool(status) if status is not None else None,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        versions={"fkgsec": __version__} | {name: metadata.version(name) for name in _PACKAGES if find_spec(name)},
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        command=shlex.join(["fkgsec", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("fkgsec", "cli") else "",
        vector_level=vector_level(),
        processor=processor(),
    )


def processor() -> str:
    """Return the model of the CPU from Linux, else from Python's `platform`."""
    with contextlib.suppress(OSError):
        if match := re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()):
            return match[1].strip()
    return platform.processor() or platform.machine()


def vector_level() -> str:
    """Return torch's vector unit and numba's CPU, such as `AVX2, znver3`. Other units change the last digits of sums."""
    from llvmlite.binding import get_host_cpu_name

    return f"{torch.backends.cpu.get_cpu_capability()}, {os.environ.get('NUMBA_CPU_NAME') or get_host_cpu_name()}"


def sealed(record: Record) -> Record:
    """Add the digest of a record's content to its origin."""
    assert record.origin is not None
    seal = seal_of(msgspec.json.decode(encode_stored(record)))
    return msgspec.structs.replace(record, origin=msgspec.structs.replace(record.origin, record=seal))


def with_gains(record: Record, gains: Mapping[str, Estimate]) -> Record:
    """Return a copy with the gains over training alone, sealed again.

    Args:
        gains: gain of each client, and of all.
    """
    copy = msgspec.structs.replace(record, gains=dict(gains))
    return copy if copy.origin is None else sealed(copy)


def read_record(path: Path) -> Record:
    """Read record.json.

    Raises:
        RunError: the file is missing, damaged, of another schema, or contradicts itself.
    """
    try:
        record = decode_stored(read_bytes(path), Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, SpecError) as error:
        raise RunError(f"{path}: not a record of schema {SCHEMA} ({error})") from error
    if record.schema != SCHEMA:
        raise RunError(f"{path}: not a record of schema {SCHEMA} but of {record.schema!r}")
    _check(path, record)
    return record


def is_record(path: Path) -> bool:
    """Return True if a JSON file has the schema of records, in any version. Raises `RunError` if it is not JSON."""
    schema = _schema(path, read_bytes(path))
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]


def _schema(path: Path, content: bytes) -> Any:
    """Return the schema that a JSON file names, if any. Raises `RunError` if it is not JSON."""
    try:
        document = msgspec.json.decode(content)
    except RecursionError as error:
        raise RunError(f"{path}: JSON is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not JSON ({error})") from error
    return document.get("schema") if isinstance(document, dict) else None


def _check(path: Path, record: Record) -> None:
    try:
        check_record(record)
    except RunError as error:
        raise RunError(f"{path}: {error}") from error


T = TypeVar("T")


def read_if_of(path: Path, schema: str, kind: type[T]) -> T | None:
    """Decode a JSON file; return None if it names another schema, or none.

    Args:
        path: a JSON file.
        schema: expected schema.
        kind: type to decode to.

    Raises:
        RunError: the file cannot be read, is not JSON, or contradicts its schema.
    """
    content = read_bytes(path)
    if _schema(path, content) != schema:
        return None
    try:
        read = decode_stored(content, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, SpecError) as error:
        raise RunError(f"{path}: not a {kind.__name__.lower()} of schema {schema} ({error})") from error
    for case in getattr(read, "cases", ()):  # a comparison's cases
        if isinstance(record := getattr(case, "record", None), Record):
            _check(path, record)
    return read


def check_record(record: Record) -> None:
    """Check that a record does not contradict itself.

    Raises:
        RunError: names the field, its value and the expected one.
    """
    task = task_of(record.spec)
    if record.metric != task.metric:
        raise RunError(f"metric: {record.spec.algorithm} is validated by {task.metric}; got {record.metric!r}")
    # The seed is stored twice, because results are grouped by it.
    if record.seed != record.spec.seed:
        raise RunError(f"seed: the spec's is {record.spec.seed}; got {record.seed}")
    check_numbering([entry.round for entry in record.rounds], record.best_round)
    _check_utility(record, task)
    _check_bytes(record)
    for client, sizes in record.data.clients.items():
        _check_names(f"data.clients.{client}", sizes, task.sizes, task.sizes)
        if min(sizes.values()) < 0:
            raise RunError(f"data.clients.{client}: a size is {min(sizes.values())}")
    if record.data.sensitive and not task.marked:
        raise RunError(f"data.sensitive: data of {task.about} mark nothing; got {', '.join(record.data.sensitive)}")
    _check_figures(record, task)
    _check_items(record, task)


def _check_figures(record: Record, task: RunTask) -> None:
    """Check attacks, threat models and victims. Any metric is accepted for an attack that is not installed."""
    threats, victims = threat_models(task.name), {*record.data.clients, ALL}
    for number, figure in enumerate(record.figures):
        attack = ATTACKS[figure.attack] if figure.attack in ATTACKS else None  # noqa: SIM401 (a registry raises for unknown names)
        if attack and attack.task != task.name:
            raise RunError(f"figures[{number}]: {figure.attack} is not an attack on {task.about}")
        if figure.threat_model not in threats:
            allowed = ", ".join(threats)
            raise RunError(f"figures[{number}]: threat_model must be one of {allowed}; got {figure.threat_model!r}")
        if figure.victim not in victims:
            raise RunError(f"figures[{number}]: victim must be a client or {ALL}; got {figure.victim!r}")
        if attack and figure.metric not in attack.metrics:
            allowed = ", ".join(attack.metrics)
            raise RunError(f"figures[{number}]: metrics of {figure.attack} are {allowed}; got {figure.metric!r}")


def check_numbering(rounds: Sequence[int], best_round: int) -> None:
    """Check that rounds are numbered from 0, the alignment, and include the best one.

    Args:
        rounds: numbers of the rounds, in order.

    Raises:
        RunError: they are not, or do not.
    """
    if not rounds or list(rounds) != list(range(len(rounds))):
        raise RunError(f"rounds: must be numbered 0, 1, 2, ...; got {', '.join(map(str, rounds[:10])) or 'none'}")
    if not 0 <= best_round < len(rounds):
        raise RunError(f"best_round: must be one of the rounds 0 to {len(rounds) - 1}; got {best_round}")


def _check_utility(record: Record, task: RunTask) -> None:
    # Deployed clients may drop out of the evaluation; the record then names them.
    absent = [line for line in record.protection if line.startswith(ABSENT)]
    due = {name for name in record.data.clients if not any(line.startswith(f"{ABSENT}{name}, ") for line in absent)}
    if record.utility_by_client.keys() != due:
        named = ", ".join(record.utility_by_client) or "nobody"
        raise RunError(f"utility_by_client: must be of {', '.join(record.data.clients) or 'nobody'}; got {named}")
    whole = "clean" in record.utility_by_leak or "new" not in task.leaked
    parts = ("leaked", "clean") if whole else ("leaked", "elsewhere", "new")
    _check_names("utility_by_leak", record.utility_by_leak, parts, parts)
    parts = {
        "utility": record.utility,
        **{f"utility_by_client.{name}": figures for name, figures in record.utility_by_client.items()},
        **{f"utility_by_leak.{name}": figures for name, figures in record.utility_by_leak.items()},
        **({"utility_shared": record.utility_shared} if record.utility_shared else {}),
    }
    for where, figures in parts.items():
        _check_names(where, figures, (task.metric,), task.metrics)
        if (fewest := min(figure.n for figure in figures.values())) < 0:
            raise RunError(f"{where}: a figure rests on {fewest} items")


def _check_items(record: Record, task: RunTask) -> None:
    """Check that items match the clients' test splits, and that their mean is the utility."""
    if record.items is None:
        return
    # A record that was edited by hand usually fails one of these comparisons.
    tested = [sizes["test"] for sizes in record.data.clients.values()]
    if record.items.counts != tested:
        raise RunError(f"items: clients have {tested} test items; got {record.items.counts}")
    try:
        outcomes, seen = record.items.values(), record.items.where_seen()
    except ValueError as error:
        raise RunError(f"items: {error}") from error
    # Outcomes of MRR are stored as twice the rank.
    scores = (2 / outcomes if task.metric == "mrr" else outcomes).mean(axis=1)
    for name, rows in zip(record.data.clients, record.items.client_slices(), strict=True):
        figure = record.utility_by_client[name][task.metric]
        mean = scores[rows].mean() if figure.n else figure.value
        if abs(mean - figure.value) > _ROUNDING:
            raise RunError(f"items: {name} has {task.metric} {mean:.6f}; the record says {figure.value:.6f}")
    leaked = record.utility_by_leak["leaked"][task.metric].n
    if task.metric == "mrr" and leaked != (seen == OWN_TRAIN).sum():
        raise RunError(f"items: {(seen == OWN_TRAIN).sum():,} stand in own training; utility_by_leak says {leaked:,}")


def _check_names(where: str, values: Mapping[str, object], needed: Iterable[str], allowed: Iterable[str]) -> None:
    """Check that all needed names occur and all names are allowed. Raises `RunError`."""
    least, most = tuple(needed), tuple(allowed)
    if not set(least) <= values.keys() <= set(most):
        further = "" if set(least) == set(most) else f", further ones are {', '.join(most)}"
        raise RunError(f"{where}: must have {', '.join(least)}{further}; got {', '.join(values) or 'none'}")


def _check_bytes(record: Record) -> None:
    for direction in ("up", "down"):
        total, by_round = getattr(record.bytes, direction), getattr(record.bytes, f"{direction}_by_round")
        of_rounds = [getattr(entry, f"bytes_{direction}") for entry in record.rounds]
        if by_round != of_rounds or total != sum(by_round):
            raise RunError(
                f"bytes: {direction} must be {sum(of_rounds):,}, the sum over rounds, each as it says; got {total:,}"
            )
