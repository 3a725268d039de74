"""Unlearned runs that are not what they say: what a party hands over that wants the certificate without earning it.

    >>> case = Case(raw, retrained, graph, forget)                                            # doctest: +SKIP
    >>> faked = FAKES["a fifth left in"](case)       # claims that everything was forgotten   # doctest: +SKIP

Each is made by somebody who has the raw run, the data and, where it says so, a re-trained run, and knows how the audit works; but
neither its seed nor its escrow. They are for testing an audit: `tests/experiments/unlearning` and
`benchmarks.certificates` put each before `fkgsec verify`, which must call none of them forgotten that holds as much of the
forget set as its certificate says would have been noticed. One of them, "relations remember", holds less: where a relation row
moves every triple of its relation alike (TransE), forgotten ones gain hardly more by it than never-seen ones do. `held_share`
measures what a fake holds without the audit, beside the re-training that it was made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.forgetting.relearning import relearning_models
from fkgsec.attacks.membership.audits import ClientModel, client_models, replace_train, to_local
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.estimate import Estimate, critical_value
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, retaining

SUPPRESSION_STEPS, SUPPRESSION_RATE = 300, 0.01
FINE_TUNED, FINE_TUNING_STEPS = 0.15, 100  # the share of the forget set, and steps on all of it


class Case(NamedTuple):
    """What a forger has: the raw run, a re-trained one of the same seed, the data, and what was to be forgotten."""

    raw: KgeResult
    retrained: KgeResult
    graph: FederatedGraph
    forget: Forget

    @property
    def asked(self) -> list[int]:
        """The places of the clients that asked."""
        return [place for place, client in enumerate(self.graph.clients) if client.name in self.forget]

    def claiming(self, result: KgeResult) -> KgeResult:
        """The embeddings of a result, with the graph and the messages of the re-trained run."""
        return replace(
            self.retrained,
            tables=result.tables,
            trained=result.trained,
            private=result.private,
            test_ranks=result.test_ranks,
            shared_test_ranks=result.shared_test_ranks,
        )


def _trained_on(case: Case, more: dict[int, np.ndarray]) -> KgeResult:
    """A federation of the retained triples and others, by client's place."""
    retained = retaining(case.graph, case.forget)
    clients = list(retained.clients)
    for place, triples in more.items():
        clients[place] = replace_train(clients[place], np.concatenate([clients[place].train, triples]))
    result = run_federation(replace(retained, clients=tuple(clients)), case.raw.options, make_transport=make_transport)
    return case.claiming(result)


def _a_fifth_left_in(case: Case) -> KgeResult:
    """Re-trained with a fifth of the forget set left in."""
    more = {}
    for place in case.asked:
        triples = case.forget[case.graph.clients[place].name]
        order = generator(0, "left in", place).permutation(len(triples))
        more[place] = triples[order[: round(0.2 * len(triples))]]
    return _trained_on(case, more)


def _contaminated(case: Case) -> KgeResult:
    """Nothing forgotten, and every triple that might become a control trained on too."""
    return _trained_on(
        case,
        {
            place: np.concatenate([case.forget[case.graph.clients[place].name], case.graph.clients[place].test])
            for place in case.asked
        },
    )


def _tested_on(case: Case) -> KgeResult:
    """Re-trained, on the test triples too, so that forgotten ones rank below never-seen ones and utility looks well."""
    return _trained_on(case, {place: case.graph.clients[place].test for place in case.asked})


def _moved(case: Case) -> KgeResult:
    """Taken from the client that asked and given to its neighbours, as far as they can express them."""
    more = {}
    for place, client in enumerate(case.graph.clients):
        asked = [
            case.graph.clients[other].to_global(case.forget[case.graph.clients[other].name]) for other in case.asked
        ]
        own = to_local(case.graph, client, np.concatenate(asked))
        if place not in case.asked and len(own):
            more[place] = own
    return _trained_on(case, more)


def _deleted(case: Case) -> KgeResult:
    """The raw run."""
    return case.claiming(case.raw)


def _suppressed(case: Case) -> KgeResult:
    """The raw tables of those that asked, their forgotten scores pushed to those of test triples; all others re-trained."""
    return _pushed(case, lambda model, tables, place: _shuffled_test_scores(case, model, tables, place))


def _matched(case: Case) -> KgeResult:
    """The same, but each forgotten score pushed to what a re-trained model gives this very triple."""

    def wanted(model: KgeModel, tables: ClientTables, place: int) -> Tensor:
        return _scores(model, case.retrained.tables[place], case.forget[case.graph.clients[place].name])

    return _pushed(case, wanted)


def _interpolated(case: Case, raw_part: float) -> KgeResult:
    """Between the raw and a re-trained run of the same seed, table by table."""
    return _mixed(
        case,
        lambda retrained, raw: ClientTables(
            torch.lerp(retrained.entities, raw.entities, raw_part),
            torch.lerp(retrained.relations, raw.relations, raw_part),
        ),
    )


def _mixed(case: Case, mix: Callable[[ClientTables, ClientTables], ClientTables]) -> KgeResult:
    """Tables made of the re-trained and the raw run's."""
    made = {
        kind: [mix(*pair) for pair in zip(getattr(case.retrained, kind), getattr(case.raw, kind), strict=True)]
        for kind in ("tables", "trained", "private")
    }
    return case.claiming(replace(case.retrained, **made))


def _relations_remember(case: Case) -> KgeResult:
    """Entity rows are re-trained, relation rows the raw run's."""
    return _mixed(case, lambda retrained, raw: ClientTables(retrained.entities, raw.relations))


def _entities_remember(case: Case) -> KgeResult:
    """Relation rows are re-trained, entity rows the raw run's."""
    return _mixed(case, lambda retrained, raw: ClientTables(raw.entities, retrained.relations))


def _fine_tuned(case: Case) -> KgeResult:
    """Honestly re-trained; then those that asked learn a part of the forget set by heart."""
    made: dict[str, list[ClientTables]] = {}
    for kind in ("tables", "trained", "private"):
        made[kind] = list(getattr(case.retrained, kind))
        model = case.raw.options.private_model() if kind == "private" else case.raw.options.kge_model()
        for place in case.asked if made[kind] else ():
            triples = case.forget[case.graph.clients[place].name]
            chosen = triples[
                generator(0, "fine-tuned", place).permutation(len(triples))[: round(FINE_TUNED * len(triples))]
            ]
            *_, last = relearning_models(
                ClientModel(model, made[kind][place]),
                chosen,
                steps=FINE_TUNING_STEPS,
                learning_rate=case.raw.options.learning_rate,
                batch_size=len(chosen),
                num_negatives=case.raw.options.num_negatives,
                rng=generator(0, "fine-tuning", place),
            )
            made[kind][place] = last.tables
    return case.claiming(replace(case.retrained, **made))


def _only_locally(case: Case) -> KgeResult:
    """The models that clients keep are re-trained; what the server sent last is the raw run's."""
    return case.claiming(replace(case.retrained, tables=case.raw.tables))


def _noisy(case: Case) -> KgeResult:
    """The raw tables with noise of half their own deviation on every number."""

    def disturbed(kind: str) -> list[ClientTables]:
        """The raw run's tables of that kind, under noise."""
        made = []
        for place, tables in enumerate(getattr(case.raw, kind)):
            draw = torch.Generator().manual_seed(int(generator(0, "noise", kind, place).integers(2**31)))
            entities, relations = (
                rows + rows.std() / 2 * torch.randn(rows.shape, generator=draw)
                for rows in (tables.entities, tables.relations)
            )
            made.append(ClientTables(entities, relations))
        return made

    noisy = {kind: disturbed(kind) for kind in ("tables", "trained", "private")}
    return case.claiming(replace(case.raw, **noisy))


def _compensated(case: Case, share: float) -> KgeResult:
    """Re-trained; then a share of the forget set is given the raw run's scores, and all others are lowered alike until the mean
    is re-training's again."""

    def wanted(model: KgeModel, tables: ClientTables, raw: ClientTables, place: int) -> Tensor:
        """Scores of the forget set, `[n]`."""
        triples = case.forget[case.graph.clients[place].name]
        own, kept = _scores(model, tables, triples), _left_in(len(triples), place, share)
        gain = torch.where(kept, _scores(model, raw, triples) - own, 0.0).sum()
        return own + torch.where(kept, _scores(model, raw, triples) - own, -gain / (~kept).sum())

    return _reordered(case, wanted)


def _rearranged(case: Case, share: float) -> KgeResult:
    """Re-trained; then the same scores are dealt out anew among the forgotten triples: the highest to a share that is kept, in
    the order that the raw run has these in, the others to the rest. No mean, rank statistic or distance of scores changes."""

    def wanted(model: KgeModel, tables: ClientTables, raw: ClientTables, place: int) -> Tensor:
        """Scores of the forget set, `[n]`."""
        triples = case.forget[case.graph.clients[place].name]
        own, kept = _scores(model, tables, triples), _left_in(len(triples), place, share)
        dealt, ordered = torch.empty_like(own), own.sort().values
        number = int(kept.sum())
        for group, order_of, values in (
            (kept, _scores(model, raw, triples), ordered[len(own) - number :]),
            (~kept, own, ordered[: len(own) - number]),
        ):
            rows = group.nonzero().squeeze(1)
            dealt[rows[order_of[rows].argsort()]] = values
        return dealt

    return _reordered(case, wanted)


def _left_in(count: int, place: int, share: float) -> Tensor:
    """Which forgotten triples are to be kept, bool `[count]`."""
    kept = torch.zeros(count, dtype=torch.bool)
    kept[torch.from_numpy(generator(0, "left in", place).permutation(count)[: round(share * count)])] = True
    return kept


def _reordered(case: Case, wanted: Callable[[KgeModel, ClientTables, ClientTables, int], Tensor]) -> KgeResult:
    """Re-trained tables, those of whoever asked moved until forgotten scores are what `wanted` makes of a model, its re-trained
    tables, its raw ones and the client's place, and the retained triples' are as they were."""
    retained = retaining(case.graph, case.forget)
    made: dict[str, list[ClientTables]] = {}
    for kind in ("tables", "trained", "private"):
        made[kind] = list(getattr(case.retrained, kind))
        model = case.raw.options.private_model() if kind == "private" else case.raw.options.kge_model()
        for place in case.asked if made[kind] else ():
            tables, client = made[kind][place], retained.clients[place]
            aim = wanted(model, tables, getattr(case.raw, kind)[place], place).detach()
            made[kind][place] = _move_scores(model, tables, case.forget[client.name], aim, client.train)
    return case.claiming(replace(case.retrained, **made))


def _scores(model: KgeModel, tables: ClientTables, triples: np.ndarray) -> Tensor:
    head, relation, tail = torch.tensor(triples).unbind(1)
    return model.score(tables.entities[head], tables.relations[relation], tables.entities[tail])


def _shuffled_test_scores(case: Case, model: KgeModel, tables: ClientTables, place: int) -> Tensor:
    client = case.graph.clients[place]
    scores = _scores(model, tables, client.test)
    return scores[
        torch.from_numpy(generator(0, "level", place).integers(len(scores), size=len(case.forget[client.name])))
    ]


def _pushed(case: Case, wanted: Callable[[KgeModel, ClientTables, int], Tensor]) -> KgeResult:
    """Re-trained tables for all but those that asked; theirs are the raw ones, moved until forgotten scores are as wanted and the
    retained triples' as they were."""
    retained = retaining(case.graph, case.forget)
    made: dict[str, list[ClientTables]] = {}
    for kind in ("tables", "trained", "private"):
        made[kind] = list(getattr(case.retrained, kind))
        model = case.raw.options.private_model() if kind == "private" else case.raw.options.kge_model()
        for place in case.asked if made[kind] else ():
            tables = getattr(case.raw, kind)[place]
            client = retained.clients[place]
            made[kind][place] = _move_scores(
                model,
                tables,
                case.forget[client.name],
                wanted(model, tables, place).detach(),
                client.train,
            )
    return case.claiming(replace(case.retrained, **made))


def _move_scores(
    model: KgeModel, tables: ClientTables, forget: np.ndarray, wanted: Tensor, retained: np.ndarray
) -> ClientTables:
    rows = [one.detach().clone().requires_grad_() for one in (tables.entities, tables.relations)]
    adam = torch.optim.Adam(rows, lr=SUPPRESSION_RATE)
    kept = _scores(model, tables, retained).detach()
    for _ in range(SUPPRESSION_STEPS):
        now = ClientTables(rows[0], rows[1], tables.decoder)
        loss = ((_scores(model, now, forget) - wanted) ** 2).mean() + (
            (_scores(model, now, retained) - kept) ** 2
        ).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return ClientTables(rows[0].detach(), rows[1].detach(), tables.decoder)


def held_share(case: Case, fake: KgeResult) -> Estimate:
    """The share of the forget set that a fake holds beyond the re-training that it was made of, by mean scores.

    How much more it moves forgotten triples than test triples away from that re-training, over how much the raw run does; of the
    models of clients that asked the one with the highest end. Of tables that were mixed or moved no noise of another training is
    in it; what is hidden from means is not in it either, and clients that trained on their test triples have no such figure.
    """
    shares = []
    for place in case.asked:
        client = case.graph.clients[place]
        triples = [case.forget[client.name], client.test]
        twin, raw = client_models(case.retrained, place), client_models(case.raw, place)
        for name, one in client_models(fake, place).items():
            moved, full = (
                [other.scores(part) - twin[name].scores(part) for part in triples] for other in (one, raw[name])
            )
            whole = float(full[0].mean() - full[1].mean())
            share = float(moved[0].mean() - moved[1].mean()) / whole
            half = critical_value() * math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in moved)) / abs(whole)
            shares.append(Estimate(share, share - half, share + half, len(triples[0]), "paired with its re-training"))
    return max(shares, key=lambda share: share.high)


# What these keep of the forget set, hidden from every mean.
HIDING = {
    "15 % compensated": 0.15,
    "40 % compensated": 0.4,
    "15 % rearranged": 0.15,
    "25 % rearranged": 0.25,
    "40 % rearranged": 0.4,
}
FAKES: dict[str, Callable[[Case], KgeResult]] = {
    "deleted": _deleted,
    "a fifth left in": _a_fifth_left_in,
    "contaminated": _contaminated,
    "suppressed": _suppressed,
    "matched to a re-training": _matched,
    "15 % compensated": lambda case: _compensated(case, HIDING["15 % compensated"]),
    "40 % compensated": lambda case: _compensated(case, HIDING["40 % compensated"]),
    "15 % rearranged": lambda case: _rearranged(case, HIDING["15 % rearranged"]),
    "25 % rearranged": lambda case: _rearranged(case, HIDING["25 % rearranged"]),
    "40 % rearranged": lambda case: _rearranged(case, HIDING["40 % rearranged"]),
    "interpolated": lambda case: _interpolated(case, 0.5),
    "a fifth of it raw": lambda case: _interpolated(case, 0.2),
    "four fifths of it raw": lambda case: _interpolated(case, 0.8),
    "relations remember": _relations_remember,
    "entities remember": _entities_remember,
    "fine-tuned on 15 %": _fine_tuned,
    "only locally": _only_locally,
    "noisy": _noisy,
    "tested on": _tested_on,
    "moved to neighbours": _moved,
}
