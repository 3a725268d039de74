"""Attacks that secure aggregation leaves open: subtract the colluder's part, count the holders, compare rounds.

Threat model: a server that colludes with one client. It knows every opened sum, how many survivors hold each row, and who they
are. It also knows the colluder's input for the leaked rows, and the holders of every row if alignment was in plaintext. It
attributes each row of the residual to the victims that hold it, and uses the residual's mean as their embedding of it.

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
"""How a holding was inferred, by index: not at all; plaintext alignment; only one victim in the sum; as many holders as victims
in the sum; other rounds with other survivors; a guess among the likeliest rows; the others' inputs are known to the server."""


class Part(NamedTuple):
    """A colluder's knowledge of a summed table.

    Attributes:
        party: party name of the colluder.
        leaked: indices of its leaked rows in the table, int64 `[k]`.
        own_input: its input to the newest sum for these rows, float64 `[k, W]`; None if it did not take part.
    """

    party: str
    leaked: np.ndarray
    own_input: Tensor | None


@dataclass(frozen=True, eq=False)
class SecureTable:
    """The adversary's view of a table that was summed securely.

    Attributes:
        parties: all clients.
        victims: clients that do not collude.
        names: name of each row, object `[n]`, None where the adversary does not know it.
        opened: sums of the attacked round and of others with other survivors, newest first. The first one has rows.
        parts: knowledge of each colluder.
        all_leaked: True if the leaked rows are all that colluders hold.
        holdings: rows that each party holds, where alignment was in plaintext.
        known_parts: inputs to the first of `opened` that the server knows, by party, float64 `[n, W]`, see `KgeResult.known`.
            All these parties have the same rows.
    """

    parties: tuple[str, ...]
    victims: tuple[str, ...]
    names: np.ndarray
    opened: tuple[Opened, ...]
    parts: tuple[Part, ...]
    all_leaked: bool
    holdings: dict[str, np.ndarray]
    known_parts: dict[str, Tensor] = field(default_factory=dict)


class Claims(NamedTuple):
    """The rows that the adversary attributes to a victim.

    Attributes:
        rows: indices in the table, int64 `[k]`, ascending.
        embeddings: inferred embeddings of the victim, float32 `[k, W]`.
        names: names where known, object `[k]`.
        certainty: probability of each attribution, float `[k]`; 1 where it follows from the counts.
        sources: how each holding was inferred, int `[k]`, see `SOURCES`.
        alone: rows whose residual is this victim's input and nothing else, bool `[k]`.
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
        table: the adversary's view of the sums.
        rng: draws holders where counts leave them open.

    Returns:
        Claims by victim party; empty if no sum was opened. Victims that took part in no sum are missing.
    """
    if not table.opened:
        return {}
    total, holders = table.opened[0].sums()
    # Step 1: subtract the inputs that the adversary knows from the newest sum.
    residual, count = torch.from_numpy(total.copy()), holders.copy()
    in_sum = table.opened[0].survivors
    for party, leaked, inputs in table.parts:
        if inputs is not None and party in in_sum and party not in table.known_parts:
            residual[leaked] -= inputs
            # A row of zeros was not sent, and does not count as a holder.
            count[leaked] -= inputs.any(dim=1).numpy()
    exposed = _subtract_known(table, residual, count)
    for older in table.opened[1:]:
        # Fill in rows that the newest sum lacks from an older one; the colluder's input stays in these.
        if older.total:
            total, holders = older.sums()
            missing = (count == 0) & (holders > 0)
            residual[missing] = torch.from_numpy(total[missing])
            count[missing] = holders[missing]
    # Step 2: what remains is the sum of the victims' rows; its mean stands for each of them.
    mean = (residual / torch.from_numpy(np.maximum(count, 1))[:, None]).float()
    # A row in no sum has no embedding.
    mean[torch.from_numpy(count <= 0)] = torch.nan
    # Step 3: decide which victims hold each row.
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
        # A row without an embedding is claimed only if plaintext alignment names its holder.
        rows = np.nonzero((holdings[place] == 1) & ((count > 0) | (victim in table.holdings)))[0]
        alone = (count[rows] == 1) & (certainty[place, rows] == 1)
        claims[victim] = Claims(
            rows, mean[rows], table.names[rows], certainty[place, rows], sources[place, rows], alone
        )
    return claims


def _subtract_known(table: SecureTable, residual: Tensor, count: np.ndarray) -> tuple[str, np.ndarray] | None:
    """Subtract the inputs that the server knows from the newest sum, in place.

    If alignment was in plaintext and every holder sent a row, the server knows how many of these inputs it contains. Otherwise
    it can tell only if a single other client is in the sum: a row that is not a multiple of the known input is held by that
    client.

    Returns: the only client in the sum whose input is unknown, and which rows `[n]` it holds; None if there are several.
    """
    known_parties = [party for party in table.opened[0].survivors if party in table.known_parts]
    others = [party for party in table.opened[0].survivors if party not in table.known_parts]
    if table.all_leaked:
        others = [
            party
            for party in others
            if party not in {colluded.party for colluded in table.parts if colluded.own_input is not None}
        ]
    if not known_parties or not others:
        return None
    part, num_known = table.known_parts[known_parties[0]], np.zeros_like(count)
    if len(others) == 1:
        # A sum of `count` equal known inputs differs from `count * part` by rounding only; otherwise one holder is not
        # known.
        off = (residual - part * torch.from_numpy(count)[:, None]).abs().amax(dim=1).numpy()
        num_known = count - (off > 2 * table.opened[0].error)
    if table.holdings:
        held_by_known, held_by_others = (
            sum(np.isin(np.arange(len(count)), table.holdings[party]).astype(np.int64) for party in parties)
            for parties in (known_parties, others)
        )
        # True if every holder sent the row.
        whole = held_by_known + held_by_others == count
        num_known = np.where(whole, held_by_known, num_known)
    residual -= part * torch.from_numpy(num_known)[:, None]
    count -= num_known
    return (others[0], (count > 0).astype(np.int8)) if len(others) == 1 else None


def attribute_holders(table: SecureTable, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attribute rows to parties from the counts of all sums.

    Each sum is an equation per row: so many of its survivors hold the row. Consequences of these equations are certain. Where
    they leave holders open, the certainty is the share of open parties that hold the row. Each party is then assigned its
    likeliest rows, as many as a random draw among the open parties gives it.

    Args:
        table: the adversary's view of the sums.
        rng: draws holders where counts leave them open.

    Returns:
        Holdings, int8 `[parties, n]` of 0 and 1 (`UNKNOWN` for a party in no sum), their sources and their certainty.
    """
    members = np.array([[party in opened.survivors for party in table.parties] for opened in table.opened])
    counted, equations = {opened.round for opened in table.opened if not opened.total}, []
    for opened in table.opened:
        holders = opened.sums()[1]
        # Of suppressed rows, only the count before the sum is informative: a zero in the sum says nothing.
        if opened.round in counted and opened.total:
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

    # Consequences of the newest sum alone come first, so that `sources` tells which need several rounds.
    follow_counts(holds, members[:1], counts[:1])
    alone = members[0].sum() - sum(part.party in table.opened[0].survivors for part in table.parts) == 1
    sources[(holds != UNKNOWN) & (sources == 0)] = SOURCES.index("alone" if alone else "all hold it")

    # Holdings are differences of counts in rounds with different survivors.
    solve_counts(holds, members, counts)
    follow_counts(holds, members, counts)
    sources[(holds != UNKNOWN) & (sources == 0)] = SOURCES.index("rounds")

    # The remaining holdings are guesses.
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
    """Fill in forced holdings, in place, until nothing changes: all open parties hold a row, or none does.

    Args:
        holds: int8 `[parties, n]` of 0, 1 and `UNKNOWN`.
        members: parties in each sum, bool `[sums, parties]`.
        counts: holders per row of each sum, int `[sums, n]`; `UNKNOWN` where the sum says nothing.
    """
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
    """Fill in, in place, parties whose holdings are a linear combination of counts, such as the difference of two sums.

    Args:
        holds: int8 `[parties, n]` of 0, 1 and `UNKNOWN`.
        members: parties in each sum, bool `[sums, parties]`.
        counts: holders per row of each sum, int `[sums, n]`; `UNKNOWN` where the sum says nothing.
    """
    patterns, pattern_of = np.unique(counts != UNKNOWN, axis=1, return_inverse=True)
    for number, valid in enumerate(patterns.T):
        rows = np.nonzero(pattern_of.ravel() == number)[0]
        matrix = members[valid].astype(np.float64)
        # members @ holdings = counts. Row p of pinv(members) @ members is the unit vector of p exactly if party p is
        # determined.
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
    """Draw the remaining holders of a sum among its open parties, in place."""
    part, sure = holds[present], certainty[present]
    unknown = (part == UNKNOWN) & (count != UNKNOWN)
    before = settled[present]
    share = (count - (before == 1).sum(axis=0)) / np.maximum((before == UNKNOWN).sum(axis=0), 1)
    # A random permutation of the open parties per row; the first `left` of them become holders.
    left = np.maximum(count - (part == 1).sum(axis=0), 0)
    order = np.where(unknown, rng.random(part.shape), np.inf).argsort(axis=0).argsort(axis=0)
    sure[unknown] = np.broadcast_to(share, part.shape)[unknown]
    part[unknown] = (order < left)[unknown]
    holds[present], certainty[present] = part, sure


def count_sources(claims: Sequence[np.ndarray]) -> dict[str, int]:
    """Count claims by source.

    Args:
        claims: `Claims.sources` of any number of victims.

    Returns:
        Number of claims by name in `SOURCES`, without zeros.
    """
    numbers = np.concatenate([*claims, np.empty(0, dtype=np.int64)]).astype(np.int64)
    counts = np.bincount(numbers, minlength=len(SOURCES))
    return {name: int(count) for name, count in zip(SOURCES, counts, strict=True) if count}
