"""State machine of a client: which steps of a run it accepts, in which order, and which rounds' sums it avoids.

    order = ClientOrder(client_index=0, num_clients=5, options=options, tables=("entities",))
    order.check("train", 3)                          # raises `OrderError` if the step is not due
    ...                                              # the client trains
    order.mark("train", 3)
    order.training_changed(3, changed=True)

A server that follows the protocol never meets a refusal. Any other server could make clients upload rows that it knows. For
example, it asks four of five clients to upload without training: they upload its broadcast, and the sum minus four times the
broadcast is the fifth client's upload. It could also have clients measure table after table, or add the same noise twice.

The machine withstands both. A run is one sequence of phases (`STEPS`), and a client never goes back in it. It uploads in a round
only if it trained in that round, if it received no broadcast since, and if the training changed its rows. Between two trainings
of rounds with an exchange it must have received a broadcast: a client that trained for many rounds would differ from the others
by far more than they do from each other, and the sum would show its rows. A client that refuses
a step of a round takes part in no sum of that round.

Deployed clients (`fkgsec.experiments.deploy.party`) and simulated ones (`fkgsec.federation.loop`) run the same machine.
`tests/deploy/test_order.py` drives it with arbitrary requests and asserts that the server knows no client's summand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from fkgsec.errors import RunError
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, Table


class OrderError(RunError):
    """A step that is not due in the client's state."""


When = Literal["before", "rounds", "exchanges", "own rounds", "own exchanges", "checks", "end"]
"""The rounds in which a step is accepted: 0 only; 1 to the last; 0 and those in which tables are exchanged; those in which the
client takes part; of these, those in which tables are exchanged; those in which models are validated; after the last."""


class Step(NamedTuple):
    """Row of the state machine.

    Attributes:
        phase: position within a round. A client never goes back to an earlier phase of a round or to an earlier round.
        when: rounds in which the step is accepted.
        once: whether it is accepted once per table and round. An upload takes several messages.
        per_table: whether it belongs to one table. Other steps ignore the name of a table.
    """

    phase: int
    when: When
    once: bool = True
    per_table: bool = False


STEPS: dict[str, Step] = {
    "hello": Step(0, "before", once=False),
    "alignment": Step(0, "before", once=False, per_table=True),
    "union": Step(0, "before", once=False, per_table=True),  # several messages; `enter_union` lets a client enter one
    "place": Step(0, "before", per_table=True),
    "train": Step(1, "own rounds"),
    "upload": Step(3, "own exchanges", once=False, per_table=True),
    "listen": Step(3, "exchanges", per_table=True),
    "broadcast": Step(4, "exchanges", per_table=True),
    "validate": Step(5, "checks"),  # `VALIDATE_AS_TRAINED` where models are judged before the broadcast
    "candidate": Step(6, "rounds", once=False),
    "measure": Step(7, "end", once=False),
    "audit": Step(7, "end", once=False),
}
"""All steps except `keep`. `keep` selects a candidate, changes no rows, and is accepted while the next round runs."""
VALIDATE_AS_TRAINED = 2  # phase


class Position(msgspec.Struct):
    """Position of a client in a run; it must survive a restart.

    Attributes:
        round, phase: of the latest accepted step.
        last: by step and table, the latest round in which it was accepted.
        unchanged: the first round whose training changed no row of a shared table; 0: none.
        refused: the latest round in which a step was refused; 0: none.
    """

    round: int = 0
    phase: int = 0
    last: dict[str, int] = {}
    unchanged: int = 0
    refused: int = 0


class ClientOrder:
    """The state machine of one client.

    Args:
        client_index: position among the clients of the federation.
        num_clients: of the federation.
        options: of the run; they say who takes part in which round, and when tables are exchanged and validated.
        tables: the shared tables.
        sums: whether uploads are hidden in sums. Only then does an upload that the server knows expose another client's.
        always_sent: whether a broadcast follows each exchange, also one that opened no sum (not so for FedS).
        after_run: whether this is the single round after a run in which clients unlearn, for which the options name no
            participants.
    """

    def __init__(
        self,
        client_index: int,
        num_clients: int,
        options: RunOptions,
        tables: Sequence[Table],
        *,
        sums: bool,
        always_sent: bool = True,
        after_run: bool = False,
    ) -> None:
        self.client_index, self.num_clients, self.options = client_index, num_clients, options
        self.tables, self.sums, self.after_run = tuple(tables), sums, after_run
        self.always_sent = always_sent
        # Private models, too, are validated as training left them: a broadcast does not change them.
        as_trained = options.evaluates_before_broadcast or RECIPES[options.algorithm].private != "none"
        self._steps = STEPS | (
            {"validate": STEPS["validate"]._replace(phase=VALIDATE_AS_TRAINED)} if as_trained else {}
        )
        self.position = Position()

    def check(self, step: str, round: int, table: str = "") -> None:
        """Raise `OrderError` if a step is not due. A refused step excludes the client from all sums of the round.

        Args:
            step: key of `STEPS`, or "keep".
            table: name of the table, for steps of one table.
        """
        try:
            self._check(step, round, table)
        except OrderError:
            # Only real rounds count: a request with an absurd round must not exclude the client from all sums.
            if 0 < round <= self.options.rounds:
                self.position.refused = max(self.position.refused, round)
            raise

    def mark(self, step: str, round: int, table: str = "") -> None:
        """Record that a step was taken.

        Args:
            step, round, table: as in `check`.
        """
        if step in self._steps:
            at = self.position
            at.round, at.phase = self._place(step, round)
            at.last[self._key(step, table)] = round

    def training_changed(self, round: int, *, changed: bool) -> None:
        """Record whether the training of a round changed any row of a shared table.

        If it did not, the client takes part in no further sum. Otherwise a server could observe such refusals repeatedly,
        and learn from each whether the client holds the rows that its table trains.

        Args:
            changed: whether any row changed.
        """
        if not changed and not self.position.unchanged:
            self.position.unchanged = round

    def enter_union(self, table: Table) -> bool:
        """Enter the private set union of a table; return whether the client had entered it before.

        Two unions with different parties would reveal the difference of the others' sets.
        """
        entered = f"entered union {table}" in self.position.last
        # Stored with the steps, so that a restarted client remembers it.
        self.position.last[f"entered union {table}"] = 0
        return entered

    def _key(self, step: str, table: str) -> str:
        return f"{step} {table if self._steps[step].per_table else ''}"

    def _place(self, step: str, round: int) -> tuple[int, int]:
        rule = self._steps[step]
        return (self.options.rounds + 1 if rule.when == "end" else round), rule.phase

    def _check(self, step: str, round: int, table: str) -> None:
        if step == "keep":
            return
        rule, at, name = self._steps[step], self.position, f"{step} {table}".strip()
        self._check_round(rule.when, round, name)
        # A repeated step could make the client add its noise twice, or train twice.
        if rule.once and round <= at.last.get(self._key(step, table), -1):
            raise OrderError(f"{name} in round {round} was taken already")
        # Phases only move forward: a server cannot rewind a client to an earlier broadcast.
        if self._place(step, round) < (at.round, at.phase):
            raise OrderError(f"{name} in round {round} comes too late: this client is past that step")
        # Without a broadcast the client would train rows that the server never saw aligned.
        if step == "train" and (missing := [kind for kind in self.tables if f"broadcast {kind}" not in at.last]):
            raise OrderError(f"train in round {round} before any broadcast of {', '.join(missing)}")
        if step == "train" and self.sums and self.always_sent:
            self._check_sent(round)
        if step == "upload":
            self._check_upload(round, name, table)

    def _check_sent(self, round: int) -> None:
        at, trained = self.position, self.position.last.get("train ", 0)
        # The latest round with an exchange up to the client's last training.
        due = max((number for number in range(1, trained + 1) if self.options.exchanges(number)), default=0)
        if late := [table for table in self.tables if at.last[f"broadcast {table}"] < due]:
            raise OrderError(f"train in round {round} before the broadcast of {', '.join(late)} in round {due}")

    def _check_upload(self, round: int, name: str, table: str) -> None:
        at = self.position
        if round <= at.refused:
            raise OrderError(f"{name} in round {round}, in which the server requested a step that was not due")
        # An untrained upload is the server's own broadcast: it would isolate the other clients' sum.
        if at.last.get("train ") != round:
            raise OrderError(f"{name} in round {round}, in which this client did not train")
        # Training without effect gives the same known upload.
        if self.sums and at.unchanged:
            raise OrderError(
                f"{name} in round {round}: training changed no row in round {at.unchanged}, so the server would know the upload"
            )
        if at.last.get(f"listen {table}") == round:
            raise OrderError(f"{name} in round {round}, which this client sits out")

    def _check_round(self, when: When, round: int, name: str) -> None:
        if when == "end":
            return  # these steps concern the whole run; the round in the request is ignored
        # Round numbers that each kind of step allows at all; details follow.
        first, last = {"before": (0, 0), "exchanges": (0, self.options.rounds)}.get(when, (1, self.options.rounds))
        if not first <= round <= last:
            raise OrderError(f"{name} in round {round}; allowed: {first}..{last}")
        if self.after_run:
            return
        if when in ("exchanges", "own exchanges") and round and not self.options.exchanges(round):
            raise OrderError(f"{name} in round {round}, in which nothing is exchanged")
        counts_own = when in ("own rounds", "own exchanges")
        if counts_own and self.client_index not in self.options.participants(self.num_clients, round):
            raise OrderError(f"{name} in round {round}, in which this client does not take part")
        if when == "checks" and not self.options.is_checked(round):
            raise OrderError(f"{name} in round {round}, which is not validated")


class ClientOrders:
    """State machines of all clients of a simulated federation.

    Args:
        parties: party names.
        options, tables, sums, after_run: as in `ClientOrder`.
    """

    def __init__(
        self,
        parties: Sequence[str],
        options: RunOptions,
        tables: Sequence[Table],
        *,
        sums: bool,
        after_run: bool = False,
    ) -> None:
        self.tables = tuple(tables)
        self._orders = {
            party: ClientOrder(index, len(parties), options, tables, sums=sums, after_run=after_run)
            for index, party in enumerate(parties)
        }

    def broadcast(self, round: int, table: Table) -> None:
        """Record a broadcast to all clients."""
        self._take(self._orders, "broadcast", round, table)

    def train(self, round: int, changed: Mapping[str, bool]) -> None:
        """Record the training of some clients.

        Args:
            changed: by party, whether training changed any row of a shared table.
        """
        self._take(changed, "train", round)
        for party, moved in changed.items():
            self._orders[party].training_changed(round, changed=moved)

    def refusals(self, round: int, table: Table, participants: Sequence[str]) -> dict[str, str]:
        """Map each party that refuses an upload to its reason.

        Args:
            participants: party names.
        """
        refusals = {}
        for party in participants:
            try:
                self._take([party], "upload", round, table)
            except OrderError as error:
                refusals[party] = f"OrderError: {error}"
        return refusals

    def _take(self, parties: Iterable[str], step: str, round: int, table: str = "") -> None:
        for party in parties:
            # Simulated clients take every step through the same machine as deployed ones.
            self._orders[party].check(step, round, table)
            self._orders[party].mark(step, round, table)
