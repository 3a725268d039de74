"""Knowledge of an adversary about a finished run of graph classification under a threat model.

    view = graph_view(result, THREAT_MODELS["server"], colluder="MUTAG", seed=0)
    view.layout.pack(view.victims[0].upload) - view.layout.pack(view.victims[0].broadcast)     # effect of training, [R, width]

A view holds transmitted shared parameters by name: each victim's last upload up to the best round, and the broadcast that it
trained from. Of uploads that were summed it holds only their mean. It also holds public knowledge: the architecture, the
training settings, and each client's number of training graphs (from its alignment message; under secure sums only their total).
A colluder adds its own data. If the threat model has auxiliary graphs, these are the validation graphs of all clients of the
victim's data set. Nobody trains on them; where several clients share one data set, they say nothing about a single client. A
victim's training graphs are in no view, except unmarked among the candidates of an attack (`fkgsec.attacks.graphs.candidates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.graphs.candidates import draw_candidates
from fkgsec.attacks.graphs.models import GraphModel
from fkgsec.attacks.laboratory import PublicSettings
from fkgsec.attacks.options import ThreatModel
from fkgsec.attacks.view import Victim, View
from fkgsec.exchange.parts import tensor_places
from fkgsec.exchange.tensors import factors
from fkgsec.exchange.tensors.quantised import Quantised
from fkgsec.exchange.tensors.truncated_svd import CORRECTION
from fkgsec.federation.messages import SERVER, Alignment, QuantisedRows, Rows, client_party
from fkgsec.gnn.layout import Layout
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.sets import GraphSet
from fkgsec.randomness import generator

PARAMETERS = "parameters"
LACKING = {
    "auxiliary": "no graphs of its data set are known that nobody trains on",
    "candidates": "fewer than two of its test graphs have a training graph of their class and size, both without twins",
}
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class GraphVictim(Victim):
    """The adversary's view of a client.

    Attributes:
        data_set: data set of its labels and classes.
        num_graphs: number of training graphs; None if uploads were summed.
        broadcast: shared parameters that it trained from in the attacked round; None if unknown.
        upload: shared parameters that it sent afterwards; None if it sent none in that round, or only in a sum.
        correction: what CEFGL's clients also send with `upload=both`, by the names of the shared parameters.
        summed: True if its upload was transmitted in a sum.
        models: final models, where the threat model includes them: "global", after the best round's broadcast; "local", before
            it.
        auxiliary: graphs of its data set that it does not train on: those that nobody trains on, if the threat model has them,
            or a colluder's own.
        candidates: graphs of its data set, on some of which it trained, if the attack needs them.
    """

    data_set: str = ""
    num_graphs: int | None = None
    broadcast: Tensors | None = None
    upload: Tensors | None = None
    correction: Tensors | None = None
    summed: bool = False
    models: Mapping[str, GraphModel] = field(default_factory=dict)
    auxiliary: GraphSet | None = None
    candidates: GraphSet | None = None

    def why_none(self, part: str) -> str | None:
        """Explain why the view lacks a part of the victim's data, None if it has it."""
        if part != PARAMETERS:
            return None if getattr(self, part) is not None else LACKING[part]
        if self.summed:
            return f"its {part} were transmitted only inside a sum"
        if self.upload is None:
            return f"none of its {part} was transmitted in the attacked round"
        return None if self.broadcast is not None else "what it trained from is not known"


@dataclass(frozen=True, eq=False)
class GraphColluder:
    """A colluder's graphs and model.

    Attributes:
        name: name of the client.
        data_set: data set of its labels and classes.
        graphs: all its graphs.
        train: indices of the graphs that it trains on.
        model: its model after the last broadcast.
        received: shared parameters of that broadcast.
    """

    name: str
    data_set: str
    graphs: GraphSet
    train: np.ndarray
    model: GraphModel
    received: Tensors


@dataclass(frozen=True, eq=False)
class GraphSum:
    """A sum of uploads that a server opened.

    Attributes:
        mean: mean of the uploads, weighted by training graphs, by parameter name.
        parties: parties in the sum.
        weight: total number of their training graphs.
        error: largest error of an element of the sum.
    """

    mean: Tensors
    parties: tuple[str, ...]
    weight: int
    error: float


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphView(View):
    """The adversary's whole knowledge that an attack may use.

    Attributes (beside those of `View`):
        layout: maps the shared parameters to rows.
        settings: public settings of the run.
        victims: every client but the colluder; under threat models with final models, every client.
        colluder: the colluder's knowledge, if any.
        summed: sum of the attacked round, if uploads were summed.
    """

    victims: tuple[GraphVictim, ...]
    layout: Layout
    settings: PublicSettings
    colluder: GraphColluder | None = None
    summed: GraphSum | None = None


def graph_view(
    result: GnnResult,
    threat_model: ThreatModel,
    *,
    colluder: str,
    seed: int,
    candidates: bool = False,
    first: bool = False,
) -> GraphView:
    """Build an adversary's view of a finished run, at its best round or at the last uploads before it.

    Args:
        threat_model: one of graph classification.
        colluder: name of the colluding client, if the threat model has one.
        seed: seed of the attack.
        candidates: True to include candidate graphs of each victim.
        first: True to attack the first round of uploads instead, in which the clients' optimizers are new.
    """
    # The view is built from the transcript; a client's data enter only as the colluder's or as auxiliary graphs.
    settings, clients = PublicSettings.of(result.options), result.graph.clients
    layout = Layout.of(result.trained[0], result.options.width)
    traffic = _Traffic(result, layout, first=first)
    traitor: GraphColluder | None = None
    if threat_model.colluder:
        place, client = next((place, client) for place, client in enumerate(clients) if client.name == colluder)
        model = result.models[place]
        traitor = GraphColluder(
            client.name, client.vocabulary, client.graphs, client.train, GraphModel(settings, model),
            {name: model[name] for name in layout.shapes},
        )  # fmt: skip
    victims = []
    for place, client in enumerate(clients):
        if traitor is not None and client.name == traitor.name:
            continue
        candidate_graphs = draw_candidates(result.graph, place, seed) if candidates else None
        # A colluder of the same data set brings its own graphs as auxiliary ones.
        auxiliary = traitor.graphs if traitor is not None and client.vocabulary == traitor.data_set else None
        if threat_model.auxiliary:
            auxiliary = _auxiliary(result, client.vocabulary, seed)
        victims.append(
            GraphVictim(
                client.name,
                client.vocabulary,
                **(traffic.of(client.name) if threat_model.server else {}),
                models=models_of(result, place, settings) if threat_model.models else {},
                auxiliary=auxiliary,
                candidates=candidate_graphs.graphs if candidate_graphs else None,
            )
        )
    return GraphView(
        threat_model=threat_model,
        round=traffic.round if threat_model.server else result.best_round,
        victims=tuple(victims),
        layout=layout,
        settings=settings,
        colluder=traitor,
        summed=traffic.summed if threat_model.server else None,
    )


class _Traffic:
    """Messages of the last round of uploads up to the best one, or of the first of all."""

    def __init__(self, result: GnnResult, layout: Layout, *, first: bool) -> None:
        transcript, self._layout = result.transcript, layout
        self._alignments = {
            message.sender: message for message in transcript.messages(0) if isinstance(message, Alignment)
        }
        self._server_names = result.row_names.get(PARAMETERS, layout.names)
        # The last round with uploads up to the best round, whose state was evaluated.
        last = max(transcript.latest_uploads(result.best_round), default=result.best_round)
        crossed = (entry.round for entry in transcript.entries if entry.direction == "up" and entry.round > 0)
        self.round = min(crossed, default=last) if first else last
        self._uploads: dict[str, Tensor] = {}
        self._broadcasts: dict[str, Tensors] = {}
        for number in sorted(transcript.frames):
            for message in transcript.messages(number):
                if not isinstance(message, Rows | QuantisedRows) or message.table != PARAMETERS:
                    continue
                if message.sender == SERVER and number < self.round:
                    names = self._names(message.receiver, sent=True)
                    rows = unpacked(message, names)
                    self._broadcasts.pop(message.receiver, None)
                    # Otherwise the rows are those of its peers, from which the client computes its own.
                    if len(rows) == len(names):
                        self._broadcasts[message.receiver] = _named(layout, names, rows)
                elif message.receiver == SERVER and number == self.round:
                    self._uploads[message.sender] = unpacked(message, self._names(message.sender))
        self.hidden = bool(result.inputs.get(PARAMETERS)) or bool(transcript.opened(self.round))
        notes = [opened for opened in transcript.opened(self.round) if opened.table == PARAMETERS and opened.total]
        self.summed: GraphSum | None = None
        if notes:
            # Uploads are weighted by training graphs; the counts are the total weight.
            total, holders = notes[-1].sums()
            mean = torch.from_numpy(total / np.maximum(holders, 1)[:, None]).float()
            mean = _named(layout, self._server_names, mean)
            self.summed = GraphSum(mean, tuple(notes[-1].survivors), int(holders.max()), notes[-1].error)

    def of(self, name: str) -> dict[str, Any]:
        """Return the fields of a victim that a server sees."""
        party = client_party(name)
        names, rows, aligned = self._names(party), self._uploads.get(party), self._alignments.get(party)
        corrected = rows is not None and f"{CORRECTION}{self._layout.names[0]}" in names
        return {
            "num_graphs": None if self.hidden or aligned is None else aligned.weight,
            "broadcast": self._broadcasts.get(party),
            "upload": None if rows is None else _named(self._layout, names, rows),
            "correction": _named(self._layout, names, rows, CORRECTION) if corrected and rows is not None else None,
            "summed": self.summed is not None and party in self.summed.parties,
        }

    def _names(self, party: str, *, sent: bool = False) -> list[str]:
        """Names of the rows that a party uploads, or is sent; its own among peers' without its name."""
        aligned = self._alignments.get(party)
        # With a private set union all clients receive the server's rows.
        if aligned is None:
            return self._server_names
        # Peers' rows have the prefix "name:" of their client.
        prefix = f"{party.removeprefix(client_party(''))}:"
        names = [name.removeprefix(prefix) for name in aligned.names]
        return names[: len(names) - aligned.num_upwards] if sent else names


def unpacked(message: Rows | QuantisedRows, names: Sequence[str]) -> Tensor:
    """Decode the rows of a message.

    Args:
        message: upload or broadcast of parameters.
        names: names of the rows, which tell which of them are factors of one matrix.

    Returns:
        float32 `[n, width]`.
    """
    if isinstance(message, Rows):
        return message.unpack()
    rows = Quantised(*message.unpack()).values()
    return factors.unpack(rows, message.ranks, tensor_places(names)) if message.ranks else rows


def _named(layout: Layout, names: Sequence[str], rows: Tensor, prefix: str = "") -> Tensors:
    """Convert rows in another order to tensors by name; only rows whose names have the prefix."""
    place = {name: number for number, name in enumerate(names)}
    ordered = rows[[place[f"{prefix}{name}"] for name in layout.names]]
    return {name: tensor.clone() for name, tensor in layout.unpack(ordered).items()}


def models_of(result: GnnResult, place: int, settings: PublicSettings) -> dict[str, GraphModel]:
    """Return a client's final models by name.

    Args:
        result: finished run.
        place: index of the client.
        settings: public settings of the run.

    Returns:
        "global" and "local"; only "local" if nothing is shared.
    """
    whole = result.models[place]
    models = {"global": GraphModel(settings, whole), "local": GraphModel(settings, {**whole, **result.trained[place]})}
    return models if result.row_names.get(PARAMETERS) else {"local": models["local"]}


def _auxiliary(result: GnnResult, vocabulary: str, seed: int) -> GraphSet | None:
    """Return the validation graphs of all clients of a data set, in a random order; None if there are none."""
    parts = [
        client.graphs.subset(client.valid)
        for client in result.graph.clients
        if client.vocabulary == vocabulary and len(client.valid)
    ]
    if not parts:
        return None
    joined = joined_sets(parts)
    return joined.subset(generator(seed, "auxiliary graphs", vocabulary).permutation(len(joined)))


def joined_sets(parts: Sequence[GraphSet]) -> GraphSet:
    """Concatenate sets of graphs with one vocabulary.

    Args:
        parts: at least one set.
    """
    first = np.cumsum([0, *(part.num_nodes for part in parts)])
    return GraphSet.from_edges(
        parts[0].name,
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.edges() + start for part, start in zip(parts, first, strict=False)]),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.attributes for part in parts]),
        num_classes=parts[0].num_classes,
        num_labels=parts[0].num_labels,
        max_degree=parts[0].max_degree,
    )
