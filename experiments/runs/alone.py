"""Training of a federation's clients alone: same data, model, seed, rounds and optimizer, but no exchange.

    alone = train_alone(record, graph, Path("runs/fede"), observe=unobserved)   # or read back if it exists
    gains(record, alone.record)["all"]                                               # gain from joining

A run of the clients alone lies next to the runs that it is compared with. One such run serves all
defenses, and all algorithms of the same optimizer schedule: FedE starts a new Adam in each round, and so must its clients alone.
Otherwise clients that share nothing would "gain".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.runs.baseline import alone_spec, exchanges
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, SPEC_FILE, Finished, default_folder, execute, read_spec
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.task import MakeTask


def alone_folder(spec: RunSpec, data: Any, run: Path) -> Path:
    """Return the folder, next to a run's, for training its clients alone.

    Args:
        data: the clients' data, or anything with its name and hash.
        run: folder of the run.
    """
    return run.absolute().parent / default_folder(alone_spec(spec), data).name


def find_alone(record: Record, run: Path) -> Path | None:
    """Return the folder, next to a run's, with a finished run of the same clients alone; None if there is none.

    Args:
        record: record of the run.
        run: folder of the run.
    """
    if not exchanges(record.spec):
        return None
    # Compare what training reads; the device and options of attacks may differ.
    options = alone_spec(record.spec).settled().federation_options()
    for file in sorted(run.absolute().parent.glob(f"*/{SPEC_FILE}")):
        try:
            same = read_spec(file.parent).settled().federation_options() == options
            if same and read_record(file.parent / RECORD_FILE).data.hash == record.data.hash:
                return file.parent
        except (RunError, SpecError):  # unfinished, damaged, or of another version
            continue
    return None


def train_alone(
    record: Record,
    graph: Any,
    run: Path,
    *,
    observe: Observe,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    at_once: int = 1,
    make_task: MakeTask | None = None,
    name: str = "the same clients alone",
) -> Finished:
    """Train the clients of a run alone, next to it. A finished training is read back, and an interrupted one continues.

    Args:
        record: record of the run.
        graph: data of the run.
        run: folder of the run.
        observe: gives a training its observer, by `name`.
        checkpoint_every_s: see `execute`.
        at_once: see `execute`.
        make_task: see `execute`.

    Raises:
        RunError: the folder cannot be written, or another process trains there.
    """
    finished = find_alone(record, run)
    folder = finished or alone_folder(record.spec, graph, run)
    spec = read_spec(folder) if finished else alone_spec(record.spec)
    # No progress bar for a training that is only read back.
    with (unobserved if finished else observe)(spec, name) as observer:
        return execute(
            spec, graph, folder, attack=False, observer=observer, checkpoint_every_s=checkpoint_every_s,
            at_once=at_once, make_task=make_task,
        )  # fmt: skip
