"""Public values, bins and polynomials of the two-party union (`protocols.psu_two_party`). Nothing here is sent.

Identifiers become items of one length. A salted digest gives each item a bin and a node, a point of the field F_p with
p = 2^127-1. Polynomials over the field are lists of coefficients, lowest first.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import mul

from protocols.errors import MalformedMessage, OutOfRing, ProtocolError, SettingError, WrongLength
from protocols.prg import Randomness, digest, draw, frame
from protocols.psu_table import BadIdentifier, DuplicateIdentifier

MAX_CAP = 2**14  # about a minute of one core: some 85 scalar multiplications for each item
MAX_IDENTIFIER_BYTES = 2**12
PRIME = 2**127 - 1
FIELD_BYTES = 16
OVERFLOW = 2.0**-40  # bound on the chance that any bin of either party overflows

_HEADER_BYTES = 3  # 1 and the length, or zeros for the dummy
_KEY_BYTES = 16
_SLOT_MULTIPLICATIONS = 8  # scalar multiplications for each slot, next to those of the programs


class SetTooLarge(ProtocolError):
    """More identifiers than the public cap."""


class BinOverflow(ProtocolError):
    """More items in a bin than its load. Start again: another salt almost surely fits."""


@dataclass(frozen=True)
class Setting:
    """What both parties agree on before they start. Raises `SettingError`.

    Attributes:
        session, round: name the run; no two runs may share both.
        sender, receiver: the parties' names.
        cap: most identifiers that either party may hold, 1 to `MAX_CAP`. Cost and bytes depend on it, not on the sets.
        max_bytes: most bytes of UTF-8 in an identifier, 1 to `MAX_IDENTIFIER_BYTES`. Items are padded to it.
    """

    session: bytes
    round: int
    sender: str
    receiver: str
    cap: int
    max_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.cap <= MAX_CAP:
            raise SettingError(f"cap is {self.cap}; allowed: 1 to {MAX_CAP}")
        if not 1 <= self.max_bytes <= MAX_IDENTIFIER_BYTES:
            raise SettingError(f"max_bytes is {self.max_bytes}; allowed: 1 to {MAX_IDENTIFIER_BYTES}")
        if self.sender == self.receiver:
            raise SettingError(f"sender and receiver are both {self.sender!r}; they must differ")

    @property
    def num_bins(self) -> int:
        return table_shape(self.cap)[0]

    @property
    def load(self) -> int:
        return table_shape(self.cap)[1]

    @property
    def num_slots(self) -> int:
        return self.num_bins * self.load

    @property
    def item_bytes(self) -> int:
        return _HEADER_BYTES + self.max_bytes

    @property
    def dummy(self) -> bytes:
        return bytes(self.item_bytes)

    def context(self, slot: int) -> bytes:
        """What keys of one slot are bound to."""
        return frame("two-party union", self.session, self.round, self.sender, self.receiver, slot)


@functools.cache
def table_shape(cap: int) -> tuple[int, int]:
    """(number of bins, load of a bin) for sets of up to `cap` items: the cheapest of the powers of two.

    The load is the least for which some bin of either party overflows with a chance below `OVERFLOW`.

    >>> table_shape(16), table_shape(1000), table_shape(16384)
    ((1, 16), (128, 38), (2048, 40))
    """
    shapes = [(2**power, _load(cap, 2**power)) for power in range(cap.bit_length())]
    return min(shapes, key=lambda shape: shape[1] * (cap + (1 + _SLOT_MULTIPLICATIONS) * shape[0]))


def _load(cap: int, num_bins: int) -> int:
    """The least L with 2 num_bins P(Binomial(cap, 1 / num_bins) > L) <= OVERFLOW: a union bound over both tables."""
    if num_bins == 1:
        return cap
    tail = 0.0
    for load in range(cap, 0, -1):
        log_ways = math.lgamma(cap + 1) - math.lgamma(load + 1) - math.lgamma(cap - load + 1)
        tail += math.exp(log_ways - load * math.log(num_bins) + (cap - load) * math.log1p(-1 / num_bins))
        if 2 * num_bins * tail > OVERFLOW:
            return load
    return 1


# Items and bins.


def pad_set(setting: Setting, identifiers: Collection[str]) -> list[bytes]:
    """The identifiers as items of `item_bytes`: 1, the length in two bytes, UTF-8, zeros. The dummy is all zeros.

    Raises `SetTooLarge`, `DuplicateIdentifier`, and `BadIdentifier` for what has no UTF-8 form or is over-long.
    """
    if len(identifiers) > setting.cap:
        raise SetTooLarge(f"{len(identifiers)} identifiers; the public cap is {setting.cap}")
    items = [_pad(setting, identifier) for identifier in identifiers]
    if len(set(items)) != len(items):
        [(repeated, _)] = Counter(items).most_common(1)
        raise DuplicateIdentifier(f"identifier {unpad(setting, repeated)!r} is given twice")
    return items


def _pad(setting: Setting, identifier: str) -> bytes:
    if not isinstance(identifier, str):
        raise BadIdentifier(f"identifier {identifier!r} is not a string")
    try:
        content = identifier.encode()
    except UnicodeEncodeError as error:
        raise BadIdentifier(f"identifier {identifier!r} has no UTF-8 form") from error
    if len(content) > setting.max_bytes:
        raise BadIdentifier(f"identifier {identifier!r} has {len(content)} bytes; max_bytes is {setting.max_bytes}")
    return b"\x01" + len(content).to_bytes(2, "big") + content + bytes(setting.max_bytes - len(content))


def unpad(setting: Setting, item: bytes) -> str:
    """The identifier of an item. Raises `MalformedMessage` unless `pad_set` would make the same item of it."""
    try:
        identifier = item[_HEADER_BYTES : _HEADER_BYTES + int.from_bytes(item[1:_HEADER_BYTES], "big")].decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage("an item that was transferred is not UTF-8") from error
    if _pad(setting, identifier) != item:
        raise MalformedMessage("an item that was transferred is not padded as agreed")
    return identifier


def locate(setting: Setting, salt: bytes, item: bytes) -> tuple[int, int]:
    """(bin, node) of an item: two independent halves of a salted digest."""
    hashed = digest("two-party union, bins and nodes", salt, item)
    return int.from_bytes(hashed[:16], "little") % setting.num_bins, int.from_bytes(hashed[16:], "little") % PRIME


def fill_bins(setting: Setting, salt: bytes, items: Sequence[bytes]) -> tuple[tuple[bytes, ...], ...]:
    """The items by bin. Raises `BinOverflow`."""
    bins: list[list[bytes]] = [[] for _ in range(setting.num_bins)]
    for item in items:
        bins[locate(setting, salt, item)[0]].append(item)
    fullest = max(len(each) for each in bins)
    if fullest > setting.load:
        raise BinOverflow(f"a bin holds {fullest} items; its load is {setting.load}")
    return tuple(tuple(each) for each in bins)


def shuffle_slots(setting: Setting, bins: Sequence[Sequence[bytes]], randomness: Randomness) -> tuple[bytes, ...]:
    """The sender's slots, bin by bin: its items and as many dummies as fit, in a uniform order within each bin."""
    slots: list[bytes] = []
    for items in bins:
        filled = [*items] + [setting.dummy] * (setting.load - len(items))
        keys = split(draw(randomness, _KEY_BYTES * setting.load), _KEY_BYTES, setting.load, "sorting keys")
        slots += [filled[number] for number in sorted(range(setting.load), key=keys.__getitem__)]
    return tuple(slots)


def interpolation_rows(nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """The inverse of the nodes' Vandermonde matrix modulo `PRIME`: row i times the values is coefficient i.

    Raises `ValueError` when two nodes are the same, which for hashed nodes has a chance below 2^-100.
    Source: Lagrange. Differs: none.
    """
    product = [1]  # of X - node, lowest coefficient first
    for node in nodes:
        product = [(low - node * high) % PRIME for low, high in zip([0, *product], [*product, 0], strict=True)]
    columns = []
    for node in nodes:
        quotient = [0] * len(nodes)  # the product over the other nodes, by synthetic division
        carry = 0
        for power in range(len(nodes), 0, -1):
            carry = (product[power] + node * carry) % PRIME
            quotient[power - 1] = carry
        scale = pow(evaluate(quotient, node), -1, PRIME)
        columns.append([coefficient * scale % PRIME for coefficient in quotient])
    return list(zip(*columns, strict=True))


def interpolate(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[int]:
    """The polynomial of degree below n through n `values`, at the nodes of `rows` (`interpolation_rows`)."""
    return [sum(map(mul, row, values)) % PRIME for row in rows]


def evaluate(polynomial: Sequence[int], node: int) -> int:
    """The value of a polynomial, lowest coefficient first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * node + coefficient) % PRIME
    return value


def uniform_elements(randomness: Randomness, count: int) -> list[int]:
    """Uniform elements, up to a bias of 2^-129, from 32 bytes of `randomness` each."""
    drawn = draw(randomness, 32 * count)
    return [int.from_bytes(drawn[start : start + 32], "little") % PRIME for start in range(0, 32 * count, 32)]


def unpack_elements(packed: bytes, what: str) -> list[int]:
    """Field elements of 16 bytes. Raises `OutOfRing` for one that is not below `PRIME`."""
    values = [
        int.from_bytes(packed[start : start + FIELD_BYTES], "little") for start in range(0, len(packed), FIELD_BYTES)
    ]
    if max(values) >= PRIME:
        raise OutOfRing(f"{what} is {max(values)}, not below 2^127-1")
    return values


def split(joined: bytes, width: int, count: int, what: str) -> list[bytes]:
    """`count` parts of `width` bytes. Raises `WrongLength` when that is not what `joined` holds."""
    if len(joined) != width * count:
        raise WrongLength(f"{what}: {len(joined)} bytes; {count} x {width} are needed")
    return [joined[start : start + width] for start in range(0, len(joined), width)]
