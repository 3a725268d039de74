"""The record of a run: what was asked, on which data, where, and every figure with its interval. One versioned JSON file."""

from __future__ import annotations

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
ABSENT = "apart: utility is without "
"""How a line of a record's statement begins that names a client whose figures are missing."""
_PACKAGES = ("torch", "numpy", "numba", "pandas", "cryptography", "opacus")


class DataRecord(msgspec.Struct, frozen=True):
    """The data of a run.

    Attributes:
        name: of the data set, and into how many clients it is divided.
        hash: over all that training reads, whatever files it came from.
        clients: by client its sizes, such as entities and triples, by name.
        sensitive: relations whose answers `attributes` infers; of graph classification nothing.
        warnings: what loading had to say, such as test items that also stand in train.
    """

    name: str
    hash: str
    clients: dict[str, dict[str, int]]
    sensitive: list[str]
    warnings: list[str]


class Environment(msgspec.Struct, frozen=True):
    """Where a run was made.

    Attributes:
        commit: of the checkout. dirty: whether it had changes. None outside a checkout of fkgsec.
        python: its version. platform: system and machine. versions: of packages, by name.
        device: the name of the GPU, or cpu. threads: of torch.
        command: the command line; "" from a script.
        vector_level: of the CPU, as torch and numba use it; figures are equal to the last bit where it is; "" in old records.
        attack_s: seconds that its attacks took; None without attacks, and in records of before.
        processor: model of the CPU; "" in records of before.
        peak_bytes: most memory that this process has held so far, all runs in it together; None in records of before.
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
    """Serialised bytes to and from the server.

    Attributes:
        up: to the server, in all rounds. down: from it.
        up_by_round: to the server in each round; round 0 is the alignment. down_by_round: from it.
    """

    up: int
    down: int
    up_by_round: list[int]
    down_by_round: list[int]


class Record(msgspec.Struct, frozen=True):
    """Everything that a table or a picture is made from.

    Attributes:
        schema: of the file. seed: of training, as the spec says, too.
        data: what the clients held. environment: where and by what it was made.
        bytes: what crossed. rounds: each in numbers.
        spec: what was asked; what was left to the algorithm is spelled out, such as a temperature.
        utility: test figures over all clients, see `fkgsec.experiments.tasks`.
        utility_by_client: the same for each client.
        utility_shared: where a client keeps a second model, which `utility` is then of: the same of the shared model, after the
            broadcast; else empty.
        utility_by_leak: of test triples that stand in their own client's training ("leaked"), in another client's alone
            ("elsewhere") and in none ("new"); of clients that sit apart, and in records of before, "clean" in place of the last
            two. Of test graphs with a twin in any client's training ("leaked") and without ("clean").
        best_round: whose models were evaluated and attacked.
        protection: what the defense protects, in lines; empty without one.
        guarantees: of differential privacy, by the tables that each covers; empty without noise.
        figures: what every attack found; empty where none was run.
        withstands: which server each part of the protection withstands, and with how many colluders.
        metric: what validation measures, of the task. valid: of the models that are kept; None in records of before.
        whose: by option whose value it is, such as given, a file's or a paper's; all others are at their default. Empty in
            records of before.
        items: the outcome on each test item; None for clients that sit apart, and in records of before. items_shared: of the
            shared models, where `utility_shared` is.
        validation: what a sampled validation estimates of the models that are kept, with its interval and how it is biased;
            None where validation is of all triples among all candidates.
        origin: digests of what the record was computed from; None in records of before, and of runs without a folder.
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

    @property
    def unseen(self) -> dict[str, Estimate]:
        """Utility on test items that training did not see, as far as the record knows: "new", else "clean"."""
        return self.utility_by_leak.get("new") or self.utility_by_leak["clean"]

    @property
    def attacked(self) -> bool:
        """Whether any attack was run."""
        return bool(self.figures)

    @property
    def rebuilt(self) -> list[Figure]:
        """ERR and TRR, of each victim by each inference."""
        return rebuilt(self.figures)

    def to_frame(self) -> pd.DataFrame:
        """Every figure in a row, with its interval and baseline: what attacks found, and utility and bytes as further "attacks".

        Returns: columns `fkgsec.attacks.frames.COLUMNS`; of utility `metric` is such as "mrr" and `victim` a client or "all",
            of bytes `metric` is "up" or "down". `rounds_frame` has the rounds.
        """
        return tidy(self._rows(), COLUMNS)

    def rounds_frame(self) -> pd.DataFrame:
        """A row for each round, as `RunResult.to_frame`."""
        return pd.DataFrame([msgspec.structs.asdict(entry) for entry in self.rounds]).set_index("round")

    def _rows(self) -> list[dict[str, Any]]:
        rows = [
            {"attack": "utility", "metric": metric, "victim": client, "round": self.best_round, **interval(figure)}
            for client, figures in (*self.utility_by_client.items(), (ALL, self.utility))
            for metric, figure in figures.items()
        ]
        for metric, count in (("up", self.bytes.up), ("down", self.bytes.down)):
            rows.append(
                {"attack": "bytes", "metric": metric, "victim": ALL, **interval(exact(count, len(self.rounds)))}
            )
        return [one | {"headline": True, "less_is_worse": False} for one in rows] + figure_rows(self.figures)

    def _repr_html_(self) -> str:
        spec = self.spec
        lines = [
            f"{len(self.data.clients)} clients of {self.data.name}; kept at round {self.best_round}",
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
    """The record of a finished run and, when it was attacked, of what attacks found, in so many seconds."""
    reached = task_of(spec).reached(result)
    return Record(
        schema=SCHEMA,
        spec=spec,
        seed=spec.seed,
        data=describe_data(task_of(spec), result.graph),
        environment=msgspec.structs.replace(
            describe_environment(result),
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
        guarantees=guarantees_of(result),
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


def guarantees_of(result: RunResult) -> dict[str, Guarantee]:
    """The guarantees of differential privacy of a run and of those before it, by the tables that each covers."""
    return {tables: one for tables, one in result.protection.guarantees.items() if isinstance(one, Guarantee)}


def describe_data(task: RunTask, graph: Any) -> DataRecord:
    """Name, hash and sizes of the clients' data."""
    # A record is shared; where the data lie on this machine is nobody's business.
    folder = os.environ.get(DATA_VARIABLE)
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    warnings = [warning.replace(prefix, "") if prefix else warning for warning in graph.warnings]
    return DataRecord(graph.name, graph.hash, task.describe(graph), task.sensitive(graph), warnings)


def describe_environment(result: RunResult) -> Environment:
    """Versions, device, commit and command line of this process."""
    return environment_of(result.options)


def environment_of(options: RunOptions) -> Environment:
    """The same for a run of these options."""
    here = Path(str(resources.files("fkgsec")))

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Only a checkout of fkgsec itself says anything; an environment inside somebody's own repository does not.
    root = git("rev-parse", "--show-toplevel")
    ours = root is not None and Path(root) == here.parent
    status = git("status", "--porcelain") if ours else None
    device = options.torch_device()
    return Environment(
        commit=git("rev-parse", "HEAD") if ours else None,
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
    """The model of the CPU, as Linux names it; elsewhere the platform's word."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def vector_level() -> str:
    """The vector unit that torch's loops were chosen for, and the CPU that numba compiles for: `AVX2, znver3`.

    Sums of float32 are rounded in another order on another unit, so that last digits differ between them.
    """
    from llvmlite.binding import get_host_cpu_name

    return f"{torch.backends.cpu.get_cpu_capability()}, {os.environ.get('NUMBA_CPU_NAME') or get_host_cpu_name()}"


def encode_record(record: Record) -> bytes:
    """The record as indented JSON."""
    return encode_stored(record)


def sealed(record: Record) -> Record:
    """The record with the digest of its own words."""
    assert record.origin is not None
    seal = seal_of(msgspec.json.decode(encode_record(record)))
    return msgspec.structs.replace(record, origin=msgspec.structs.replace(record.origin, record=seal))


def read_record(path: Path) -> Record:
    """Read record.json. Raises `RunError` when it is missing, damaged, of another schema, or contradicts itself."""
    try:
        record = decode_stored(path.read_bytes(), Record)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, SpecError) as error:
        raise RunError(f"{path}: not a record of schema {SCHEMA} ({error})") from error
    if record.schema != SCHEMA:
        raise RunError(f"{path}: not a record of schema {SCHEMA} but of {record.schema!r}")
    _check(path, record)
    return record


def is_record(path: Path) -> bool:
    """Whether a JSON file says that it is the record of a run, of whichever version. Raises `RunError` where it is no JSON."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: not JSON that can be read ({error})") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]


def _check(path: Path, record: Record) -> None:
    try:
        check_record(record)
    except RunError as error:
        raise RunError(f"{path}: {error}") from error


T = TypeVar("T")


def read_if_of(path: Path, schema: str, kind: type[T]) -> T | None:
    """What a JSON file holds; None when it says that it is of another schema, or says nothing of one.

    Raises:
        RunError: it cannot be read, is no JSON, or contradicts its schema.
    """
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not JSON ({error})") from error
    except RecursionError as error:
        raise RunError(f"{path}: not JSON that can be read (nested too deeply)") from error
    try:
        read = decode_stored(content, kind) if isinstance(found, dict) and found.get("schema") == schema else None
    except (msgspec.MsgspecError, UnicodeDecodeError, SpecError) as error:
        raise RunError(f"{path}: not a {kind.__name__.lower()} of schema {schema} ({error})") from error
    for case in getattr(read, "cases", ()):  # of a comparison
        if isinstance(record := getattr(case, "record", None), Record):
            _check(path, record)
    return read


def check_record(record: Record) -> None:
    """Raises `RunError` that names the field, what stands there and what would be right."""
    task = task_of(record.spec)
    if record.metric != task.metric:
        raise RunError(f"metric: {record.spec.algorithm} is validated by {task.metric}; got {record.metric!r}")
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
    """Attacks, threat models and victims; an attack of a package that is not installed may measure what it likes."""
    threats, victims = threat_models(task.name), {*record.data.clients, ALL}
    for number, one in enumerate(record.figures):
        known = ATTACKS[one.attack] if one.attack in ATTACKS else None  # noqa: SIM401 (a registry raises for unknown names)
        if known and known.task != task.name:
            raise RunError(
                f"figures[{number}]: {one.attack} is no attack on {task.about}, which {record.spec.algorithm} is of"
            )
        if one.threat_model not in threats:
            allowed = ", ".join(threats)
            raise RunError(f"figures[{number}]: threat_model must be one of {allowed}; got {one.threat_model!r}")
        if one.victim not in victims:
            raise RunError(f"figures[{number}]: victim must be a client or {ALL}; got {one.victim!r}")
        if known and one.metric not in known.metrics:
            allowed = ", ".join(known.metrics)
            raise RunError(f"figures[{number}]: metrics of {one.attack} are {allowed}; got {one.metric!r}")


def check_numbering(rounds: Sequence[int], best_round: int) -> None:
    """Rounds are numbered from 0, the alignment, and the kept one is among them."""
    if not rounds or list(rounds) != list(range(len(rounds))):
        raise RunError(f"rounds: must be numbered 0, 1, 2, ...; got {', '.join(map(str, rounds[:10])) or 'none'}")
    if not 0 <= best_round < len(rounds):
        raise RunError(f"best_round: must be one of the rounds 0 to {len(rounds) - 1}; got {best_round}")


def _check_utility(record: Record, task: RunTask) -> None:
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
        if (fewest := min(one.n for one in figures.values())) < 0:
            raise RunError(f"{where}: a figure rests on {fewest} items")


def _check_items(record: Record, task: RunTask) -> None:
    """Items are those of the clients' test splits, and their mean is the figure of utility."""
    if record.items is None:
        return
    tested = [sizes["test"] for sizes in record.data.clients.values()]
    if record.items.counts != tested:
        raise RunError(f"items: clients have {tested} test items; got {record.items.counts}")
    try:
        outcomes, seen = record.items.values(), record.items.where_seen()
    except ValueError as error:
        raise RunError(f"items: {error}") from error
    scores = (2 / outcomes if task.metric == "mrr" else outcomes).mean(axis=1)
    for name, rows in zip(record.data.clients, record.items.client_slices(), strict=True):
        said = record.utility_by_client[name][task.metric]
        if said.n and abs(scores[rows].mean() - said.value) > _ROUNDING:
            raise RunError(
                f"items: {name} has {task.metric} {scores[rows].mean():.6f}; the record says {said.value:.6f}"
            )
    leaked = record.utility_by_leak["leaked"][task.metric].n
    if task.metric == "mrr" and leaked != (seen == OWN_TRAIN).sum():
        raise RunError(f"items: {(seen == OWN_TRAIN).sum():,} stand in own training; utility_by_leak says {leaked:,}")


def _check_names(where: str, found: Mapping[str, object], needed: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises `RunError` for a name that is missing or foreign."""
    least, most = tuple(needed), tuple(allowed)
    if not set(least) <= found.keys() <= set(most):
        further = "" if set(least) == set(most) else f", further ones are {', '.join(most)}"
        raise RunError(f"{where}: must have {', '.join(least)}{further}; got {', '.join(found) or 'none'}")


def _check_bytes(record: Record) -> None:
    for direction in ("up", "down"):
        total, by_round = getattr(record.bytes, direction), getattr(record.bytes, f"{direction}_by_round")
        of_rounds = [getattr(entry, f"bytes_{direction}") for entry in record.rounds]
        if by_round != of_rounds or total != sum(by_round):
            raise RunError(
                f"bytes: {direction} must be {sum(of_rounds):,}, the sum over rounds, each as it says; got {total:,}"
            )
