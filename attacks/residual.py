"""Attacks that secure aggregation leaves open: subtract the colluder's part, count the holders, compare rounds.

Threat model: a server that colludes with one client. It knows every opened sum, how many survivors hold each row, who they
are, the colluder's own input for the leaked rows, and who holds what where alignment was in clear. It attributes each
row of the residual to the victims that hold it, and takes the residual's mean for their embedding of it.

Source: ours. fedr.txt 4.2 claims that nothing leaks "once PSU and SecAgg are applied".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.federation.messages import Opened

UNKNOWN = -1
SOURCES = ("nothing", "alignment", "alone", "all hold it", "rounds", "guess", "known parts")
"""How a holding was found, by number: not; alignment in clear; one victim in the sum; as many holders as victims in the sum;
other rounds with other survivors; claimed as one of the likeliest; the others' parts of the sum are known to the server."""


class Part(NamedTuple):
    """A colluder's knowledge of a table: the numbers of its leaked rows, int64 `[k]`, and what it put into the newest sum
    for these, float64 `[k, W]`; None if it put nothing."""

    party: str
    leaked: np.ndarray
    own_input: Tensor | None


@dataclass(frozen=True, eq=False)
class SecureTable:
    """The adversary's view of a table that was summed securely.

    Attributes:
        parties: all clients. victims: those that do not collude. parts: what colluders handed over.
        names: object `[n]`, the name of each row, None where it does not know it.
        opened: sums of the attacked round and of others with other survivors, newest first; the first one has rows.
        all_leaked: whether the leaked rows are all that colluders hold.
        holdings: for each party the rows it holds, where alignment was in plaintext.
        known: by party, its part of the first of `opened` wherever it holds a row, float64 `[n, W]`: see
            `KgeResult.known`. All of them have the same.
    """

    parties: tuple[str, ...]
    victims: tuple[str, ...]
    names: np.ndarray
    opened: tuple[Opened, ...]
    parts: tuple[Part, ...]
    all_leaked: bool
    holdings: dict[str, np.ndarray]
    known: dict[str, Tensor] = field(default_factory=dict)


class Claims(NamedTuple):
    """The rows that the adversary says a victim holds.

    Attributes:
        rows: int64 `[k]`, ascending. embeddings: float32 `[k, W]`, what it takes for the victim's embeddings of them.
        names: object `[k]`. certainty: float `[k]`, 1 where it is not a guess. sources: int `[k]`, see `SOURCES`.
        alone: bool `[k]`, rows whose residual is this victim's part and nothing else.
    """

    rows: np.ndarray
    embeddings: Tensor
    names: np.ndarray
    certainty: np.ndarray
    sources: np.ndarray
    alone: np.ndarray


def claim_rows(table: SecureTable, rng: np.random.Generator) -> dict[str, Claims]:
    """Attribute the rows of the newest sum to the victims.

    Args:
        rng: draws holders where counts leave it open.
    """
    if not table.opened:
        return {}
    total, holders = table.opened[0].sums()
    residual, count = torch.from_numpy(total.copy()), holders.copy()
    in_sum = table.opened[0].survivors
    for party, leaked, inputs in table.parts:
        if inputs is not None and party in in_sum and party not in table.known:
            residual[leaked] -= inputs
            count[leaked] -= inputs.any(dim=1).numpy()  # a row of zeros was not sent
    exposed = _subtract_known(table, residual, count)
    for older in table.opened[1:]:
        if older.total:  # a row that the newest sum does not have, as it last was in one; the colluder's part stays
            total, holders = older.sums()
            missing = (count == 0) & (holders > 0)
            residual[missing] = torch.from_numpy(total[missing])
            count[missing] = holders[missing]
    mean = (residual / torch.from_numpy(np.maximum(count, 1))[:, None]).float()
    mean[torch.from_numpy(count <= 0)] = torch.nan  # in no sum, so without an embedding
    holdings, sources, certainty = attribute_holders(table, rng)
    if exposed is not None:
        victim, holds = exposed
        place = table.parties.index(victim)
        open_rows = sources[place] != SOURCES.index("alignment")
        holdings[place, open_rows] = holds[open_rows]
        sources[place, open_rows] = np.where(holds, SOURCES.index("known parts"), 0)[open_rows]
        certainty[place, open_rows] = 1.0
    claims = {}
    for victim in table.victims:
        if victim not in table.holdings and not any(victim in opened.survivors for opened in table.opened):
            continue
        place = table.parties.index(victim)
        # A row without an embedding is claimed only where its holder was told in clear.
        rows = np.nonzero((holdings[place] == 1) & ((count > 0) | (victim in table.holdings)))[0]
        alone = (count[rows] == 1) & (certainty[place, rows] == 1)
        claims[victim] = Claims(
            rows, mean[rows], table.names[rows], certainty[place, rows], sources[place, rows], alone
        )
    return claims


def _subtract_known(table: SecureTable, residual: Tensor, count: np.ndarray) -> tuple[str, np.ndarray] | None:
    """Subtract the parts that the server knows from the newest sum, in place.

    Returns: the one client in the sum whose part is not known, and which rows `[n]` it holds; None where there are several.

    Where alignment was in clear and every holder sent a row, it knows how many of these parts are in it. Else it can tell if
    there is but one client more: a row that is not all known parts is held by that client.
    """
    known_parties = [party for party in table.opened[0].survivors if party in table.known]
    others = [party for party in table.opened[0].survivors if party not in table.known]
    if table.all_leaked:
        others = [
            party
            for party in others
            if party not in {colluded.party for colluded in table.parts if colluded.own_input is not None}
        ]
    if not known_parties or not others:
        return None
    part, num_known = table.known[known_parties[0]], np.zeros_like(count)
    if len(others) == 1:
        off = (residual - part * torch.from_numpy(count)[:, None]).abs().amax(dim=1).numpy()
        num_known = count - (off > 2 * table.opened[0].error)
    if table.holdings:
        held_by_known, held_by_others = (
            sum(np.isin(np.arange(len(count)), table.holdings[party]).astype(np.int64) for party in parties)
            for parties in (known_parties, others)
        )
        whole = held_by_known + held_by_others == count  # every holder sent the row
        num_known = np.where(whole, held_by_known, num_known)
    residual -= part * torch.from_numpy(num_known)[:, None]
    count -= num_known
    return (others[0], (count > 0).astype(np.int8)) if len(others) == 1 else None


def attribute_holders(table: SecureTable, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attribute rows to parties: int8 `[parties, n]` of 0, 1 (`UNKNOWN` for a party in no sum), its source and its certainty.

    Each sum says: of its survivors, so many hold the row. What follows from these equations is certain. Where they leave
    holders open, the certainty is the share of those left who hold it, and for each party its likeliest rows are claimed, as many
    as a draw among those left gives it.
    """
    members = np.array([[party in opened.survivors for party in table.parties] for opened in table.opened])
    counted, equations = {opened.round for opened in table.opened if not opened.total}, []
    for opened in table.opened:
        holders = opened.sums()[1]
        if (
            opened.round in counted and opened.total
        ):  # of rows that were suppressed, only the count before says something
            holders = np.where(holders == 0, UNKNOWN, holders)
        equations.append(holders)
    counts = np.stack(equations)
    holds = np.full((len(table.parties), counts.shape[1]), UNKNOWN, dtype=np.int8)
    sources = np.zeros(holds.shape, dtype=np.int8)
    for party, leaked, _ in table.parts:
        place = table.parties.index(party)
        if table.all_leaked:
            holds[place] = 0
        holds[place, leaked] = 1
    for party, rows in table.holdings.items():
        holds[table.parties.index(party)] = 0
        holds[table.parties.index(party), rows] = 1
    sources[holds != UNKNOWN] = SOURCES.index("alignment")

    follow_counts(holds, members[:1], counts[:1])
    alone = members[0].sum() - sum(part.party in table.opened[0].survivors for part in table.parts) == 1
    sources[(holds != UNKNOWN) & (sources == 0)] = SOURCES.index("alone" if alone else "all hold it")

    solve_counts(holds, members, counts)
    follow_counts(holds, members, counts)
    sources[(holds != UNKNOWN) & (sources == 0)] = SOURCES.index("rounds")

    certainty = np.where(holds != UNKNOWN, 1.0, 0.0)
    settled = holds.copy()
    for present, count in zip(members, counts, strict=True):
        _draw(holds, settled, certainty, present, count, rng)
    guessed = (holds != UNKNOWN) & (sources == 0)
    sources[guessed] = SOURCES.index("guess")
    # Each party's drawn holdings move to the likeliest of the rows that are open for it: as many claims as were drawn, right more
    # often. Rows that are as likely stay as they were drawn, so that each of those is somebody's.
    for place, open_rows in enumerate(guessed):
        rows = np.nonzero(open_rows)[0]
        order = rows[np.lexsort((rng.random(len(rows)), -holds[place, rows], -certainty[place, rows]))]
        num_claims = int(holds[place, rows].sum())
        holds[place, order[:num_claims]], holds[place, order[num_claims:]] = 1, 0
    return holds, sources, certainty


def follow_counts(holds: np.ndarray, members: np.ndarray, counts: np.ndarray) -> None:
    """Fill in what counts force, until nothing changes: nobody left to be counted, or everybody left needed. In place."""
    while True:
        before = int((holds == UNKNOWN).sum())
        for present, count in zip(members, counts, strict=True):
            part = holds[present]
            unknown = (part == UNKNOWN) & (count != UNKNOWN)
            left = count - (part == 1).sum(axis=0)
            part[unknown & (left == 0)] = 0
            part[unknown & (left == unknown.sum(axis=0))] = 1
            holds[present] = part
        if int((holds == UNKNOWN).sum()) == before:
            return


def solve_counts(holds: np.ndarray, members: np.ndarray, counts: np.ndarray) -> None:
    """Fill in parties whose holdings are a combination of the counts, such as the difference of two sums. In place."""
    patterns, pattern_of = np.unique(counts != UNKNOWN, axis=1, return_inverse=True)
    for number, valid in enumerate(patterns.T):
        rows = np.nonzero(pattern_of.ravel() == number)[0]
        matrix = members[valid].astype(np.float64)
        combination = np.linalg.pinv(matrix)  # [parties, rounds]
        determined = np.abs(combination @ matrix - np.eye(matrix.shape[1])).max(axis=1) < 1e-9
        for party in np.nonzero(determined)[0]:
            solved = np.rint(combination[party] @ counts[np.ix_(valid, rows)]).astype(np.int8)
            unknown = holds[party, rows] == UNKNOWN
            holds[party, rows[unknown]] = solved[unknown]


def _draw(
    holds: np.ndarray,
    settled: np.ndarray,
    certainty: np.ndarray,
    present: np.ndarray,
    count: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw as many holders as are left of a sum, among the parties in it that are open. In place."""
    part, sure = holds[present], certainty[present]
    unknown = (part == UNKNOWN) & (count != UNKNOWN)
    before = settled[present]
    share = (count - (before == 1).sum(axis=0)) / np.maximum((before == UNKNOWN).sum(axis=0), 1)
    left = np.maximum(count - (part == 1).sum(axis=0), 0)
    order = np.where(unknown, rng.random(part.shape), np.inf).argsort(axis=0).argsort(axis=0)
    sure[unknown] = np.broadcast_to(share, part.shape)[unknown]
    part[unknown] = (order < left)[unknown]
    holds[present], certainty[present] = part, sure


def count_sources(claims: Sequence[np.ndarray]) -> dict[str, int]:
    """Count the claims' sources of each kind that occurs."""
    numbers = np.concatenate([*claims, np.empty(0, dtype=np.int64)]).astype(np.int64)
    counts = np.bincount(numbers, minlength=len(SOURCES))
    return {name: int(count) for name, count in zip(SOURCES, counts, strict=True) if count}
