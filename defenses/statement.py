"""Human-readable statement of a defense's guarantees, and the same as typed values for records and policies."""

from __future__ import annotations

from fkgsec.defenses.privacy import composed, released
from fkgsec.defenses.server_models import withstood
from fkgsec.defenses.terms import Terms
from fkgsec.federation.protection import Protection

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
