"""The values of an exchange: holdings, uploads, broadcasts, the outcome of a round, and the shared table at the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.messages import Alignment
from fkgsec.federation.recipes import Table

Delivery = Literal["sum", "single uploads"]


class Holding(NamedTuple):
    """The rows of a shared table that a client holds.

    Attributes:
        names: of the rows; the client receives all of them.
        num_uploaded: the first rows, which it also uploads.
        weight: its integer weight in a mean, such as the number of graphs that it trains on.
        num_upwards: the last rows, which inform the server, and in plaintext are not sent back.
    """

    names: list[str]
    num_uploaded: int
    weight: int = 1
    num_upwards: int = 0


class Upload(NamedTuple):
    """Upload of one client as the server reads it: row indices int64 `[k]`, rows float `[k, width]`, the client's weight."""

    places: Tensor
    rows: Tensor
    weight: int = 1


class Screened(NamedTuple):
    """The uploads of a round after a screen, and the number of rows that it changed by party."""

    uploads: Mapping[str, Upload]
    cut: Mapping[str, int] = MappingProxyType({})


class Sum(NamedTuple):
    """The weighted sum of uploads, float `[N, width]`, and the sum of weights of each row's holders, int64 `[N]`."""

    total: Tensor
    weights: Tensor

    def mean(self, otherwise: Tensor) -> Tensor:
        """Compute the weighted mean of each row over its holders, float32 `[N, width]`.

        Args:
            otherwise: rows for those without holders, `[N, width]`.
        """
        # Rows without holders are divided by 1, and replaced below.
        mean = (self.total / self.weights.clamp_min(1)[:, None]).float()
        return torch.where((self.weights > 0)[:, None], mean, otherwise)


@dataclass(frozen=True)
class Delivered:
    """Uploads of one round to a table `[N, width]`, as a transport delivers them to the server.

    Attributes:
        shape: of the table.
        single: uploads by party, in the order of the parties.
        opened: their sum where the transport delivers it alone, else None.
    """

    shape: tuple[int, int]
    single: Mapping[str, Upload] = field(default_factory=dict)
    opened: Sum | None = None

    @property
    def uploads(self) -> Mapping[str, Upload]:
        """Single uploads by party. Raises `RunError` if only the sum was delivered."""
        if self.opened is not None:
            raise RunError(
                "the sum of the uploads alone was delivered: an aggregation that reads single ones must say needs = 'single "
                "uploads'"
            )
        return self.single

    def sum(self, without: str | None = None) -> Sum:
        """Sum the uploads.

        Args:
            without: party to leave out, if single uploads were delivered.
        """
        if self.opened is not None:
            return self.opened
        # Sum in the order of the parties: floating-point sums depend on the order, and the order of arrival is random.
        total, weights = torch.zeros(self.shape), torch.zeros(self.shape[0], dtype=torch.int64)
        for party, (places, rows, weight) in self.uploads.items():
            # FedS, Eq. 3, sums over the other clients only.
            if party != without:
                total.index_add_(0, places, rows, alpha=weight)
                weights.index_add_(0, places, torch.full_like(places, weight))
        return Sum(total, weights)

    def renewed(self) -> Tensor:
        """Mark the rows that at least one client uploaded, bool `[N]`."""
        if self.opened is not None:
            return self.opened.weights > 0
        renewed = torch.zeros(self.shape[0], dtype=torch.bool)
        for places, _, _ in self.uploads.values():
            renewed[places] = True
        return renewed


class Received(NamedTuple):
    """A client's reading of a broadcast of one table.

    Attributes:
        rows: float32 `[n, width]` in the order of its holding.
        taken: bool `[n]`, the rows that the client replaces; None: all.
        own_share: float32 `[n]`, weight of the client's own row that is added; None: nothing.
    """

    rows: Tensor
    taken: Tensor | None = None
    own_share: Tensor | None = None

    def merged(self, client_rows: Tensor) -> Tensor:
        """Return the client's rows after the broadcast.

        Args:
            client_rows: `[n, width]`.
        """
        rows = self.rows.to(client_rows.device)
        # FedS, Eq. 4: the client's own row is part of the new one.
        if self.own_share is not None:
            rows = rows + self.own_share.to(client_rows.device)[:, None] * client_rows
        return (
            rows if self.taken is None else torch.where(self.taken.to(client_rows.device)[:, None], rows, client_rows)
        )


class Observed(NamedTuple):
    """The server's copy of a client's rows, if no single message holds them.

    Attributes:
        rows: float32 `[num_uploaded, width]` in the order of the client's holding, each as last seen.
        seen: bool `[num_uploaded]`, the rows that were ever transmitted.
    """

    rows: Tensor
    seen: Tensor


class FilledRows(NamedTuple):
    """A table `[num_rows, width]` of zeros except the rows at `places`, int64 `[k]`, with values `[k, width]`."""

    num_rows: int
    places: Tensor
    values: Tensor

    @classmethod
    def of(cls, table: Tensor) -> FilledRows:
        """Convert a whole table.

        Args:
            table: `[num_rows, width]`.
        """
        # Compare bits, so that -0.0 counts as filled and is restored exactly.
        places = (table.contiguous().view(torch.uint8) != 0).any(dim=1).nonzero()[:, 0]
        return cls(len(table), places, table[places])

    def whole(self) -> Tensor:
        """Return the whole table."""
        whole = self.values.new_zeros(self.num_rows, *self.values.shape[1:])
        whole[self.places] = self.values
        return whole


Leaf: TypeAlias = Tensor | FilledRows


class LazyTensors(Mapping[str, Tensor]):
    """Named tensors, some of which are computed at each access: all at once are gigabytes of a large run."""

    def __init__(self, parts: Mapping[str, Leaf | Callable[[], Tensor]]) -> None:
        self.parts = parts

    def leaf(self, name: str) -> Leaf:
        """Return a tensor, or its filled rows if these are stored."""
        part = self.parts[name]
        return part if isinstance(part, Tensor | FilledRows) else part()

    def __getitem__(self, name: str) -> Tensor:
        leaf = self.leaf(name)
        return leaf if isinstance(leaf, Tensor) else leaf.whole()

    def __contains__(self, name: object) -> bool:
        return name in self.parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors whose names begin with `prefix`, and remove it."""
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


class Uploaded(NamedTuple):
    """Outcome of one round's uploads to one table.

    Attributes:
        num_survivors: clients in the aggregate; 0 when it failed and the table stays as it was.
        num_clipped: values that the server cut to what a screen lets pass.
        excluded: by party the reason why a message of it was left out.
        cut: by party how many of its rows a screen cut, and of how many; empty where none counts them.
        num_kept_rows: rows that kept their old value, because honest clients cannot have given the sum that was opened.
        changed_levels: share of the quantized weight levels that differ from the last broadcast; None without quantization.
    """

    num_survivors: int
    num_clipped: int = 0
    excluded: Mapping[str, str] = MappingProxyType({})
    cut: Mapping[str, tuple[int, int]] = MappingProxyType({})
    num_kept_rows: int = 0
    changed_levels: float | None = None


def all_excluded(outcomes: Sequence[Uploaded]) -> dict[str, str]:
    """Map each excluded party of one round's uploads to the reasons, in alphabetical order.

    Args:
        outcomes: of each table.
    """
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        for party, reason in outcome.excluded.items():
            reasons.setdefault(party, []).append(reason)
    return {party: "; ".join(reasons[party]) for party in sorted(reasons)}


def all_cut(outcomes: Sequence[Uploaded]) -> dict[str, tuple[int, int]]:
    """Map each party to the number of its rows that were clipped in one round, and to the number of all.

    Args:
        outcomes: of each table.

    >>> all_cut([Uploaded(2, cut={"client/a": (1, 4)}), Uploaded(2, cut={"client/a": (2, 3)})])
    {'client/a': (3, 7)}
    """
    counts: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        for party, (cut, rows) in outcome.cut.items():
            # A party has one count per table; add them up.
            before = counts.get(party, (0, 0))
            counts[party] = before[0] + cut, before[1] + rows
    return counts


@dataclass
class SharedTable:
    """Shared table on the server, which knows rows by the names that clients sent.

    Attributes:
        parties: the clients, in their order.
        names: the union of names in order of first arrival.
        rows: float32 `[len(names), width]`.
        holdings: for each client that was aligned in plaintext, the rows it receives, int64; the first `num_uploaded[party]` of
            these it also uploads. Empty after private alignment.
        weights: by such a client, what it counts for in a mean. num_upwards: of its last rows, which it is not sent.
    """

    table: Table
    parties: Sequence[str] = ()
    names: list[str] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    holdings: dict[str, Tensor] = field(default_factory=dict)
    num_uploaded: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    num_upwards: dict[str, int] = field(default_factory=dict)
    _place: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def align(self, message: Alignment) -> None:
        """Enter a client's names.

        Args:
            message: its alignment.

        Raises:
            RunError: a second alignment of a client, a repeated name, a weight below 1, or too many rows that are not sent back.
        """
        if message.sender in self.holdings:
            raise RunError(f"{message.sender} sent a second alignment of {self.table}")
        if len(set(message.names)) != len(message.names):
            raise RunError(f"{message.sender} named a row of {self.table} twice")
        if message.weight < 1:
            raise RunError(
                f"{message.sender} gave {message.weight} as its weight in {self.table}; at least 1 is needed"
            )
        if not 0 <= message.num_upwards <= len(message.names):
            raise RunError(
                f"{message.sender} wants {message.num_upwards} of its {len(message.names)} rows of {self.table} not sent back"
            )
        place = self._place
        # The names were set from outside, such as from a checkpoint.
        if len(place) != len(self.names):
            place.update({name: number for number, name in enumerate(self.names)})
        # New names get the next index, in the order of arrival.
        for name in message.names:
            if name not in place:
                place[name] = len(self.names)
                self.names.append(name)
        self.holdings[message.sender] = torch.tensor([place[name] for name in message.names], dtype=torch.int64)
        self.num_uploaded[message.sender] = message.num_uploaded
        self.weights[message.sender] = message.weight
        self.num_upwards[message.sender] = message.num_upwards

    def sent(self, party: str) -> Tensor:
        """Return the rows that a client receives in plaintext, int64."""
        return self.holdings[party][: len(self.holdings[party]) - self.num_upwards.get(party, 0)]

    def uploaded(self, sender: str) -> Tensor:
        """Return the rows that a client uploads, int64. Raises `RunError` for an unknown sender."""
        if sender not in self.holdings:
            raise RunError(f"an upload of {self.table} by {sender}, who is unknown")
        return self.holdings[sender][: self.num_uploaded[sender]]

    def places(self, sender: str, num_rows: int) -> Tensor:
        """Return the rows of a client's upload.

        Args:
            num_rows: rows that the upload states.

        Raises:
            RunError: an unknown sender, or another number of rows.
        """
        ids = self.uploaded(sender)
        if num_rows != len(ids):
            raise RunError(f"{sender} uploaded {num_rows} rows of {self.table}; {len(ids)} expected")
        return ids

    def initialise(self, rows: Tensor) -> None:
        """Set the first rows, one per name."""
        self.rows = torch.as_tensor(rows)


def tensor_places(names: Sequence[str]) -> dict[str, Tensor]:
    """Map each tensor to the indices of its rows, int64, in order.

    Args:
        names: of all rows, `tensor/number`, in any order.

    >>> tensor_places(["lin.weight/1", "lin.bias/0", "lin.weight/0"])["lin.weight"]
    tensor([2, 0])
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        tensor, _, row = name.rpartition("/")
        spans.setdefault(tensor, []).append((int(row) if row.isdecimal() else 0, place))
    return {tensor: torch.tensor([place for _, place in sorted(rows)]) for tensor, rows in spans.items()}
