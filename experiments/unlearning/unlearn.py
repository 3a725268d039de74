"""Unlearning on disk: a finished run and a forget file in, a folder with the run after forgetting out.

The folder of the run is only read. The new one appears whole, by one rename, or not at all: a kill leaves both as they were
(and a folder whose name ends in `.part`, which the next attempt replaces).
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from fkgsec.data.formats.folders import can_name_a_file
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import DataError, FkgsecError, RunError, SpecError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.runs.record import Environment, environment_of
from fkgsec.experiments.runs.run import SPEC_FILE, check_fits, load_run, read_spec
from fkgsec.experiments.runs.spec import RunSpec, Spec, require_triples
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import locked, must_write, put_in_place, write_atomically
from fkgsec.federation.loop import run_identity
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import ClientTables
from fkgsec.kge.ranking import utility
from fkgsec.kge.result import KgeResult
from fkgsec.protocols.noise.guarantee import Guarantee
from fkgsec.unlearning.forget_sets import Forget, read_forget, retaining
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

SCHEMA = "fkgsec/unlearning/1"
UNLEARNED_FILE, UNLEARNING_FILE, FORGET_FOLDER = "unlearned.safetensors", "unlearning.json", "forget"
# Unlearning by these leaves nothing that depends on what was forgotten (or changes nothing), so their shadows say nothing new.
NO_TRACE = ("retrain", "delete")


class Unlearning(msgspec.Struct, frozen=True):
    """Request, options and outcome of an unlearning.

    Attributes:
        identity: of the raw run (`run_identity`), which a verification compares.
        asked: triples to forget, by client. forget_hash: of the graph without them.
        seconds: of unlearning alone. bytes_up, bytes_down: of its messages.
        utility: test figures afterwards, as in a run's record.
        protection, guarantees: as in a run's record, of the run and the unlearning together.
        tables_sha256: of the file with the embeddings and messages afterwards; None in folders of before.
        run: the options of the raw run by their names; None in folders of before.
    """

    schema: str
    identity: str
    options: UnlearnOptions
    asked: dict[str, int]
    forget_hash: str
    seconds: float
    bytes_up: int
    bytes_down: int
    utility: dict[str, Estimate]
    environment: Environment
    protection: list[str] = []
    guarantees: dict[str, Guarantee] = {}
    tables_sha256: str | None = None
    run: dict[str, Any] | None = None


class Unlearned(NamedTuple):
    """A folder of `fkgsec unlearn`, read: `graph` is the raw run's, `result` the run after forgetting."""

    spec: Spec
    graph: FederatedGraph
    forget: Forget
    unlearning: Unlearning
    result: KgeResult


def unlearn_run(
    run: Path,
    forget_file: Path,
    options: UnlearnOptions,
    *,
    client: str | None = None,
    out: Path | None = None,
    observe: Observe = unobserved,
    overwrite: bool = False,
    force: bool = False,
) -> tuple[Path, Unlearning]:
    """Let a finished run forget.

    Args:
        run: its folder. forget_file: see `read_forget`. client: whose triples these are; None: the file's layout says.
        out: a folder; None: `RUN-METHOD` beside the run. The same unlearning is found there and not made again.
        observe: gives the unlearning its observer.
        overwrite: put the outcome in the place of another unlearning.
        force: do not ask whether it fits into memory; what is trained anew needs room beside the run itself.

    Raises:
        RunError: no finished run, or a folder with something else. DataError: the forget file, or a client whose name cannot
            be a file's. SpecError: the method does not fit the run's algorithm, or it does not fit into memory.
    """
    target = out or run.with_name(f"{run.name}-{options.method}")
    require_triples(read_spec(run), "unlearn", "retrain without the client's graphs")
    if not force:
        # Re-training needs room for a second federation beside the raw run.
        check_fits(run, at_once=2 if options.method == "retrain" else 1)
    spec, raw = load_run(run)
    forget = read_forget(forget_file, raw.graph, client)
    # Client names become file names in the forget folder, so reject a bad name before any training.
    for name in forget:
        if not can_name_a_file(name):
            raise DataError(f"{target}: client name {name!r} cannot be a file's name")
    identity = run_identity(raw.graph, raw.options)

    forget_hash = retaining(raw.graph, forget).hash

    def same() -> bool:
        """Return True if the folder has the same unlearning already."""
        earlier = _earlier(target)
        return earlier is not None and (earlier.identity, earlier.options, earlier.forget_hash) == (
            identity, options, forget_hash,
        )  # fmt: skip

    target.parent.mkdir(parents=True, exist_ok=True)
    # The lock keeps two commands from writing the same folder at once.
    with locked(target.parent, f".{target.name}.lock"):
        if not must_write(target, same=same, ours=lambda: _earlier(target) is not None, overwrite=overwrite):
            earlier = _earlier(target)
            assert earlier is not None
            return target, earlier
        started = time.perf_counter()
        # Re-training has the run's rounds; all else is a single one.
        observed = raw.options if options.method == "retrain" else msgspec.structs.replace(raw.options, rounds=1)
        with observe(observed, f"{options.method} on {run}") as observer:
            result = unlearn(raw, forget, options, observer=observer, make_transport=make_transport)
        unlearning = Unlearning(
            schema=SCHEMA,
            identity=identity,
            options=options,
            asked={name: len(triples) for name, triples in forget.items()},
            forget_hash=result.graph.hash,
            seconds=time.perf_counter() - started,
            bytes_up=result.transcript.num_bytes("up"),
            bytes_down=result.transcript.num_bytes("down"),
            utility=utility(np.concatenate(result.test_ranks), spec.seed),
            environment=environment_of(result.options),
            protection=result.protection.lines(),
            guarantees=dict(result.protection.guarantees),
            run=msgspec.json.decode(msgspec.json.encode(spec.document())),  # as it is read: lists for tuples
        )
        return target, write_unlearned(target, spec, raw.graph, forget, unlearning, result)


def write_unlearned(
    target: Path, spec: Spec, graph: FederatedGraph, forget: Forget, unlearning: Unlearning, result: KgeResult
) -> Unlearning:
    """Write a folder of `fkgsec unlearn`, whole or not at all; returns what it says. See `read_unlearned`."""
    # Write everything beside the target; a single rename then puts it in place.
    part = target.with_name(target.name + ".part")
    try:
        if part.exists():
            shutil.rmtree(part)
        (part / FORGET_FOLDER).mkdir(parents=True)
        for name, triples in forget.items():
            (part / FORGET_FOLDER / f"{name}.txt").write_text(triple_lines(graph, name, triples), encoding="utf-8")
        result.save(part / UNLEARNED_FILE)
        # The digest binds the record to the embeddings.
        unlearning = msgspec.structs.replace(unlearning, tables_sha256=_digest_of(part / UNLEARNED_FILE))
        for name, content in ((SPEC_FILE, spec), (UNLEARNING_FILE, unlearning)):
            write_atomically(part / name, encode_stored(content))
        put_in_place(part, target)
        return unlearning
    except (OSError, RunError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise RunError(f"{target}: cannot be written ({error})") from error


def _digest_of(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error


def _earlier(folder: Path) -> Unlearning | None:
    """Read the record of an earlier unlearning in a folder; None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / UNLEARNING_FILE).read_bytes(), type=Unlearning)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def triple_lines(graph: FederatedGraph, name: str, triples: np.ndarray) -> str:
    """Write a client's triples `[k, 3]` by name, as forget files have them."""
    client = next(client for client in graph.clients if client.name == name)
    return "".join(
        f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n" for h, r, t in client.to_global(triples)
    )


def read_unlearned(folder: Path) -> Unlearned:
    """Read a folder of `fkgsec unlearn`.

    Raises:
        RunError: it is missing, damaged, its data have changed since, or its embeddings or messages do not fit these.
    """
    if (folder / SPEC_FILE).exists() and not (folder / UNLEARNING_FILE).exists():
        raise RunError(f"{folder}: not a folder of `fkgsec unlearn`, but of a run; unlearn it first, or ask `--power`")
    try:
        stored = decode_stored((folder / SPEC_FILE).read_bytes(), RunSpec)
        unlearning = msgspec.json.decode((folder / UNLEARNING_FILE).read_bytes(), type=Unlearning)
    except OSError as error:
        raise RunError(f"{folder}: not a folder of `fkgsec unlearn` ({error})") from error
    except (msgspec.MsgspecError, SpecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{folder}: damaged ({error}); unlearn again") from error
    spec: Spec = require_triples(stored, "verify")
    graph, options = spec.load_graph(), spec.federation_options()
    # Data and options must still be those of the raw run.
    if unlearning.identity != run_identity(graph, options):
        raise RunError(f"{folder}: the data or {SPEC_FILE} have changed since the run was made")
    forget = read_forget(folder / FORGET_FOLDER, graph, None)
    retained = retaining(graph, forget)
    if retained.hash != unlearning.forget_hash:
        raise RunError(f"{folder / FORGET_FOLDER}: has changed since; {UNLEARNING_FILE} was made of other triples")
    if unlearning.asked != {name: len(triples) for name, triples in forget.items()}:
        raise RunError(f"{folder / UNLEARNING_FILE}: names other numbers of triples than {FORGET_FOLDER} holds")
    # Folders of earlier versions have no digest.
    if unlearning.tables_sha256 not in (None, _digest_of(folder / UNLEARNED_FILE)):
        raise RunError(f"{folder / UNLEARNED_FILE}: damaged: its content is not what was written; unlearn again")
    result = KgeResult.load(folder / UNLEARNED_FILE, retained, options)
    _check_fit(folder / UNLEARNED_FILE, graph, result)
    return Unlearned(spec, graph, forget, unlearning, result)


def _check_fit(path: Path, graph: FederatedGraph, result: KgeResult) -> None:
    """Raises `RunError` unless embeddings and uploads are finite and of the shapes that the raw run's data and options say."""
    options = result.options
    for kind in ("tables", "trained", "private"):
        model = options.private_model() if kind == "private" else options.kge_model()
        of_clients: list[ClientTables] = getattr(result, kind)
        # Without private models in the algorithm, the result must have none.
        expected = 0 if kind == "private" and RECIPES[options.algorithm].private == "none" else len(graph.clients)
        if len(of_clients) != expected:
            raise RunError(f"{path}: has {kind} of {len(of_clients)} clients; data and options say {expected}")
        for client, tables in zip(graph.clients[:expected], of_clients, strict=True):
            for table, shape in (
                ("entities", (client.num_entities, model.entity_width)),
                ("relations", (client.num_relations, model.relation_width)),
            ):
                values: Tensor = getattr(tables, table)
                if tuple(values.shape) != shape:
                    actual, allowed = (" x ".join(map(str, sizes)) for sizes in (values.shape, shape))
                    raise RunError(
                        f"{path}: {kind} has {actual} numbers of {client.name}'s {table}; data and options say {allowed}"
                    )
                if not values.isfinite().all():
                    raise RunError(f"{path}: {kind} has a value of {client.name}'s {table} that is not a finite number")
    # An upload has the rows of what was trained on before the request, or (re-trained) after it.
    sizes: dict[tuple[str, str], set[int]] = {}
    for client in (*graph.clients, *result.graph.clients):
        party = f"client/{client.name}"
        sizes.setdefault((party, "entities"), set()).add(client.num_trained_entities)
        sizes.setdefault((party, "relations"), set()).add(client.num_trained_relations)
    for number in result.transcript.frames:
        try:
            messages = result.transcript.messages(number)
        except FkgsecError as error:
            raise RunError(f"{path}: a message of round {number} cannot be read ({error})") from error
        for message in messages:
            if not isinstance(message, Rows) or message.receiver != SERVER:
                continue
            allowed_rows = sizes.get((message.sender, message.table), set())
            if message.num_rows not in allowed_rows:
                expected_rows = " or ".join(map(str, sorted(allowed_rows))) or "none"
                raise RunError(
                    f"{path}: {message.sender} sent {message.num_rows} rows of {message.table} in round {number}; "
                    f"its data say {expected_rows}"
                )
