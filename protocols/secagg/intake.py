"""Intake of the messages of one stage at the server: each client's first valid one counts, and a bad one drops its sender.

    intake = Intake(Roll(setting))
    for upload in intake.valid(arrivals, MaskedUpload, senders, check):
        total += upload.vectors["rows"]
    intake.roll().excluded          # {'client3': 'WrongLength: upload of client3, vector 'rows': 12 bytes; 24 of uint32 are due'}

A client whose message is malformed, late, of another session, badly signed or otherwise wrong counts as silent, and is named with
the reason. In a deployment, the link drops a slow party before its late message could arrive here. Repeated bytes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fkgsec.protocols.core.errors import DuplicateSender, ProtocolError, describe
from fkgsec.protocols.core.prg import digest
from fkgsec.protocols.secagg.messages import Arrival, Failure, Kind, Message, check_header, encode
from fkgsec.protocols.secagg.setting import Setting

_MOST_NAMED = 3  # in an error's message; its `excluded` has all


@dataclass(frozen=True)
class Roll:
    """What the server remembers about the clients from stage to stage.

    Attributes:
        excluded: by party the first reason why a message of it was left out.
        arrived: digests of the messages that came, by sender.
    """

    setting: Setting
    excluded: Mapping[str, str] = field(default_factory=dict)
    arrived: Mapping[str, frozenset[bytes]] = field(default_factory=dict, repr=False)


class Intake:
    """The messages of one stage. As a context, it adds the excluded clients to a `ProtocolError` that ends the session."""

    def __init__(self, roll: Roll) -> None:
        self.setting = roll.setting
        self.excluded = dict(roll.excluded)
        self._arrived = dict(roll.arrived)

    def valid(
        self,
        arrivals: Iterable[Arrival],
        kind: type[Kind],
        senders: Container[str],
        check: Callable[[Kind], None],
    ) -> Iterator[Kind]:
        """Yield the first valid message of each sender, and exclude the senders of invalid ones.

        A sender may be excluded after its message was yielded, if a second, different one arrives: check `excluded` at the end.

        Args:
            kind: class of message that this stage takes.
            senders: parties that take part in this stage.
            check: raises a `ProtocolError` for a message whose content is wrong.
        """
        heard: set[str] = set()
        for arrival in arrivals:
            if isinstance(arrival, Failure):
                self.exclude(arrival.sender, arrival.reason)
                continue
            try:
                # A repeated frame is the network's doing, and ignored. A second, different message is the sender's.
                if self._is_repeated(arrival):
                    continue
                message = check_header(
                    arrival, kind, session=self.setting.session, round=self.setting.round, senders=senders
                )
                if message.sender in heard:
                    raise DuplicateSender(f"two messages {kind.__name__} of {message.sender}")
                heard.add(message.sender)
                check(message)
            except ProtocolError as error:
                self.exclude(arrival.sender, describe(error))
                continue
            # A client that was excluded earlier stays excluded, even if this message is valid.
            if message.sender not in self.excluded:
                yield message

    def exclude(self, party: str, reason: str) -> None:
        """Exclude a party.

        Args:
            reason: why its message was left out. The first reason of a party is kept.
        """
        self.excluded.setdefault(party, reason)

    def roll(self) -> Roll:
        """Return the memory for the next stage."""
        return Roll(self.setting, self.excluded, self._arrived)

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProtocolError):
            error.excluded = dict(self.excluded)
            named = [f"{party} ({reason})" for party, reason in self.excluded.items()]
            if named and error.args:
                more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
                error.args = (f"{error.args[0]}; left out: {'; '.join(named[:_MOST_NAMED])}{more}", *error.args[1:])

    def _is_repeated(self, message: Message) -> bool:
        """Return whether these bytes came before from this sender, and remember them."""
        fingerprint = digest("secagg message", encode(message))
        earlier = self._arrived.get(message.sender, frozenset())
        self._arrived[message.sender] = earlier | {fingerprint}
        return fingerprint in earlier
