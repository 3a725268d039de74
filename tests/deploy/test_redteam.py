"""Attempts of a malicious server to read one deployed party's rows. Each test describes an attack that must fail."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.defenses import rounds as defended_rounds
from fkgsec.defenses.client import sum_setting
from fkgsec.defenses.statement import active_server, statement
from fkgsec.exchange import Uploaded
from fkgsec.experiments.deploy.agreement import SECRET
from fkgsec.experiments.deploy.core.messages import Trained, decode
from fkgsec.experiments.deploy.server import Apart, Server
from fkgsec.federation import messages
from fkgsec.federation.messages import SERVER, client_party
from fkgsec.federation.protection import Protection
from fkgsec.protocols import secagg
from fkgsec.protocols.core.rounds import Silence
from fkgsec.protocols.secagg import Setting, safe_threshold
from fkgsec.protocols.secagg import server as summing
from fkgsec.protocols.secagg.bindings import View
from fkgsec.protocols.secagg.messages import Survivors

TINY_VALUE = 1e-30
"""ComplEx has gradients in proportion to its rows, and Adam's epsilon makes tiny steps of tiny gradients: rows of this size are
still below 1e-20 after three steps. They change, so a client that asks whether training changed any row is content."""
LEARNING = {"learning_rate": 0.001, "batch_size": 512, "num_negatives": 64}
ONE_BATCH = LEARNING | {"size": 1200, "clients": 5, "rounds": 8, "model": "complex"}
CLOSE = 1e-3
DATA = Path(os.environ.get("FKGSEC_DATA", ""))
needs_data = pytest.mark.skipif(not (DATA / "UMLS").is_dir(), reason="FKGSEC_DATA has no UMLS")


def aligned(apart: Any) -> Server:
    """A server that has aligned the parties."""
    folder = apart.root / "server"
    folder.mkdir()
    server = Server(apart.terms, apart.ask, folder)
    server.align()
    return server


def started(apart: Any, scale: float = 0.0) -> tuple[Server, str, Tensor]:
    """A server that has aligned the parties and sent the first table, its own choice if it gives a scale."""
    server = aligned(apart)
    (table,) = server.exchange.server
    if scale:
        rows = server.exchange.server[table].rows
        server.exchange.server[table].rows = scale * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    server.broadcast(0)
    return server, table, server.exchange.server[table].rows.clone()


def send(server: Server, round: int, table: str, content: Tensor, receivers: Sequence[str], *, failed: bool) -> None:
    """Send these receivers a table, and all others its commitment; `failed`: say that the round opened no sum."""
    central = server.exchange.central  # type: ignore[attr-defined]
    if failed:
        central.begin(table)
    contents, told = dict.fromkeys(receivers, content), central.commit(table, content)
    steps = defended_rounds.server_broadcast(central, round, table, contents, told)
    server.talk.drive(steps, "broadcast", round, table)


def num_read(server: Server, apart: Any, victim: str, table: str, round: int, sent: Tensor) -> int:
    """How many rows with other holders sum - (holders - 1) * sent reads within 1e-3, of those that training moved further."""
    opened = [one for one in server.transcript.opened(round) if one.total and one.table == table]
    if not opened or client_party(victim) not in opened[0].survivors:
        return 0
    total, holders = opened[0].sums()
    party = apart.parties[victim]
    num_uploaded = party.tables[table].holding.num_uploaded
    places = party.defended.places[table].numpy()[:num_uploaded]
    rows = party.task.rows(table, 0)[:num_uploaded].double().numpy()
    read = total[places] - (holders[places] - 1)[:, None] * sent.double().numpy()[places]
    exact = (np.abs(read - rows).max(axis=1) < CLOSE) & (
        np.abs(rows - sent.double().numpy()[places]).max(axis=1) > CLOSE
    )
    shared = holders[places] > 1
    return int(exact[shared].sum())


TRAINED_APART = {
    "fede": {"defense": "psu,secagg"},
    "fedlu": {"defense": "psu,secagg", "algorithm": "fedlu"},
    "fedec": {"defense": "psu,secagg", "algorithm": "fedec"},
    "two parties": {"defense": "psu,secagg", "clients": 2},
    "participation": {"defense": "psu,secagg", "participation": 0.6, "rounds": 20},
    "transe, first table as agreed": {
        "defense": "psu,secagg",
        "model": "transe",
        "learning_rate": 1e-4,
        "rounds": 60,
    },
}


SLOW = {"fedec": [pytest.mark.slow], "participation": [pytest.mark.slow]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in TRAINED_APART])
def test_a_victim_that_trains_more_rounds_than_the_others_is_not_read_off_the_sum(
    name: str, consortium: Callable[..., Any]
) -> None:
    """The server asks the victim alone to train in all rounds but the last and sends no broadcast. Then all train and upload."""
    options = ONE_BATCH | TRAINED_APART[name]
    apart = consortium(**options)
    victim, honest_table = apart.names[0], options["model"] == "transe"
    server, table, sent = started(apart, 0.0 if honest_table else TINY_VALUE)
    own = [r for r in range(1, options["rounds"] + 1) if 0 in server.participants(r)]
    for round in own[:-1]:
        server.train(round, [0], lambda: None)()
    server.train(own[-1], server.participants(own[-1]), lambda: None)
    server.upload(own[-1], server.participants(own[-1]))
    assert num_read(server, apart, victim, table, own[-1], sent) == 0


def test_rounds_that_the_server_calls_failed_let_no_victim_train_more_than_the_others(
    consortium: Callable[..., Any],
) -> None:
    """As above under `suppress`, where every party receives a broadcast in each round and keeps its own rows."""
    apart = consortium(**(ONE_BATCH | {"defense": "psu,secagg,suppress:t=2"}))
    server, table, sent = started(apart, TINY_VALUE)
    for round in range(1, 8):
        server.train(round, [0], lambda: None)()
        send(server, round, table, sent, server.agreement.addresses, failed=True)
    server.train(8, server.participants(8), lambda: None)
    server.upload(8, server.participants(8))
    assert num_read(server, apart, apart.names[0], table, 8, sent) == 0


@needs_data
def test_rows_that_were_withheld_and_a_failed_round_give_no_party_another_table(
    consortium: Callable[..., Any],
) -> None:
    """Under `suppress` the victim alone receives the rows of round 1. The server then says that round 2 failed: the victim keeps
    its own rows, the others take over the rows that they missed, from a table of the server's choice. All histories agree.
    """
    apart = consortium(
        **(ONE_BATCH | {"data": "Nations", "size": None, "rounds": 3, "defense": "psu,secagg,suppress:t=2"})
    )
    victim = apart.names[0]
    server, table, _ = started(apart)
    places = server.participants(1)
    server.train(1, places, lambda: None)
    server.upload(1, places)
    send(server, 1, table, server.exchange.server[table].rows.clone(), [client_party(victim)], failed=False)
    server.train(2, places, lambda: None)
    chosen = torch.full_like(server.exchange.server[table].rows, TINY_VALUE)
    send(server, 2, table, chosen, server.agreement.addresses, failed=True)
    server.train(3, places, lambda: None)
    server.upload(3, places)
    assert num_read(server, apart, victim, table, 3, chosen) == 0


def test_losses_do_not_tell_which_party_holds_a_row(consortium: Callable[..., Any]) -> None:
    """A table with one large row in each round, the same for all: the training loss of each holder shows it."""
    options = ONE_BATCH | {"rounds": 21, "defense": "psu,secagg"}
    apart = consortium(randomness="operating system", **options)
    server, table, first = started(apart, 0.1)
    losses: list[dict[str, float]] = []
    for round in range(1, 22):
        posted = server.talk.post_all("train", round=round)
        answers = {party: one() for party, one in posted.items()}
        losses.append(
            {party: decode(one.content, Trained).loss or 0.0 for party, one in answers.items() if one.content}
        )
        chosen = first.clone()
        chosen[round - 1] = 15.0
        server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
        send(server, round, table, chosen, server.agreement.addresses, failed=False)
    guesses = [
        {party: one.get(party, 0.0) > losses[0].get(party, 0.0) + 0.05 for party in server.agreement.addresses}
        for one in losses[1:]
    ]
    check_guesses(guesses, apart, table)


def test_refusals_do_not_tell_which_party_holds_a_row(consortium: Callable[..., Any]) -> None:
    """A table of zeros but for one row in each round, the same for all: training changes no row of a party without that
    row, which then refuses to upload."""
    apart = consortium(**(ONE_BATCH | {"rounds": 21, "defense": "psu,secagg"}))
    server, table, first = started(apart, TINY_VALUE)
    guesses: list[dict[str, bool]] = []
    for round in range(1, 21):
        chosen = torch.zeros_like(first)
        chosen[round - 1] = 0.5
        server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
        send(server, round, table, chosen, server.agreement.addresses, failed=False)
        server.train(round + 1, server.participants(round + 1), lambda: None)
        (outcome,) = server.upload(round + 1, server.participants(round + 1))
        guesses.append({party: party not in outcome.excluded for party in server.agreement.addresses})
    check_guesses(guesses, apart, table)


def check_guesses(guesses: list[dict[str, bool]], apart: Any, table: str) -> None:
    """By round and party whether it holds the row of that round: no better than to say the same of all, within 10 points."""
    truth, said = [], []
    for row, guess in enumerate(guesses):
        for party, holds in guess.items():
            places = apart.parties[party.removeprefix("client/")].defended.places[table]
            truth.append(row in places.tolist())
            said.append(holds)
    most = max(np.mean(truth), 1 - np.mean(truth))
    assert np.mean(np.equal(truth, said)) <= most + 0.1


def test_a_step_without_a_table_is_taken_once_whatever_table_the_request_names(consortium: Callable[..., Any]) -> None:
    apart = consortium(defense="psu,secagg", rounds=2)
    server, table, _ = started(apart)
    party = client_party(apart.names[0])
    assert not server.talk.post(party, "train", round=1)().silence
    again = server.talk.post(party, "train", round=1, table=table)()
    assert again.silence


SUPPRESSED = ONE_BATCH | {"rounds": 3, "defense": "psu,secagg,suppress:t=2"}


def opened_alone(server: Server, apart: Any, victim: str, table: str, round: int) -> float:
    """The share of the victim's rows that the sum of a round gives as the victim uploaded them, within 1e-3."""
    (opened,) = (one for one in server.transcript.opened(round) if one.total and one.table == table)
    total, holders = opened.sums()
    party = apart.parties[victim]
    num_uploaded = party.tables[table].holding.num_uploaded
    places = party.defended.places[table].numpy()[:num_uploaded]
    rows = party.task.rows(table, 0)[:num_uploaded].double().numpy()
    alone = (np.abs(total[places] - rows).max(axis=1) < CLOSE) & (holders[places] == 1)
    return float(alone.mean())


def share_held_alone(apart: Any, victim: str, table: str) -> float:
    """The share of the victim's rows that no other party holds."""
    others = set[int]().union(*(held_by(apart, name, table) for name in apart.names if name != victim))
    own = held_by(apart, victim, table)
    return len(own - others) / len(own)


def held_by(apart: Any, name: str, table: str) -> set[int]:
    """The numbers of the rows that a party holds."""
    return set(apart.parties[name].defended.places[table].tolist())


def test_rows_that_a_sum_left_out_are_local_for_parties_outside_the_sum_too(consortium: Callable[..., Any]) -> None:
    """Under `suppress` the server keeps the victim out of the sum of round 1 and says that no row is to be sent. If these rows
    became local for the parties in the sum alone, the sum of round 2 would be the victim's upload."""
    apart = consortium(**SUPPRESSED)
    victim = apart.names[0]
    server, table, _ = started(apart)
    central: Any = server.exchange.central  # type: ignore[attr-defined]
    central.rows_to_send = lambda round, table, sent: np.full_like(sent, round > 1)
    central.barred[client_party(victim)] = "left out"
    server.train(1, server.participants(1), lambda: None)
    (outcome,) = server.upload(1, server.participants(1))
    assert outcome.num_survivors == 4
    server.broadcast(1)
    central.barred.clear()
    server.train(2, server.participants(2), lambda: None)
    server.upload(2, server.participants(2))
    assert opened_alone(server, apart, victim, table, 2) <= share_held_alone(apart, victim, table)


@pytest.mark.parametrize("options", [{}, {"clients": 2, "model": "transe"}], ids=str)
def test_a_round_is_failed_for_all_parties_or_for_none(options: dict[str, Any], consortium: Callable[..., Any]) -> None:
    """As above with all parties in the sum. The server tells the victim alone that it failed."""
    apart = consortium(**(SUPPRESSED | options))
    victim = apart.names[0]
    server, table, _ = started(apart)
    central: Any = server.exchange.central  # type: ignore[attr-defined]
    central.rows_to_send = lambda round, table, sent: np.full_like(sent, round > 1)
    places = server.participants(1)
    server.train(1, places, lambda: None)
    server.upload(1, places)
    content = server.exchange.server[table].rows.clone()
    contents = dict.fromkeys(server.agreement.addresses, content)
    server.talk.drive(
        telling_failed(
            client_party(victim),
            1,
            table,
            defended_rounds.server_broadcast(central, 1, table, contents, central.commit(table, content)),
        ),
        "broadcast",
        1,
        table,
    )
    server.train(2, places, lambda: None)
    (outcome,) = server.upload(2, places)
    if outcome.num_survivors:
        assert opened_alone(server, apart, victim, table, 2) <= share_held_alone(apart, victim, table)


def telling_failed(victim: str, round: int, table: str, steps: Any) -> Any:
    """A server's broadcast that tells one party that the round opened no sum."""
    ask = next(steps)
    failed = defended_rounds.Seal(round, table).message(SERVER, victim, defended_rounds.FAILED, b"")
    yield ask._replace(requests={**ask.requests, victim: (failed, *ask.requests[victim])})
    yield from steps


def test_a_broadcast_that_a_party_refuses_leaves_it_without_rows(consortium: Callable[..., Any]) -> None:
    """Under `suppress` the victim alone trains in six rounds, after which the server withholds the rows from it. Then the server
    sends all parties a table without saying which rows are new. A party that took this for the rows of all would upload what
    it trained in seven rounds, next to uploads of others that are the server's table."""
    apart = consortium(**(SUPPRESSED | {"rounds": 8}))
    victim = client_party(apart.names[0])
    server, table, sent = started(apart, TINY_VALUE)
    others = [party for party in server.agreement.addresses if party != victim]
    for round in range(1, 7):
        server.train(round, [0], lambda: None)()
        send(server, round, table, sent, others, failed=True)
    central: Any = server.exchange.central  # type: ignore[attr-defined]
    told = central.commit(table, sent)
    for party in server.agreement.addresses:
        frames = [messages.encode(central.message(7, table, party, sent))]
        server.talk.post(party, "broadcast", round=7, table=table, frames=frames, lasting=False)
    refused = server.talk.post_all("validate", round=7)  # a request with a step that is answered, so that it is sent
    assert all(posted().silence for posted in refused.values())
    central.log.extend(table, 7, told)
    server.train(8, server.participants(8), lambda: None)
    server.upload(8, server.participants(8))
    assert num_read(server, apart, apart.names[0], table, 8, sent) == 0


# What is stated as a limit is read as stated.


@pytest.mark.parametrize("suppress", [False, True])
def test_one_table_for_all_leaves_one_party_in_the_sum_as_the_statement_says(
    suppress: bool, consortium: Callable[..., Any]
) -> None:
    """Rows that the victim alone holds are large and all others tiny, so that only the victim's rows move. Under `suppress`
    parties do not take over rows that one of them holds."""
    apart = consortium(**(ONE_BATCH | {"rounds": 2, "defense": f"psu,secagg{',suppress:t=2' * suppress}"}))
    server, table, _ = started(apart)
    places = server.participants(1)
    server.train(1, places, lambda: None)
    server.upload(1, places)
    victim = max(apart.names, key=lambda name: share_held_alone(apart, name, table))
    others = set[int]().union(*(held_by(apart, name, table) for name in apart.names if name != victim))
    chosen = torch.full_like(server.exchange.server[table].rows, TINY_VALUE)
    chosen[sorted(held_by(apart, victim, table) - others)] = 1.0
    server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
    send(server, 1, table, chosen, server.agreement.addresses, failed=False)
    server.train(2, places, lambda: None)
    server.upload(2, places)
    assert (num_read(server, apart, victim, table, 2, chosen) > 50) != suppress
    assert "one table of the server's choice for all clients" in active_server(apart.parties[victim].defended.terms)


def test_without_private_union_a_server_places_one_party_s_rows_alone_as_the_statement_says(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party knows where its own rows stand in the table, and nothing of the others."""
    apart = consortium(**(LEARNING | {"defense": "secagg", "rounds": 1}))
    victim, place = client_party(apart.names[0]), Apart.place

    def placing(exchange: Apart, table: str) -> None:
        shared = exchange.server[table]
        first, held = len(shared.names), shared.holdings[victim].tolist()
        shared.names = [*shared.names, *(shared.names[row] for row in held)]
        shared.holdings[victim] = torch.arange(first, first + len(held))
        place(exchange, table)

    monkeypatch.setattr(Apart, "place", placing)
    server, table, _ = started(apart)
    server.train(1, server.participants(1), lambda: None)
    server.upload(1, server.participants(1))
    assert opened_alone(server, apart, apart.names[0], table, 1) == 1
    assert "a place for one client's rows" in active_server(apart.parties[apart.names[0]].defended.terms)


def test_feds_reads_a_party_that_alone_trains_more_rounds_as_the_statement_says(consortium: Callable[..., Any]) -> None:
    """FedS sends no table after each round, so its parties cannot tell a round that failed from one that the server left out."""
    settings = {"sparse_rounds": 6, "model": "transe", "learning_rate": 1e-4, "rounds": 60}
    apart = consortium(**(ONE_BATCH | settings | {"algorithm": "feds", "defense": "secagg"}))
    victim = apart.names[0]
    server, table, sent = started(apart)
    for round in range(1, 60):
        server.train(round, [0], lambda: None)()
    server.train(60, server.participants(60), lambda: None)
    server.upload(60, server.participants(60))
    assert num_read(server, apart, victim, table, 60, sent) > 20
    assert "rounds in which the server asks one client alone to train" in active_server(
        apart.parties[victim].defended.terms
    )


def test_one_table_in_many_rounds_with_other_participants_gives_each_upload_as_the_statement_says(
    consortium: Callable[..., Any],
) -> None:
    """Of three parties two take part in each round, in which the server sends the first table again. Least squares over the
    sums give the mean of the victim's uploads, although all participants must be in a sum."""
    defense = "psu,secagg:complete=true"
    options = LEARNING | {"size": 1200, "clients": 3, "rounds": 24, "participation": 0.6, "defense": defense}
    apart = consortium(**options)
    server, table, sent = started(apart)
    base = sent.double().numpy()
    present, changes, holders, uploads = [], [], [], []
    for round in range(1, 25):
        places = server.participants(round)
        server.train(round, places, lambda: None)
        server.upload(round, places)
        (opened,) = (one for one in server.transcript.opened(round) if one.total)
        total, counts = opened.sums()
        present.append([float(place in places) for place in range(3)])
        holders.append(counts.astype(float))
        changes.append(total - counts[:, None] * base)
        if 0 in places:
            uploads.append(apart.parties[apart.names[0]].task.rows(table, 0).double().numpy().copy())
        server.exchange.central.opened[table] = True  # type: ignore[attr-defined]
        send(server, round, table, sent, server.agreement.addresses, failed=False)
    party = apart.parties[apart.names[0]]
    own = party.defended.places[table].numpy()[: party.tables[table].holding.num_uploaded]
    holds = np.rint(np.linalg.lstsq(np.array(present), np.array(holders))[0])
    assert holds[0, own].all()
    shared = own[holds[:, own].sum(0) > 1]
    found = [np.linalg.lstsq(np.array(present) * holds[:, row], np.stack(changes)[:, row])[0][0] for row in shared]
    true = np.mean(uploads, axis=0)[: len(own)][holds[:, own].sum(0) > 1] - base[shared]
    assert np.sum(found * true) / np.linalg.norm(found) / np.linalg.norm(true) > 0.98
    assert "the same table in many rounds with other participants" in active_server(party.defended.terms)


@pytest.mark.parametrize("randomness", ["copied secrets", "laboratory"])
def test_two_runs_of_which_one_lacks_a_party_tell_its_rows_as_the_statement_says(
    randomness: str, consortium: Callable[..., Any]
) -> None:
    """Each sum has all parties of its run. The second run starts from the same rows. Counts of holders tell which rows the party
    that it lacks holds; the difference of the sums is that party's upload if training draws from one seed. Copies of the parties'
    secrets and one name for both runs make no such seed."""
    copied, randomness = randomness == "copied secrets", randomness.replace("copied secrets", "operating system")
    options = LEARNING | {"size": 1200, "clients": 5, "rounds": 1, "defense": "psu,secagg:complete=true"}
    apart = consortium("all", randomness=randomness, **options)
    second = consortium("without", randomness=randomness, **options)
    victim = apart.names[-1]
    second.names = apart.names[:-1]
    identities = {name: key for name, key in second.terms.identities.items() if name != victim}
    second.terms = msgspec.structs.replace(second.terms, parties=tuple(second.names), identities=identities)
    if copied:
        for name in second.names:
            shutil.rmtree(second.root / name)
            (second.root / name).mkdir(mode=0o700)
            shutil.copy2(apart.root / name / SECRET, second.root / name / SECRET)
        run, identities = apart.terms.run, {name: apart.terms.identities[name] for name in second.names}
        second.terms = msgspec.structs.replace(second.terms, run=run, identities=identities)
    second.parties = {name: second.party(name) for name in second.names}
    first: dict[str, Tensor] = {}
    sums = []
    for run in (apart, second):
        server = aligned(run)
        (table,) = server.exchange.server
        shared = server.exchange.server[table]
        first = first or dict(zip(shared.names, shared.rows.clone(), strict=True))
        shared.rows = torch.stack([first[name] for name in shared.names])
        server.broadcast(0)
        server.train(1, server.participants(1), lambda: None)
        server.upload(1, server.participants(1))
        (opened,) = (one for one in server.transcript.opened(1) if one.total)
        total, holders = opened.sums()
        sums.append({name: (total[row], holders[row]) for row, name in enumerate(shared.names)})
    of_all, without = sums
    nothing = (0.0, 0)
    holding = apart.parties[victim].tables[table].holding
    held = holding.names[: holding.num_uploaded]
    assert {name for name, (_, count) in of_all.items() if count > without.get(name, nothing)[1]} == set(held)
    read = np.array([of_all[name][0] - without.get(name, nothing)[0] for name in held])
    rows = apart.parties[victim].task.rows(table, 0)[: len(held)].double().numpy()
    shared_rows = np.array([of_all[name][1] > 1 for name in held])
    exact = np.abs(read - rows)[shared_rows].max(axis=1) < CLOSE
    assert len(exact) > 50
    assert exact.all() if randomness == "laboratory" else not exact.any()
    assert "a second run over the same data with different parties" in active_server(
        apart.parties[victim].defended.terms
    )


@pytest.mark.parametrize(
    ("masks", "count", "complete"), [("neighbours=3", 4, True), ("neighbours=4,threshold=3", 3, False)]
)
def test_over_a_regular_graph_of_masks_a_lying_server_opens_small_sums_unless_all_must_be_in_them(
    masks: str, count: int, complete: bool, consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party sees its neighbors alone and believes the server how many others survive."""
    defense = f"secagg:{masks},complete={str(complete).lower()}"
    apart = consortium(size=1200, clients=20, rounds=1, defense=defense)
    server, table, _ = started(apart)
    central: Any = server.exchange.central  # type: ignore[attr-defined]
    setting = session_of(server, table)
    assert setting.fewest_survivors == (20 if complete else safe_threshold(20))
    outcome = lie_about_survivors(server, apart, smallest_group(setting, count), setting, monkeypatch)
    assert outcome.num_survivors == (0 if complete else count)
    stated = f"which opens the sum of as few as {central.terms.threshold(20)} clients" in active_server(central.terms)
    assert stated != complete


def session_of(server: Server, table: str) -> Setting:
    """The session of the sum of round 1 after what the server says that it sent."""
    central: Any = server.exchange.central  # type: ignore[attr-defined]
    num_rows = len(central.tables[table].shared.names)
    return sum_setting(central.terms, central.log, "rows", 1, table, server.agreement.addresses, num_rows)


def lie_about_survivors(
    server: Server, apart: Any, group: Sequence[str], setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> Uploaded:
    """Round 1 with a server that drops all parties but a group, and tells these that as many survive as must."""
    claimed = setting.fewest_survivors
    monkeypatch.setattr(summing, "_require", lambda *counted: None)
    monkeypatch.setattr(summing, "Survivors", lambda *told: Survivors(*told[:4], num_survivors=claimed))
    monkeypatch.setattr(summing, "View", lambda *seen: View(seen[0], seen[1], claimed, seen[3]))
    apart.fault = lambda stage, party, request: (
        Silence("left out") if stage.endswith("receive") and party not in group else None
    )
    server.train(1, server.participants(1), lambda: None)
    (outcome,) = server.upload(1, server.participants(1))
    return outcome


def smallest_group(setting: Setting, count: int) -> tuple[str, ...]:
    """That many parties, each with a threshold of them around it."""

    def is_closed(group: Sequence[str]) -> bool:
        return all(len(setting.around(party) & set(group)) >= setting.threshold for party in group)

    return next(filter(is_closed, itertools.combinations(setting.parties, count)))


def test_a_party_of_fede_svd_that_is_sent_no_change_takes_part_in_no_further_sum(
    consortium: Callable[..., Any],
) -> None:
    """The server sends all parties but the victim the first table again and again. The victim trains on from its own rows."""
    settings = {"algorithm": "fede-svd", "model": "transe", "learning_rate": 1e-4, "dim": 128, "rank": 8, "rounds": 30}
    apart = consortium(**(ONE_BATCH | settings | {"defense": "psu,secagg"}))
    victim = apart.names[0]
    server, table, sent = started(apart)
    others = [party for party in server.agreement.addresses if party != client_party(victim)]
    change = server.exchange.servers[table].codec
    for round in range(1, 30):
        server.train(round, [0], lambda: None)()
        change.publish(torch.zeros_like(sent), None)  # type: ignore[arg-type]
        content = server.exchange.central.content(round, table)  # type: ignore[attr-defined]
        send(server, round, table, content, others, failed=False)
    server.train(30, server.participants(30), lambda: None)
    (outcome,) = server.upload(30, server.participants(30))
    assert num_read(server, apart, victim, table, 30, sent) == 0
    assert "every client is sent each change" in outcome.excluded[client_party(victim)]


@pytest.mark.parametrize("algorithm", ["fede", "fede-svd"])
def test_a_party_that_falls_silent_costs_one_round(algorithm: str, consortium: Callable[..., Any]) -> None:
    dim = 128 if algorithm == "fede-svd" else 16
    apart = consortium(algorithm=algorithm, defense="psu,secagg", rounds=3, dim=dim)
    silent = client_party(apart.names[0])
    apart.fault = lambda stage, party, request: (
        Silence("unplugged") if party == silent and stage == "round 1: mask" else None
    )
    _, progress = apart.train()
    assert [entry.num_survivors for entry in progress.rounds[1:]] == [0, 3, 3]


# What one party can do to others is as stated.


SECAGG = {"clients": 5, "size": 400, "defense": "secagg", "rounds": 2, "eval_every": 2}


def test_a_party_that_counts_itself_several_times_makes_rare_rows_cross_as_the_statement_says(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says t - 1 holders at every row, and sends no row. The broadcast then has each row of one other holder as uploaded."""
    apart = consortium(**(LEARNING | {"size": 1200, "clients": 5, "rounds": 1, "defense": "psu,secagg,suppress:t=3"}))
    liar, make = client_party(apart.names[1]), secagg.client_round

    def lying(setting: Setting, party: str, identity: Any, draw: Any, values: Any) -> Any:
        counts = [vector.name for vector in setting.vectors] == ["holders"]
        factor = 2 if counts else 0
        lie = lambda: {name: np.full_like(one, factor) for name, one in values().items()}  # noqa: E731
        return make(setting, party, identity, draw, lie if party == liar else values)

    monkeypatch.setattr(secagg, "client_round", lying)
    server, table, _ = started(apart)
    server.train(1, server.participants(1), lambda: None)
    server.upload(1, server.participants(1))
    sent = server.exchange.server[table].rows.double().numpy()
    victims = [name for name in apart.names if client_party(name) != liar]
    num_rare = num_exact = 0
    for victim in victims:
        others = set[int]().union(*(held_by(apart, name, table) for name in victims if name != victim))
        party = apart.parties[victim]
        for place, row in zip(party.defended.places[table].tolist(), party.task.rows(table, 0).numpy(), strict=True):
            num_rare += place not in others
            num_exact += place not in others and np.abs(sent[place] - row).max() < CLOSE
    assert num_exact == num_rare > 50
    terms = apart.parties[apart.names[0]].defended.terms
    assert "one client that counts itself as 2 holders" in " ".join(statement(terms, Protection()))


def test_a_party_that_leaves_between_counting_and_sending_is_named(consortium: Callable[..., Any]) -> None:
    apart = consortium(**(SECAGG | {"defense": "secagg,suppress:t=2"}))
    silent = client_party(apart.names[1])
    apart.fault = lambda stage, party, request: (
        Silence("unplugged") if party == silent and stage.endswith("unmask") else None
    )
    _, progress = apart.train()
    for entry in progress.rounds[1:]:
        assert entry.num_survivors == 0
        assert entry.excluded == {silent: "entities: unplugged"}


@needs_data
def test_the_mean_of_rows_that_every_holder_changes_alike_equals_each_upload(consortium: Callable[..., Any]) -> None:
    """An honest run is enough: Adam's first step moves every value by the learning rate."""
    options = {"data": "Nations", "partition": "relations", "size": None, "clients": 2, "rounds": 1, "model": "transe"}
    apart = consortium("alike", randomness="laboratory", defense="psu,secagg", **(LEARNING | options))
    server, table, sent = started(apart)
    server.train(1, server.participants(1), lambda: None)()
    server.upload(1, server.participants(1))
    (opened,) = (one for one in server.transcript.opened(1) if one.total)
    total, holders = opened.sums()
    party = apart.parties[apart.names[0]]
    num_uploaded = party.tables[table].holding.num_uploaded
    places = party.defended.places[table].numpy()[:num_uploaded]
    uploads = party.task.rows(table, 0)[:num_uploaded].double().numpy()
    moved = np.abs(uploads - sent.double().numpy()[places]).max(axis=1) > CLOSE
    exact = np.abs(total[places] / holders[places][:, None] - uploads).max(axis=1) < CLOSE
    assert (exact & moved & (holders[places] > 1)).any()
    assert "rows that every holder's training changes in the same way" in active_server(party.defended.terms)
