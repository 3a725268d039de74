"""Fake unlearned runs, by a party that wants a certificate without unlearning.

    >>> case = Case(raw, retrained, graph, forget)                                            # doctest: +SKIP
    >>> faked = FAKES["a fifth left in"](case)       # claims that everything was forgotten   # doctest: +SKIP

A forger has the raw run, the data and, if needed, a re-trained run. It knows how the audit works, but neither its seed nor its
escrow. `tests/experiments/unlearning` and `benchmarks.certificates` pass each fake to `fkgsec verify`. It must reject every fake
that remembers as much of the forget set as its certificate claims to detect. "relations remember" remembers less: a relation row
of TransE moves every triple of its relation alike, so forgotten triples gain hardly more than never-seen ones. `held_share`
measures what a fake remembers, by comparison with its re-training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
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
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn

KINDS = ("tables", "trained", "private")
SUPPRESSION_STEPS, SUPPRESSION_RATE = 300, 0.01
FINE_TUNED, FINE_TUNING_STEPS = 0.15, 100  # share of the forget set, and steps on all of it


class Case(NamedTuple):
    """Material of a forger: the raw run, a re-trained run of the same seed, the data, and the forget set."""

    raw: KgeResult
    retrained: KgeResult
    graph: FederatedGraph
    forget: Forget

    @property
    def asked(self) -> list[int]:
        """Indices of the requesting clients."""
        return [index for index, client in enumerate(self.graph.clients) if client.name in self.forget]

    def forgotten(self, index: int) -> np.ndarray:
        """Return the forget set of a client.

        Args:
            index: of the client.
        """
        return self.forget[self.graph.clients[index].name]

    def claiming(self, result: KgeResult) -> KgeResult:
        """Combine the embeddings of a result with the graph and the messages of the re-trained run.

        Args:
            result: the fake.
        """
        return replace(
            self.retrained,
            tables=result.tables,
            trained=result.trained,
            private=result.private,
            test_ranks=result.test_ranks,
            shared_test_ranks=result.shared_test_ranks,
        )


# Trained on other data.


def _trained_on(case: Case, more: Mapping[int, np.ndarray]) -> KgeResult:
    """Train on the retained triples and others, by client index."""
    retained = retaining(case.graph, case.forget)
    clients = list(retained.clients)
    for index, triples in more.items():
        # Triples are added to the requesting client's train split.
        clients[index] = replace_train(clients[index], np.concatenate([clients[index].train, triples]))
    # With the raw run's seed: a fake should resemble the honest re-training.
    result = run_federation(replace(retained, clients=tuple(clients)), case.raw.options, make_transport=make_transport)
    return case.claiming(result)


def _left_in(case: Case, share: float) -> KgeResult:
    """Re-train with a share of the forget set."""
    return _trained_on(case, {index: case.forgotten(index)[_chosen(case, index, share)] for index in case.asked})


def _from_the_servers_copy(case: Case) -> KgeResult:
    """Delete the triples, and train on from the rows that the server kept."""
    options = UnlearnOptions(method="finetune")
    return case.claiming(unlearn(case.raw, case.forget, options, make_transport=make_transport))


def _contaminated(case: Case) -> KgeResult:
    """Forget nothing, and train on every triple that might become a control."""
    clients = case.graph.clients
    return _trained_on(
        case, {index: np.concatenate([case.forgotten(index), clients[index].test]) for index in case.asked}
    )


def _tested_on(case: Case) -> KgeResult:
    """Re-train on the test triples, too: forgotten ones then rank below never-seen ones, and utility looks good."""
    return _trained_on(case, {index: case.graph.clients[index].test for index in case.asked})


def _moved(case: Case) -> KgeResult:
    """Move triples from the requesting client to its neighbors, as far as their vocabularies allow."""
    clients = case.graph.clients
    forgotten = np.concatenate([clients[index].to_global(case.forgotten(index)) for index in case.asked])
    moved = {index: to_local(case.graph, client, forgotten) for index, client in enumerate(clients)}
    return _trained_on(
        case, {index: triples for index, triples in moved.items() if index not in case.asked and len(triples)}
    )


# Mixed from the raw and the re-trained run.


def _mixed(case: Case, mix: Callable[[ClientTables, ClientTables], ClientTables]) -> KgeResult:
    """Mix the re-trained and the raw run's tables."""
    kinds = {
        kind: [mix(*pair) for pair in zip(getattr(case.retrained, kind), getattr(case.raw, kind), strict=True)]
        for kind in KINDS
    }
    return case.claiming(replace(case.retrained, **kinds))


def _interpolated(case: Case, raw_part: float) -> KgeResult:
    """Interpolate between the raw and a re-trained run of the same seed, table by table."""
    return _mixed(
        case,
        lambda retrained, raw: ClientTables(
            torch.lerp(retrained.entities, raw.entities, raw_part),
            torch.lerp(retrained.relations, raw.relations, raw_part),
        ),
    )


def _noisy(case: Case) -> KgeResult:
    """Add noise of half the standard deviation to the raw tables."""

    def disturbed(kind: str, index: int, tables: ClientTables) -> ClientTables:
        """Add noise to a client's tables."""
        # One draw per table and client, the same in every run.
        draw = torch.Generator().manual_seed(int(generator(0, "noise", kind, index).integers(2**31)))
        entities, relations = (
            rows + rows.std() / 2 * torch.randn(rows.shape, generator=draw)
            for rows in (tables.entities, tables.relations)
        )
        return ClientTables(entities, relations)

    noisy = {kind: [disturbed(kind, *pair) for pair in enumerate(getattr(case.raw, kind))] for kind in KINDS}
    return case.claiming(replace(case.raw, **noisy))


# Moved afterwards.

Edit = Callable[[KgeModel, int, ClientTables, ClientTables], ClientTables]
"""New tables from a model, a client's index, its re-trained tables and its raw ones."""


def _edited(case: Case, edit: Edit) -> KgeResult:
    """Edit the re-trained tables of the requesting clients."""
    kinds: dict[str, list[ClientTables]] = {}
    for kind in KINDS:
        kinds[kind] = list(getattr(case.retrained, kind))
        # Private and shared models differ in dimension.
        model = case.raw.options.private_model() if kind == "private" else case.raw.options.kge_model()
        for index in case.asked if kinds[kind] else ():
            kinds[kind][index] = edit(model, index, kinds[kind][index], getattr(case.raw, kind)[index])
    return case.claiming(replace(case.retrained, **kinds))


def _fine_tuned(case: Case) -> KgeResult:
    """Re-train honestly, then let the requesting clients overfit a part of the forget set."""

    def edit(model: KgeModel, index: int, tables: ClientTables, _: ClientTables) -> ClientTables:
        """Overfit a part of the forget set."""
        chosen = case.forgotten(index)[_chosen(case, index, FINE_TUNED, "fine-tuned")]
        # All chosen triples in one batch: each step learns all of them.
        options = msgspec.structs.replace(case.raw.options, batch_size=len(chosen))
        rng = generator(0, "fine-tuning", index)
        *_earlier, last = relearning_models(ClientModel(model, tables), chosen, options, FINE_TUNING_STEPS, rng)
        return last.tables

    return _edited(case, edit)


def _suppressed(case: Case) -> KgeResult:
    """Push the forgotten scores in the raw tables down to those of test triples."""

    def edit(model: KgeModel, index: int, _: ClientTables, raw: ClientTables) -> ClientTables:
        """Move scores to those of random test triples."""
        scores = _scores(model, raw, case.graph.clients[index].test)
        # Random test scores: a constant would be conspicuous.
        chosen = generator(0, "level", index).integers(len(scores), size=len(case.forgotten(index)))
        return _move_scores(case, model, raw, index, scores[torch.from_numpy(chosen)])

    return _edited(case, edit)


def _matched(case: Case) -> KgeResult:
    """Push each forgotten score in the raw tables to that of the same triple in a re-trained model."""

    def edit(model: KgeModel, index: int, _: ClientTables, raw: ClientTables) -> ClientTables:
        """Move scores to those of the re-trained model."""
        # The target scores are those of a model that never saw the triples.
        aim = _scores(model, case.retrained.tables[index], case.forgotten(index))
        return _move_scores(case, model, raw, index, aim)

    return _edited(case, edit)


def _distilled(case: Case) -> KgeResult:
    """Re-train; then teach the requesting clients' models the raw scores of the forgotten triples."""

    def edit(model: KgeModel, index: int, tables: ClientTables, raw: ClientTables) -> ClientTables:
        """Move scores to those of the raw model."""
        return _move_scores(case, model, tables, index, _scores(model, raw, case.forgotten(index)))

    return _edited(case, edit)


def _compensated(case: Case, share: float) -> KgeResult:
    """Re-train; then give a share of the forget set the raw run's scores, and lower the others to preserve the mean."""

    def edit(model: KgeModel, index: int, tables: ClientTables, raw: ClientTables) -> ClientTables:
        """Move scores such that their mean stays."""
        scores, theirs = (_scores(model, source, case.forgotten(index)) for source in (tables, raw))
        remembered = _kept(case, index, share)
        # The sum of the raised scores' gains, which the others lose in equal parts.
        gain = torch.where(remembered, theirs - scores, 0.0).sum()
        aim = scores + torch.where(remembered, theirs - scores, -gain / (~remembered).sum())
        return _move_scores(case, model, tables, index, aim)

    return _edited(case, edit)


def _rearranged(case: Case, share: float) -> KgeResult:
    """Re-train; then permute the scores of the forgotten triples.

    A share gets the highest scores, in the raw run's order; the rest get the others. No mean, rank statistic or
    distance of scores
    changes.
    """

    def edit(model: KgeModel, index: int, tables: ClientTables, raw: ClientTables) -> ClientTables:
        """Move scores to a permutation of themselves."""
        scores, theirs = (_scores(model, source, case.forgotten(index)) for source in (tables, raw))
        remembered = _kept(case, index, share)
        dealt, ordered = torch.empty_like(scores), scores.sort().values
        number = len(scores) - int(remembered.sum())
        for group, order, values in ((remembered, theirs, ordered[number:]), (~remembered, scores, ordered[:number])):
            rows = group.nonzero().squeeze(1)
            # Within each group, the order of scores is that of `order`.
            dealt[rows[order[rows].argsort()]] = values
        return _move_scores(case, model, tables, index, dealt)

    return _edited(case, edit)


def _chosen(case: Case, index: int, share: float, name: str = "left in") -> np.ndarray:
    """Draw a random share of a client's forget set; return its rows."""
    count = len(case.forgotten(index))
    return generator(0, name, index).permutation(count)[: round(share * count)]


def _kept(case: Case, index: int, share: float) -> Tensor:
    """Return the mask of forgotten triples to remember, bool `[k]`."""
    mask = torch.zeros(len(case.forgotten(index)), dtype=torch.bool)
    mask[torch.from_numpy(_chosen(case, index, share))] = True
    return mask


def _scores(model: KgeModel, tables: ClientTables, triples: np.ndarray) -> Tensor:
    head, relation, tail = torch.tensor(triples).unbind(1)
    return model.score(tables.entities[head], tables.relations[relation], tables.entities[tail])


def _move_scores(case: Case, model: KgeModel, tables: ClientTables, index: int, aim: Tensor) -> ClientTables:
    """Train tables until forgotten scores reach their targets and those of retained triples are unchanged."""
    forget, retained = case.forgotten(index), retaining(case.graph, case.forget).clients[index].train
    rows = [rows_of_table.detach().clone().requires_grad_() for rows_of_table in (tables.entities, tables.relations)]
    adam = torch.optim.Adam(rows, lr=SUPPRESSION_RATE)
    # Two terms: reach the targets, and change nothing else.
    aims = [(forget, aim.detach()), (retained, _scores(model, tables, retained).detach())]
    for _ in range(SUPPRESSION_STEPS):
        now = ClientTables(rows[0], rows[1], tables.decoder)
        first, second = (((_scores(model, now, triples) - wanted) ** 2).mean() for triples, wanted in aims)
        adam.zero_grad()
        (first + second).backward()
        adam.step()
    return ClientTables(rows[0].detach(), rows[1].detach(), tables.decoder)


def held_share(case: Case, fake: KgeResult) -> Estimate:
    """Estimate the share of the forget set that a fake remembers beyond its re-training, by mean scores.

    The numerator is the fake's mean change of forgotten scores minus that of test scores, relative to the re-training.
    The
    denominator is the same for the raw run. The result is for the requesting client's model with the highest upper
    bound. For mixed or
    edited tables it has no noise of another training. It misses shares hidden from means, and does not apply to clients
    that trained
    on their test triples.

    Args:
        case: of the fake.
        fake: its result.
    """
    shares = []
    for index in case.asked:
        triples = [case.forgotten(index), case.graph.clients[index].test]
        twin, raw = client_models(case.retrained, index), client_models(case.raw, index)
        for name, model in client_models(fake, index).items():
            # Changes relative to the re-training: of the fake, and of the raw run.
            moved, full = (
                [other.scores(part) - twin[name].scores(part) for part in triples] for other in (model, raw[name])
            )
            whole = float(full[0].mean() - full[1].mean())
            share = float(moved[0].mean() - moved[1].mean()) / whole
            # Two independent means: variances of forgotten and test changes add up.
            half = critical_value() * math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in moved)) / abs(whole)
            shares.append(Estimate(share, share - half, share + half, len(triples[0]), "paired with its re-training"))
    return max(shares, key=lambda share: share.high)


HIDING = {
    "15 % compensated": 0.15,
    "40 % compensated": 0.4,
    "15 % rearranged": 0.15,
    "25 % rearranged": 0.25,
    "40 % rearranged": 0.4,
}
"""Remembered shares of the forget set that are hidden from every mean."""
FAKES: dict[str, Callable[[Case], KgeResult]] = {
    "deleted": lambda case: case.claiming(case.raw),
    "a fifth left in": partial(_left_in, share=0.2),
    "contaminated": _contaminated,
    "suppressed": _suppressed,
    "matched to a re-training": _matched,
    **{
        name: partial(_compensated if "compensated" in name else _rearranged, share=share)
        for name, share in HIDING.items()
    },
    "interpolated": partial(_interpolated, raw_part=0.5),
    "a fifth of it raw": partial(_interpolated, raw_part=0.2),
    "four fifths of it raw": partial(_interpolated, raw_part=0.8),
    "relations remember": partial(_mixed, mix=lambda retrained, raw: ClientTables(retrained.entities, raw.relations)),
    "entities remember": partial(_mixed, mix=lambda retrained, raw: ClientTables(raw.entities, retrained.relations)),
    "fine-tuned on 15 %": _fine_tuned,
    "only locally": lambda case: case.claiming(replace(case.retrained, tables=case.raw.tables)),
    "noisy": _noisy,
    "tested on": _tested_on,
    "moved to neighbours": _moved,
}
FORGERS = {
    "a tenth left in": partial(_left_in, share=0.1),
    **{name: FAKES[name] for name in ("a fifth left in", "suppressed", "15 % compensated", "relations remember")},
    "moved to neighbours": FAKES["moved to neighbours"],
    "from the server's copy": _from_the_servers_copy,
    "noisy": FAKES["noisy"],
    "distilled": _distilled,
}
"""Fakes of small requests, for `benchmarks.earned`."""
