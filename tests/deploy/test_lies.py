"""A party that lies beside its uploads, and folders that are damaged or old: others' figures stay, and a line says why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.defenses.client import DefendedClient
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy.core.conversation import LONGEST_REASON
from fkgsec.experiments.deploy.core.measure import Measured
from fkgsec.experiments.deploy.core.messages import Answer, Item, Reply, Request, Trained, Validated, encode
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.federation import messages
from fkgsec.protocols.core.rounds import Silence

VICTIM = "hospital-2"
Change = Callable[[Answer], Answer]


def lying(apart: Any, step: str, change: Change) -> Any:
    """The consortium, one of whose parties answers one step otherwise."""

    def fault(stage: str, party: str, request: bytes) -> bytes | None:
        if party != f"client/{VICTIM}":
            return None
        items: list[Item] = msgspec.msgpack.decode(request, type=Request).items
        reply = msgspec.msgpack.decode(apart.parties[VICTIM].answer(request), type=Reply)
        answers = [change(one) if item.step == step else one for item, one in zip(items, reply.answers, strict=True)]
        return encode(msgspec.structs.replace(reply, answers=answers))

    apart.fault = fault
    return apart


def served(apart: Any) -> Record:
    record = apart.serve()
    assert read_record(apart.root / "server" / "record.json").rounds == record.rounds
    return record


def measures(change: Callable[[Measured], Measured]) -> Change:
    return lambda answer: Answer(content=encode(change(msgspec.msgpack.decode(answer.content, type=Measured))))


def with_second_model(said: Measured) -> Measured:
    group = msgspec.structs.replace(said.groups["all"], count=10**15, total=1e15)
    return msgspec.structs.replace(said, groups=said.groups | {"shared": group})


def outside_its_interval(said: Measured) -> Measured:
    mrr = said.figures["mrr"]
    return msgspec.structs.replace(
        said, figures=said.figures | {"mrr": msgspec.structs.replace(mrr, low=mrr.high, high=0.0)}
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda answer: Answer(silence="killed"), "killed"),
        (measures(with_second_model), "all, leaked, clean are due"),
        (measures(outside_its_interval), "inside their intervals"),
    ],
)
def test_a_record_without_the_figures_of_a_party_can_be_read(
    change: Change, reason: str, consortium: Callable[..., Any]
) -> None:
    record = served(lying(consortium(rounds=1, size=600, randomness="operating system"), "measure", change))
    assert list(record.utility_by_client) == ["hospital-1", "hospital-3"]
    (line,) = (line for line in record.protection if line.startswith(f"apart: utility is without {VICTIM}, "))
    assert reason in line
    assert not record.utility_shared


def test_figures_of_an_attack_that_are_no_numbers_are_left_out(consortium: Callable[..., Any]) -> None:
    def endless(answer: Answer) -> Answer:
        figures = msgspec.msgpack.decode(answer.content, type=list[Figure])
        none = msgspec.structs.replace(figures[0].estimate, value=float("inf"), high=float("inf"))
        return Answer(content=encode([msgspec.structs.replace(figures[0], estimate=none)]))

    record = served(lying(consortium(rounds=1, attack=("edges",)), "audit", endless))
    assert {one.victim for one in record.figures} == {"hospital-1", "hospital-3"}


def test_a_loss_that_none_can_have_does_not_hide_the_others(consortium: Callable[..., Any]) -> None:
    record = served(lying(consortium(rounds=1), "train", lambda answer: Answer(content=encode(Trained(1e308)))))
    assert record.rounds[1].loss is not None
    assert 0 < record.rounds[1].loss < 100


@pytest.mark.parametrize("lie", [{"weight": 10**9}, {"num_uploaded": -5}, {"num_uploaded": 10**6}, {"num_upwards": 3}])
def test_a_party_cannot_give_itself_a_weight(lie: dict[str, int], consortium: Callable[..., Any]) -> None:
    def aligns(answer: Answer) -> Answer:
        (frame,) = answer.frames or ()
        return Answer(frames=[messages.encode(msgspec.structs.replace(messages.decode(frame), **lie))])

    with pytest.raises(RunError, match=f"client/{VICTIM} aligned entities with weight"):
        lying(consortium(), "alignment", aligns).train()


def uploads(change: Callable[[Any], Any]) -> Change:
    """A change of each message of an upload."""

    def changed(answer: Answer) -> Answer:
        frames = [messages.encode(change(messages.decode(frame))) for frame in answer.frames or ()]
        return msgspec.structs.replace(answer, frames=frames)

    return changed


def with_factors(value: float, height: int = 1, columns: int = 1, rank: int = 1) -> Callable[[Any], Any]:
    """Low-rank rows whose factors are all this."""

    def made(message: Any) -> Any:
        factors = [torch.full((message.num_rows, *size), value) for size in ((height, rank), (rank,), (columns, rank))]
        return messages.LowRankRows.pack(
            message.round,
            message.sender,
            message.receiver,
            message.table,
            tuple(factors),  # type: ignore[arg-type]
        )

    return made


def wider(message: Any) -> Any:
    if not isinstance(message, messages.SparseRows):
        return message
    return msgspec.structs.replace(message, width=2 * message.width, data=2 * message.data)


@pytest.mark.parametrize(
    ("algorithm", "change", "reason"),
    [
        ("fede-svd", with_factors(1.0), "of (1, 1, 1) width, columns and rank"),
        ("fede-svd", with_factors(1.0, height=32, columns=8, rank=5), "of (256, 8, 5) width, columns and rank"),
        ("fede-svd", lambda message: msgspec.structs.replace(message, height=-1), "width, columns and rank"),
        ("feds", wider, "uploaded rows of entities of width 32; 16 expected"),
    ],
)
def test_an_upload_of_another_width_leaves_the_others_theirs(
    algorithm: str, change: Callable[[Any], Any], reason: str, consortium: Callable[..., Any]
) -> None:
    dim = 128 if algorithm == "fede-svd" else 16
    _, progress = lying(consortium(algorithm=algorithm, dim=dim, rounds=1), "upload", uploads(change)).train()
    assert list(progress.rounds[1].excluded) == [f"client/{VICTIM}"]
    assert reason in progress.rounds[1].excluded[f"client/{VICTIM}"]


def test_changes_below_the_limit_do_not_lead_beyond_it(consortium: Callable[..., Any]) -> None:
    """9e8 in every round: each change is allowed, and the rows that they make are not."""
    large = (9e8 / 5) ** (1 / 3)
    apart = lying(
        consortium(algorithm="fede-svd", dim=128, rounds=8),
        "upload",
        uploads(with_factors(large, height=16, columns=8, rank=5)),
    )
    server, progress = apart.train()
    assert not progress.rounds[1].excluded
    assert "values beyond 1e+09" in progress.rounds[-1].excluded[f"client/{VICTIM}"]
    assert float(server.exchange.server["entities"].rows.abs().max()) < 1.1e9


def test_reasons_are_short_and_fit_for_a_line(consortium: Callable[..., Any]) -> None:
    apart = lying(consortium(rounds=1), "upload", lambda answer: Answer(silence="\x1b[2J\n" * 100_000))
    _, progress = apart.train()
    (reason,) = progress.rounds[1].excluded.values()
    assert len(reason) < LONGEST_REASON + 20
    assert reason.isprintable()


def test_a_damaged_journal_and_a_folder_from_before_are_refused(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=3)
    apart.fault = lambda stage, party, request: Silence("unplugged") if stage.startswith("round 3") else None
    with pytest.raises(RunError, match="no answer"):
        apart.serve()
    folder, before = apart.root / "server", apart.root / "before"
    shutil.copytree(folder, before)
    content = bytearray((folder / "journal.bin").read_bytes())
    content[60] ^= 1
    (folder / "journal.bin").write_bytes(content)
    with pytest.raises(RunError, match=r"journal.bin: damaged at byte 0, and batches follow"):
        apart.serve()
    (folder / "journal.bin").write_bytes(b"")  # as in a backup of when the checkpoint was written
    apart.fault = lambda stage, party, request: None
    with pytest.raises(RunError, match="every party has answered a later request than 2"):
        apart.serve()
    shutil.rmtree(folder)
    before.rename(folder)
    assert len(apart.serve().rounds) == 4


def test_settings_of_attacks_are_refused_before_anything_is_asked(consortium: Callable[..., Any]) -> None:
    apart = consortium(attack=("server-aux",), leak=(0.2,), attack_seed=3)
    with pytest.raises(SpecError, match="leak, attack_seed: attacks of parties apart have no settings"):
        apart.serve()
    assert apart.stages == []


def test_a_party_whose_state_is_damaged_is_not_told_to_forget_it(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=1)
    apart.train()
    (apart.root / VICTIM / "party.safetensors").write_bytes(b"torn")
    with pytest.raises(
        RunError, match=r"party.safetensors: not a whole .* keep the file, and begin another run"
    ) as caught:
        apart.restart(VICTIM)
    assert "delete" not in str(caught.value)


@pytest.mark.parametrize("value", [3.3e38, 1.1e9])
def test_one_huge_number_in_an_upload_leaves_its_party_out_and_ends_nobodys_training(
    value: float, consortium: Callable[..., Any]
) -> None:
    def huge(answer: Answer) -> Answer:
        (frame,) = answer.frames or ()
        message = messages.decode(frame)
        assert isinstance(message, messages.Rows)
        rows = message.unpack().clone()
        rows[0, 0] = value
        spoilt = messages.Rows.pack(message.round, message.sender, message.receiver, message.table, rows)
        return Answer(frames=[messages.encode(spoilt)])

    record = served(lying(consortium(rounds=3), "upload", huge))
    reason = f"its rows of entities have values beyond {1e9:g}"
    assert [entry.excluded for entry in record.rounds[1:]] == [{f"client/{VICTIM}": reason}] * 3
    assert [entry.num_survivors for entry in record.rounds[1:]] == [2, 2, 2]
    assert len(record.utility_by_client) == 3
    assert all(entry.loss is not None and entry.loss < 1e3 for entry in record.rounds[1:])


def few_of(apart: Any, name: str, valid: int, test: int) -> None:
    """Leave a party so many triples of these splits."""
    for split, count in (("valid", valid), ("test", test)):
        path = apart.root / "data" / name / f"{split}.txt"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    apart.restart(name)


def test_a_party_with_few_triples_tells_nothing_of_them(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=2, size=600, randomness="operating system")
    few_of(apart, VICTIM, 3, 3)
    record = served(apart)
    assert list(record.utility_by_client) == ["hospital-1", "hospital-3"]
    (line,) = (line for line in record.protection if line.startswith(f"apart: utility is without {VICTIM}, "))
    assert "it has 3 test triples, fewer than the 10 that were agreed on" in line
    own = [
        msgspec.msgpack.decode(frame, type=Reply)
        for frame in apart.crossed
        if b"client/" + VICTIM.encode() in frame[:99]
    ]
    told = [one.content for reply in own for one in reply.answers if one.content]
    assert encode(Validated(0.0, 0)) in told
    assert encode(Measured(record.best_round, {}, {})) in told
    assert [apart.terms.reveals(count) for count in (0, 1, 9, 10)] == [True, False, False, True]


def test_a_party_with_few_triples_tells_no_figures_of_attacks_on_them(consortium: Callable[..., Any]) -> None:
    """Of the 16 test triples of hospital-3, membership inference takes 8 as members and 8 as others."""
    attacks = ("membership", "edges")
    record = served(consortium(rounds=1, size=600, randomness="operating system", attack=attacks))
    victims = {
        name: {one.victim for one in record.figures if one.attack == name and one.estimate.n} for name in attacks
    }
    assert victims["membership"] == {"hospital-1"}
    assert victims["edges"] == {"hospital-1", "hospital-2", "hospital-3"}
    assert "apart: membership is without hospital-3, which has too few triples for it" in record.protection


def test_a_split_with_a_few_triples_of_one_kind_is_told_as_a_whole(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=1, size=600, randomness="operating system")
    train = (apart.root / "data" / VICTIM / "train.txt").read_text().splitlines(keepends=True)
    test = apart.root / "data" / VICTIM / "test.txt"
    test.write_text(test.read_text() + "".join(train[:3]))  # three of them stand in train, too
    apart.restart(VICTIM)
    record = served(apart)
    assert len(record.utility_by_client) == 3
    (line,) = (line for line in record.protection if line.startswith("apart: figures by split leak are without "))
    assert VICTIM in line
    assert "with fewer than 10 triples of a kind" in line
    assert record.utility_by_leak["clean"]["mrr"].n < record.utility["mrr"].n


def test_a_federation_of_which_nothing_could_be_told_is_not_begun(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=1, randomness="operating system")
    for name in apart.names:
        few_of(apart, name, 3, 9)
    with pytest.raises(RunError, match="every party has fewer than 10 test triples"):
        apart.serve()
    assert not (apart.root / "server" / "record.json").exists()


def test_parties_go_on_beside_one_that_overflows_the_ring(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = consortium(clients=5, size=400, defense="psu,secagg", rounds=3)
    begin, bad = DefendedClient.begin, apart.terms.addresses[1]

    def overflowing(self: DefendedClient, round: int, table: str, rows: Any) -> Any:
        part = begin(self, round, table, rows)
        if self.party == bad and round == 1:
            self.parts[table] = part._replace(elements=part.elements + part.elements.dtype.type(2**30))
        return self.parts[table]

    monkeypatch.setattr(DefendedClient, "begin", overflowing)
    _, progress = apart.train()
    assert [entry.num_survivors for entry in progress.rounds] == [0, 5, 5, 5]
    assert [entry.num_kept_rows > 0 for entry in progress.rounds] == [False, True, False, False]
    assert not any(entry.excluded for entry in progress.rounds)
