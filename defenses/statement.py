"""Human-readable statement of a defense's guarantees, and the same as typed values for records and policies.

The server model that each part of a defense withstands, and its number of colluders, are never overstated:

    >>> from fkgsec.defenses.options import parse_defense
    >>> uploads = withstood(parse_defense("psu,secagg,suppress:t=2"), 5, 5, threshold=4, bound=True)[1]
    >>> uploads.part, uploads.server, uploads.colluders
    ('single uploads', 'follows the protocol', 2)

Two assumptions hold throughout. Clients know each other's identity keys from another source: a server that distributes them can
run clients of its own, which count as colluders. Colluders follow their own program.

No sum is said to withstand an active server. Even if all clients train from one table, the server chooses it. With DistMult,
ComplEx and RotatE, a client has gradient zero at a row of zeros. A table of zeros except for rows that one client holds thus
leaves that client's part in the sum. Only noise that a client adds by itself is independent of what the server sends.

A single sum hides its parts, but many do not. The difference of each round's sum to its starting table is linear in the
participants. Least squares over rounds with other participants therefore gives each client's mean change (Lam et al., "Gradient
disaggregation", 2021). For three of five clients that hold UMLS by relations, 30 sums give it with a cosine of 0.95, where
the mean of a sum gives 0.67.
"""

from __future__ import annotations

from fkgsec.defenses.options import Defense
from fkgsec.defenses.privacy import composed, released
from fkgsec.defenses.terms import Terms
from fkgsec.federation.protection import Protection, Withstands
from fkgsec.protocols.secagg import safe_threshold

# e^20 allows odds of half a billion to one.
LARGE_EPSILON = 20.0


def protection_of(terms: Terms, before: Protection, rounds: int) -> Protection:
    """State the protection of a run, and the guarantees of its `dp` releases.

    Args:
        before: protection of the run that this one continues or repeats; its releases compose.
        rounds: number of releases of each table.
    """
    guarantees = released({table: noise.guarantee for table, noise in terms.noise.items()}, releases=rounds)
    guarantees = composed(before.guarantees, guarantees)
    remarks = statement(terms, before)
    if any(guarantee.epsilon > LARGE_EPSILON for guarantee in guarantees.values()):
        remarks.append(f"dp: an epsilon above {LARGE_EPSILON:g} promises next to nothing")
    count = terms.num_participants
    withstands = withstood(
        terms.defense, len(terms.parties), count, threshold=terms.threshold(count), bound=terms.codec.same_for_all
    )
    return Protection(tuple(remarks), guarantees, withstands)


def statement(terms: Terms, before: Protection) -> list[str]:
    """List each protection and its assumptions, one line each.

    Args:
        before: protection of the run that this one continues or repeats.
    """
    defense, lines = terms.defense, []
    if defense.psu:
        lines.append("psu: the server learns the union of names; every client receives the whole table")
    if defense.secagg:
        errors = ", ".join(f"{encoding.bound:.2g} ({table})" for table, encoding in terms.encodings.items())
        lines.append(
            f"secagg: the server learns sums, holders and survivors; error of a sum at most {errors}; of two runs of one seed "
            "whose data differ at one client also that client's change"
        )
        for table, weight in terms.largest_weight.items():
            if weight > 1:
                lines.append(
                    f"weights: the server learns the sum of the weights of the holders of each row of {table}; all know that the "
                    f"largest weight is {weight}"
                    + (
                        "; sums of rounds with other participants tell each weight"
                        * (terms.num_participants < len(terms.parties))
                    )
                )
        lines.append(active_server(terms))
        if defense.secagg.neighbours is not None:
            lines.append(terms.graph_risk())
    if defense.suppress:
        lines.append(
            f"suppress: rows with fewer than {defense.suppress.t} holders stay with their clients; a row that no sum had yet is "
            "trained by each holder alone, until enough of them are in a sum; one client that counts itself as "
            f"{defense.suppress.t - 1} holders makes others' rare rows cross (tests/deploy/test_redteam.py)"
        )
    for name, other in defense.others.items():
        lines.append(f"{name}: {other.statement()}")
    if terms.noise:
        lines.append(
            "dp covers the transmitted values, not which rows a client holds; losses, validation and test figures, counts and "
            "the digest of the data in the record are of the clear data"
        )
    if terms.noise and before.guarantees:
        lines.append(
            "dp: the guarantee is of the run before and of this; each other unlearning or re-training of that run, killed ones "
            "too, is a further release"
        )
    if defense.distributed_noise and defense.dp and defense.dp.colluders == 0:
        lines.append("dp: with colluders=0 the guarantee does not hold where a client colludes with the server")
    if terms.options.protocol_seed is not None:
        lines.append("protocol randomness: fixed for tests; anyone who knows protocol_seed can open every upload")
    elif terms.noise:
        lines.append("dp: noise is fresh in every run, so that figures differ between runs of one seed")
    name = terms.options.algorithm
    if terms.codec.chooses_rows and defense.secagg:
        lines.append(
            f"{name}: who sent a row is hidden, so that broadcasts are chosen by the number of all senders, the receiver "
            "included; some are of no use to it, and figures differ from those in plaintext"
        )
    if terms.codec.chooses_rows and defense.secagg and not defense.suppress:
        lines.append(f"{name}: a row that one client alone chose is opened as it is; suppress:t=2 keeps it back")
    return lines


def active_server(terms: Terms) -> str:
    """State which attacks of an active server secure sums withstand and which not, with the tests that show it."""
    secagg, codec = terms.defense.secagg, terms.codec
    assert secagg is not None
    orders = "out of order or repeated" if codec.chooses_rows else "out of order, repeated or left out"
    withstood = (
        "active server: clients upload only rows that they trained on their own data since the last broadcast, so requests "
        f"{orders} open no sum of rows that the server knows (tests/deploy/test_order.py)"
    )
    limits = [
        "one table of the server's choice for all clients, which can leave one client's rows alone in the sum "
        "(tests/deploy/test_redteam.py)",
        "rows that every holder's training changes in the same way: their mean equals each holder's upload",
    ]
    count = terms.num_participants
    if count < len(terms.parties) or terms.fewest_survivors(count) < count:
        limits.append(
            "the same table in many rounds with other participants, whose sums give each client's mean upload "
            "(tests/deploy/test_redteam.py)"
        )
    limits.append(
        "a second run over the same data with different parties: comparing holder counts reveals which rows a party holds, and "
        "if both runs train from one seed, the difference of the sums reveals its upload (tests/deploy/test_redteam.py)"
    )
    if codec.same_for_all:
        withstood += "; clients that received different tables open no sum (tests/defenses/test_active_server.py)"
    else:
        limits.append("different tables for different clients")
    if codec.chooses_rows:
        limits.append("rounds in which the server asks one client alone to train (tests/deploy/test_redteam.py)")
    if terms.defense.psu is None:
        limits.append(
            "a place for one client's rows that no other client has for the same names (tests/deploy/test_redteam.py)"
        )
    # Bonawitz et al. 2017, Theorem 6.5: with C colluders, an active server can collect both kinds of share of one client
    # once holders + C reach 2 t. If all must survive, it needs a threshold of colluders.
    # Holders of the shares of one secret: all participants, or a client and its neighbors.
    num_holders = count if secagg.neighbours is None else secagg.neighbours + 1
    colluders = terms.threshold(count) if secagg.complete else 2 * terms.threshold(count) - num_holders
    if colluders <= count - 2:
        where = "" if secagg.neighbours is None else " among the neighbours of one"
        limits.append(
            f"a server with {colluders} or more colluding clients{where}, which opens single uploads "
            "(tests/protocols/secagg/test_hiding.py)"
        )
    if secagg.neighbours is not None and not secagg.complete:
        limits.append(
            "a server that lies about who survives, which opens the sum of as few as "
            f"{terms.threshold(count)} clients that it chooses (tests/deploy/test_redteam.py)"
        )
    return f"{withstood}. Not withstood: {'; '.join(limits)}"


def withstood(
    defense: Defense, num_parties: int, num_clients: int, *, threshold: int, bound: bool
) -> tuple[Withstands, ...]:
    """List for each part of the defense the server and the colluders that it withstands.

    The parts are the client's holdings, its upload, rare rows, and values under noise.

    Args:
        num_parties: of the federation; all take part in private set union.
        num_clients, threshold: of a round's session.
        bound: True if the session of a sum contains the broadcast that clients trained from, and all of them have its rows.
    """
    models = []
    if defense.secagg is None:
        if defense.dp is not None:
            models.append(
                Withstands(part="which rows a client holds", server="none", limit="the alignment is in plaintext")
            )
            models.append(_local(num_clients))
        return tuple(models)
    shared = {"threshold": threshold, "num_clients": num_clients}
    # A threshold of t opens the sum of at least t clients. Colluders subtract their own parts. Two others must remain, or the
    # sum is one client's upload: at most t - 2 collude.
    honest = max(0, threshold - 2)
    if defense.psu:
        limit = (
            "private set union has no proof against an active server; counts of holders in rounds with other survivors tell of "
            "them afterwards"
        )
        models.append(
            Withstands(
                part="who brought a name to the alignment",
                server="follows the protocol",
                colluders=max(0, min(honest, safe_threshold(num_parties) - 2)),
                limit=limit,
            )
        )
    else:
        models.append(
            Withstands(part="which rows a client holds", server="none", limit="the alignment is in plaintext")
        )
    uploads = _uploads(defense, num_clients, threshold, bound=bound, sampled=num_clients < num_parties)
    models.append(uploads)
    if defense.suppress:
        limit = "one that lies about the counts, or a client that counts itself several times, opens rare rows"
        server = "follows the protocol"
        colluders = min(honest, defense.suppress.t - 2)
        models.append(
            Withstands(part="rows with few holders", server=server, colluders=colluders, limit=limit, **shared)
        )
    if defense.distributed_noise:
        assert defense.dp is not None
        num_colluders = 1 if defense.dp.colluders is None else defense.dp.colluders
        limit = f"noise is enough with {num_colluders} colluders (dp:colluders)"
        models.append(
            Withstands(
                part="values under noise",
                server=uploads.server,
                colluders=min(num_colluders, uploads.colluders),
                limit=limit,
                **shared,
            )
        )
    elif defense.dp is not None:
        models.append(_local(num_clients))
    return tuple(models)


def _local(num_clients: int) -> Withstands:
    """Describe noise that each client adds alone: it protects against any server message and any collusion."""
    return Withstands(part="values under noise", server="active", colluders=num_clients - 1)


def _uploads(defense: Defense, num_clients: int, threshold: int, *, bound: bool, sampled: bool) -> Withstands:
    assert defense.secagg is not None
    limits = [] if defense.suppress else ["a row with one holder in the sum beside the colluders is opened as it is"]
    if not defense.secagg.complete:
        limits.append("one that drops a client from a sum reads which rows it holds off the difference to another sum")
    when = "rounds have other participants, and" if sampled else "where other clients survive from round to round,"
    limits.append(f"{when} the sums of many rounds give each client's mean change of a row")
    neighbours = defense.secagg.neighbours
    if neighbours is not None:
        limits.append("colluders must stand at random places of the graph of masks")
        if not defense.secagg.complete:
            limits.append(
                f"one that lies about who survives opens the sum of as few as {threshold} clients that it chooses"
            )
    if not bound:
        limits.append("one that sends clients different tables, or one of them no rows, reads uploads off the sum")
    elif not defense.psu:
        limits.append("one that gives one name different places reads rows off the sum")
    limits.append("one that sends everybody a table of its choice can leave one client's part in the sum")
    return Withstands(
        part="single uploads",
        server="follows the protocol",
        colluders=max(0, threshold - 2) if neighbours is None else 0,
        threshold=threshold,
        num_clients=num_clients if neighbours is None else neighbours + 1,
        limit="; ".join(limits),
    )
