"""Attacks on embedding tables without training: tables that a finished run exported, or tables of another trainer.

The tables become a `KgeResult` whose uploads were sent as messages, so that attacks and their evaluation are the same
as for runs. Exported tables give the figures of the run that exported them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.frames import HEADS, figures_to_frame, summary_rows
from fkgsec.attacks.options import RECONSTRUCTION, THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import build_view, default_threats, run_attacks
from fkgsec.attacks.view import check_attackable
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import Observed
from fkgsec.experiments.audit.table_files import SCHEMA, TABLES, UPLOADED, Manifest, NamedRows, Tables, hash_tables
from fkgsec.experiments.runs.record import DataRecord, Environment, describe_data, environment_of
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.tasks.kge import TASK
from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows, client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.frames import block
from fkgsec.kge.models import ClientTables, KgeModel, ModelName, function_of
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

AUDIT_SCHEMA = "fkgsec/audit/2"


class Audit(msgspec.Struct, frozen=True):
    """Figures of attacks on tables, in the form of a run's record, and their sources.

    Attributes:
        tables_hash: sha256 over clients, names and rows.
        best_round: best round of the run that exported them; 1 for other tables.
        exported: the spec of that run; None for tables that were trained elsewhere.
    """

    schema: str
    tables_hash: str
    algorithm: str
    model: KgeModel
    attack: KgeAttackOptions
    data: DataRecord
    environment: Environment
    figures: list[Figure]
    best_round: int
    exported: Spec | None

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each figure, with its interval and baseline: columns `fkgsec.attacks.frames.COLUMNS`."""
        return figures_to_frame(self.figures)

    def _repr_html_(self) -> str:
        title = f"Audit of {self.data.name}: {self.algorithm}, {self.model.name}"
        return block(title, heads=HEADS, rows=summary_rows(self.figures))


def collect_tables(spec: Spec, result: KgeResult) -> tuple[Manifest, Tables]:
    """Collect the tables of a run at its best round: each client's own after training, and its upload if that differs.

    Args:
        spec: spec of the run.
        result: result of the run.

    Raises:
        ThreatModelError: a run without a federation.
        RunError: the uploads were hidden, so that only their client has them.
    """
    graph = result.graph
    check_attackable(graph, result.options.algorithm, None)
    # A view leaves out its colluder, so two views cover the server's knowledge of every client.
    views = [
        build_view(result, THREAT_MODELS["server"], colluder=client.name, leak=1.0, seed=0)
        for client in graph.clients[:2]
    ]
    if any(view.secure for view in views):
        raise RunError(
            f"defense {spec.defense}: the server has only sums, not the clients' tables; use fkgsec attack --run"
        )
    # Tables that the server never received are not exported as uploads.
    seen = {victim.name: victim for view in views for victim in view.victims}
    tables: Tables = {}
    crossed: dict[str, list[Table]] = {}
    for client, trained in zip(graph.clients, result.trained, strict=True):
        tables[client.name], crossed[client.name] = {}, []
        for table in TABLES:
            names, num_trained = row_names(graph, client, table)
            rows: Tensor = getattr(trained, table)
            tables[client.name][table] = NamedRows(names, rows[: len(names)])
            uploaded: Tensor | None = getattr(seen[client.name], table)
            if uploaded is None:
                continue
            crossed[client.name].append(table)
            if not torch.equal(uploaded, rows[:num_trained]):
                # A row that was never sent is NaN.
                sent_rows = ~uploaded.isnan().any(dim=1)
                tables[client.name][UPLOADED[table]] = NamedRows(
                    _chosen(names[:num_trained], sent_rows), uploaded[sent_rows]
                )
    return Manifest(SCHEMA, spec, graph.hash, result.best_round, crossed), tables


def _chosen(names: list[str], mask: Tensor) -> list[str]:
    return [name for name, chosen in zip(names, mask.tolist(), strict=True) if chosen]


def audit_tables(
    tables: Tables,
    graph: FederatedGraph,
    options: KgeOptions,
    attack: KgeAttackOptions,
    manifest: Manifest | None = None,
) -> tuple[Audit, pd.DataFrame]:
    """Run attacks on tables; reconstruction, if none is named.

    Args:
        tables: rows by client and name. A client without tables has sent nothing; the colluder needs both tables.
        graph: data whose training triples are the truth.
        options: `algorithm` determines the transmitted tables, the model the meaning of rows.
        attack: options of attacks, as for a run.
        manifest: manifest of the run that exported the tables.

    Returns:
        The audit, and the score of every item as `run_attacks` gives it.

    Raises:
        SpecError: metric published, which needs the server's broadcast.
        RunError: the data differ from the manifest's, or tables do not fit the graph or the model.
        ThreatModelError: the threat model does not fit.
    """
    if attack.metric == "published":
        raise SpecError("metric published needs the server's broadcast, which tables do not contain; use paper")
    if manifest is not None and manifest.data_hash != graph.hash:
        raise RunError(f"{graph.name}: not the data on which the tables were trained, or changed since")
    check_attackable(graph, options.algorithm, attack.colluder)
    colluders = attack.colluders(graph.clients)
    # Only some threat models need tables that victims never sent.
    threats = [THREAT_MODELS[name] for name in attack.threat or default_threats(options.algorithm)]
    shared = {client: list(RECIPES[options.algorithm].shared) for client in tables}
    result = federation_of(
        tables,
        graph,
        options,
        colluders,
        crossed=shared if manifest is None else manifest.crossed,
        round=1 if manifest is None else manifest.round,
        needs_entities=any(threat.victim_entities for threat in threats),
    )
    attack = msgspec.structs.replace(attack, attack=attack.attack or (RECONSTRUCTION,))
    figures, scores = run_attacks(result, attack)
    audit = Audit(
        AUDIT_SCHEMA,
        hash_tables(tables),
        options.algorithm,
        options.kge_model(),
        attack,
        describe_data(TASK, graph),
        environment_of(result.options),
        figures,
        result.best_round,
        None if manifest is None else manifest.spec,
    )
    return audit, scores


def federation_of(
    tables: Tables,
    graph: FederatedGraph,
    options: KgeOptions,
    colluders: Sequence[str],
    *,
    crossed: Mapping[str, Collection[Table]],
    round: int,
    needs_entities: bool,
) -> KgeResult:
    """Return a finished run with these tables and without training. Names were sent in plaintext, as without a defense.

    Args:
        tables: rows by client and name.
        graph: the clients' data.
        options: algorithm and model.
        colluders: clients that collude; they need both tables.
        crossed: for each client, the tables that it sent.
        round: round of these uploads.
        needs_entities: whether every victim's entity table is needed, sent or not.

    Raises:
        RunError: tables of an unknown client, a missing table or row, or a width that does not fit the model.
    """
    clients = {client.name: client for client in graph.clients}
    strange = sorted(set(tables) - set(clients))
    if strange:
        raise RunError(
            f"tables of {', '.join(strange)}, which {graph.name} does not have; its clients: {', '.join(clients)}"
        )
    model, channel, client_tables = options.kge_model(), Channel(), []
    observed: dict[Table, dict[str, Observed]] = {table: {} for table in TABLES}
    for name, client in clients.items():
        of_client, sent, party = tables.get(name, {}), crossed.get(name, ()), client_party(name)
        needed = {*sent, *(TABLES if name in colluders else ()), *(("entities",) if needs_entities else ())}
        rows: dict[Table, Tensor] = {}
        for table in TABLES:
            names, num_trained = row_names(graph, client, table)
            names = names[:num_trained]
            if table in needed and table not in of_client:
                raise RunError(
                    f"client {name}: no {table} table; the colluder {', '.join(colluders)} needs both, victims the attacked ones"
                )
            rows[table] = torch.empty(0, _width(model, table))
            # A victim's missing table stays empty, which attacks on the other table never read.
            if table in of_client:
                rows[table] = pick_rows(of_client[table], names, model, table, f"client {name}, {table}")
            if of_client and table in RECIPES[options.algorithm].shared:
                channel.send(Alignment(0, party, SERVER, table, names, num_trained))
            if table not in sent:
                continue
            upload = of_client.get(UPLOADED[table], of_client[table])
            seen = torch.tensor(np.isin(names, upload.names))
            picked = pick_rows(upload, _chosen(names, seen), model, table, f"client {name}, uploaded {table}")
            # A partial upload is no message of these runs; pass the rows to the attack as observed.
            if seen.all():
                channel.send(Rows.pack(round, party, SERVER, table, picked))
            else:
                whole = torch.zeros(num_trained, _width(model, table)).index_put((seen,), picked)
                observed[table][party] = Observed(whole, seen)
        # Clients without tables get empty ones: they sent nothing, but their data are part of the truth.
        client_tables.append(ClientTables(rows["entities"], rows["relations"]))
    return KgeResult(
        graph=graph,
        options=options,
        rounds=[],
        best_round=round,
        tables=client_tables,
        trained=client_tables,
        test_ranks=[],
        transcript=channel.transcript,
        observed=observed,  # pyright: ignore[reportArgumentType]
    )


def pick_rows(table: NamedRows, names: list[str], model: KgeModel, kind: Table, what: str) -> Tensor:
    """Return the rows of these names, float32 `[n, width]` in the layout of `fkgsec.kge.models`.

    Args:
        table: named rows, real or complex.
        names: names in the order of the result.
        model: the model, which determines the width.
        kind: the table.
        what: description of the table, for errors.

    Raises:
        RunError: a missing row, or a width that does not fit the model.
    """
    place = {name: row for row, name in enumerate(table.names)}
    missing = [name for name in names if name not in place]
    if missing:
        raise RunError(f"{what}: no row named {missing[0]!r} ({len(missing)} of {len(names)} needed rows are missing)")
    rows = table.rows[[place[name] for name in names]]
    # RotatE's relations are angles, in units of initial_range / pi. Other models store real parts, then imaginary parts.
    if rows.is_complex():
        angles = model.name == "rotate" and kind == "relations"
        rows = rows.angle() * (model.initial_range / math.pi) if angles else torch.cat([rows.real, rows.imag], dim=1)
    if rows.shape[1] != _width(model, kind):
        raise RunError(
            f"{what}: width {rows.shape[1]}, but {model.name} of dimension {model.dim} needs {_width(model, kind)}"
        )
    return rows


def _width(model: KgeModel, table: Table) -> int:
    return model.entity_width if table == "entities" else model.relation_width


def row_names(graph: FederatedGraph, client: ClientGraph, table: Table) -> tuple[list[str], int]:
    """Return the names of a client's rows in its local order, and how many of them are in its train split (a prefix).

    Args:
        graph: the federation.
        table: `entities` or `relations`.
    """
    if table == "entities":
        return [graph.entities[number] for number in client.entity_ids], client.num_trained_entities
    return [graph.relations[number] for number in client.relation_ids], client.num_trained_relations


def infer_dim(tables: Tables, model: ModelName) -> int:
    """Return the dimension of the first entity table.

    Args:
        tables: rows by client and name.
        model: the model that trained them.

    Raises:
        RunError: no client has an entity table, or no dimension gives its width.
    """
    # Several dimensions may share a width only by mistake of a model; the smallest that reaches it must match.
    function = function_of(model)
    for client, of_client in tables.items():
        if "entities" in of_client:
            rows = of_client["entities"].rows
            width = rows.shape[1] * (2 if rows.is_complex() else 1)
            dim = next((dim for dim in range(1, width + 1) if function.entity_width(dim) >= width), 0)
            if not dim or function.entity_width(dim) != width:
                raise RunError(f"client {client}, entities: no dimension of {model} gives the width {width}")
            return dim
    raise RunError("no client has an entity table")


def has_scaled_phases(tables: Tables, model: ModelName) -> bool:
    """Return True if relations are RotatE's phases in units of (gamma + init_epsilon) / dim, which must be known to read them.

    Args:
        tables: rows by client and name.
        model: the model that trained them.
    """
    relations = [
        table.rows for of_client in tables.values() for key, table in of_client.items() if key.endswith("relations")
    ]
    return model == "rotate" and any(not rows.is_complex() for rows in relations)
