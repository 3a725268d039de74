"""The randomised invertible Bloom lookup table: a set as a vector over F_p whose sum over clients is the union.

    >>> from fkgsec.protocols.core.prg import seeded
    >>> parameters = Parameters(b"session", bytes(SALT_BYTES), cells_for(100))
    >>> tables = [encode(parameters, names, seeded(b"example")) for names in (["a", "b"], ["b", "c"])]
    >>> peel(parameters, Ring.MERSENNE61.add(*tables))
    ['a', 'b', 'c']

A table has `m` cells in k = 3 disjoint segments of m / 3. A cell is seven field elements (a, b_1..b_5, c), p = 2^61-1. An
item is 37 bytes: five limbs of 60 bits, the last of 56. To hold item x, one adds (r, r limbs(x), r H(x)) to one cell per
segment, r uniform in F_p. Tables add up cell by cell. A cell to which one item contributes is *pure*: b / a is its key and
c / a is H(key). Peeling reads pure cells and takes their items out of the others, until nothing is left.

Why the sum hides who holds x: the r of x's holders add up to R_x, uniform in F_p whatever their number. The summed table is
linear in the R_x of the union's items and in nothing else. The table that one client would make of the whole union has
exactly the same distribution. Nothing here is secret by itself: one client's own table is as good as its set.

r may be 0, so that the sum is exactly uniform. An R_x of 0, of probability 2^-61, leaves x out of the union; its holders
notice (`fkgsec.protocols.psu`).

Identifiers are Unicode strings, kept as they are: two that differ only in their normal form stay two. Up to 36 bytes of
UTF-8 are one item (their length, the bytes, zeros). A longer one is ceil(bytes / 16) chunks, each an item: 255, a digest of
the whole identifier (16 bytes), the chunk's place and the whole's length (2 bytes each), 16 bytes of it. Items are a function
of the identifier alone, so the union of the items is a function of the union of the identifiers. Two identifiers of equal
digest and length would stop the union (`InconsistentItems`); by chance, for n long ones, once in 2^129 / n^2.

Source: invertible Bloom lookup tables, Goodrich and Mitzenmacher 2011. Differs: sums of random multiples in a field in place
of counts and exclusive ors, so that the number of holders does not show. The code is not constant-time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from fkgsec.protocols.core.errors import ProtocolError, SettingError
from fkgsec.protocols.core.prg import Randomness, Ring, derive, draw

NUM_SEGMENTS = 3
NUM_LIMBS = 5
CELL_WIDTH = NUM_LIMBS + 2  # a, b_1..b_5, c
ITEM_BYTES = 37
SALT_BYTES = 32
MIN_CELLS = 600
# Cell indices come from 32 bits of a hash.
MAX_CELLS = 2**31
# A residue of at most this share of the cells does not come from a table that is too small; see `PeelingError.damaged`.
DAMAGE_SHARE = 0.15

_LIMB_BITS = 60
_LIMB_MASK = np.uint64(2**_LIMB_BITS - 1)
_LAST_LIMB_BITS = 8 * ITEM_BYTES - _LIMB_BITS * (NUM_LIMBS - 1)
_LOW_HALF = np.uint64(2**32 - 1)
_HALF_BITS = np.uint64(32)

_SHORT_BYTES = ITEM_BYTES - 1
_CHUNK = 255
_DIGEST_BYTES = 16
_CHUNK_BYTES = ITEM_BYTES - 1 - _DIGEST_BYTES - 4
MAX_IDENTIFIER_BYTES = 2**16 - 1


class BadIdentifier(ProtocolError):
    """An identifier that is no string, has no UTF-8 form (a lone surrogate), or is too long."""


class DuplicateIdentifier(ProtocolError):
    """An identifier given twice by one client."""


class PeelingError(ProtocolError):
    """Cells that peeling could not empty: the table is too small for its items, or damaged.

    Attributes:
        remaining: number of these cells.
        damaged: whether the table is damaged rather than too small: `filled`, or at most `DAMAGE_SHARE` of the cells remain. What
            peeling leaves of items alone is either a few that met in the same cells by chance, or at once much of the table: 0.3
            of it and more at 600 cells, 0.4 and more at 3,000, from about 0.8 items a cell on (measured; Molloy 2005 on the
            2-core of a random 3-uniform hypergraph). A small residue is a cell that somebody filled with no item, or such a
            chance: another salt tells them apart, a larger table does not.
        filled: whether more cells remain, and their segments have different sums: a client filled much of the table at random.
    """

    def __init__(self, remaining: int, num_cells: int, *, balanced: bool) -> None:
        few = remaining <= DAMAGE_SHARE * num_cells
        self.remaining = remaining
        self.filled = not few and not balanced
        self.damaged = few or self.filled
        if self.filled:
            advice = "no items leave these, since the segments have different sums; a larger table would not help"
        elif few:
            advice = "so few that the table is damaged, or items met by chance; it is not too small"
        else:
            advice = "a larger table may hold the union"
        super().__init__(f"{remaining} of {num_cells} cells remain after peeling; {advice}")


class MalformedTable(ProtocolError):
    """A table that no sum of honest tables can be: a client added something else than items."""


class InconsistentItems(ProtocolError):
    """Items that are no identifier: a chunk is missing, contradicts another, or is not in the one form allowed."""


@dataclass(frozen=True)
class Field:
    """The integers modulo a prime, as uint64 arrays of elements below it. Small primes serve exhaustive tests."""

    prime: int

    def __post_init__(self) -> None:
        if self.prime != Ring.MERSENNE61.modulus and self.prime >= 2**32:
            raise SettingError(f"field of {self.prime} elements: products need 2^61-1 or a prime below 2^32")

    def multiply(self, a: np.ndarray, b: np.ndarray | np.uint64) -> np.ndarray:
        """Multiply elementwise, with broadcasting.

        Args:
            a, b: uint64 arrays of elements below the prime.
        """
        if self.prime < 2**32:
            return a * b % np.uint64(self.prime)
        # For p = 2^61-1 in 64-bit words: with a = 2^31 a1 + a0, the product is 2^62 a1 b1 + 2^31 middle + a0 b0,
        # and 2^61 equals 1 modulo p.
        mask31, mask30 = np.uint64(2**31 - 1), np.uint64(2**30 - 1)
        a1, a0, b1, b0 = a >> np.uint64(31), a & mask31, b >> np.uint64(31), b & mask31
        middle = a1 * b0 + a0 * b1
        total = np.uint64(2) * a1 * b1 + (middle >> np.uint64(30)) + ((middle & mask30) << np.uint64(31)) + a0 * b0
        return self._below_prime((total >> np.uint64(61)) + (total & np.uint64(self.prime)))

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Add elementwise, with broadcasting."""
        return self._below_prime(a + b)

    def negate(self, a: np.ndarray) -> np.ndarray:
        """Negate elementwise."""
        return self._below_prime(np.uint64(self.prime) - a)

    def inverse(self, a: np.ndarray) -> np.ndarray:
        """Invert each element of a vector, with one modular inversion and three products per element.

        Args:
            a: uint64 `[n]`, nonzero elements.
        """
        if len(a) <= 1:
            return np.array([pow(int(value), -1, self.prime) for value in a], dtype=np.uint64)
        # Montgomery's trick on a binary tree: 1/left = right / (left right), and the other way round.
        left, right = a[0::2], a[1::2]
        if len(left) > len(right):
            right = np.append(right, np.uint64(1))
        both = self.inverse(self.multiply(left, right))
        inverses = np.empty(2 * len(both), dtype=np.uint64)
        inverses[0::2], inverses[1::2] = self.multiply(both, right), self.multiply(both, left)
        return inverses[: len(a)]

    def uniform(self, count: int, randomness: Randomness) -> np.ndarray:
        """Draw exactly uniform elements.

        Args:
            count: number of elements.

        Returns:
            uint64 `[count]`.
        """
        # Rejection sampling: a value at or above the prime is drawn again. Reducing it instead would favor small elements.
        mask = np.uint64(2 ** self.prime.bit_length() - 1)

        def bits(number: int) -> np.ndarray:
            """Draw `number` words with as many bits as the prime."""
            return np.frombuffer(draw(randomness, 8 * number), dtype="<u8").astype(np.uint64) & mask

        values = bits(count)
        while (rejected := np.flatnonzero(values >= self.prime)).size:
            values[rejected] = bits(len(rejected))
        return values

    def scatter_sum(self, places: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
        """Sum the values at each index.

        Args:
            places: int64 `[n]`, indices below `length`.
            values: uint64 `[n]`, elements below the prime.

        Returns:
            uint64 `[length]`.
        """
        # Sum the upper and lower 32 bits apart: up to 2^32 values fit without overflow, so one reduction at the end is enough.
        low, high = np.zeros(length, dtype=np.uint64), np.zeros(length, dtype=np.uint64)
        np.add.at(low, places, values & _LOW_HALF)
        np.add.at(high, places, values >> _HALF_BITS)
        prime = np.uint64(self.prime)
        return self.add(low % prime, self.multiply(high % prime, np.uint64(2**32 % self.prime)))

    def _below_prime(self, a: np.ndarray) -> np.ndarray:
        """Reduce values of at most 2 p - 1."""
        return np.where(a >= self.prime, a - np.uint64(self.prime), a)


MERSENNE61 = Field(Ring.MERSENNE61.modulus)


@dataclass(frozen=True)
class Parameters:
    """Public parameters of one table.

    Attributes:
        session: names the union; part of the key of the hashes.
        salt: 32 bytes, fresh for each table: another salt spreads the same items over other cells.
        num_cells: m, a positive multiple of 3.

    Raises `SettingError` for a salt or number of cells that is not allowed.
    """

    session: bytes
    salt: bytes
    num_cells: int

    def __post_init__(self) -> None:
        if len(self.salt) != SALT_BYTES:
            raise SettingError(f"salt of {len(self.salt)} bytes; it must have {SALT_BYTES}")
        if self.num_cells % NUM_SEGMENTS or not 0 < self.num_cells <= MAX_CELLS:
            raise SettingError(f"num_cells {self.num_cells}: a positive multiple of {NUM_SEGMENTS} up to {MAX_CELLS}")

    @property
    def length(self) -> int:
        """Field elements of a table: the length of every upload, whatever the client's set."""
        return self.num_cells * CELL_WIDTH


def cells_for(cap: int) -> int:
    """Compute the number of cells that hold `cap` items except for rare failures: max(600, 1.4 cap + 64), a multiple of 3.

    >>> cells_for(237), cells_for(15_000)
    (600, 21066)
    """
    if cap < 1:
        raise SettingError(f"cap {cap}: a union's cap is at least one item")
    # Peeling with three segments needs 1.222 cells per item in large tables (Goodrich, Mitzenmacher 2011); small tables
    # need more.
    wanted = max(MIN_CELLS, -(-14 * cap // 10) + 64)
    return NUM_SEGMENTS * math.ceil(wanted / NUM_SEGMENTS)


def items_of(identifier: str) -> list[bytes]:
    """Encode an identifier as items of 37 bytes. The items depend on the identifier alone.

    Args:
        identifier: string with a UTF-8 form of at most 65,535 bytes.

    Raises:
        BadIdentifier: any other value.
    """
    if not isinstance(identifier, str):
        raise BadIdentifier(f"identifier {identifier!r:.60} is {type(identifier).__name__}; a string is needed")
    try:
        content = identifier.encode()
    except UnicodeEncodeError as error:
        raise BadIdentifier(f"identifier {identifier!r:.60} has no UTF-8 form: {error.reason}") from error
    # A short identifier is one item: its length, its bytes, zeros.
    if len(content) <= _SHORT_BYTES:
        return [bytes([len(content)]) + content.ljust(_SHORT_BYTES, b"\0")]
    if len(content) > MAX_IDENTIFIER_BYTES:
        raise BadIdentifier(
            f"identifier {identifier!r:.60} has {len(content)} bytes; at most {MAX_IDENTIFIER_BYTES} are allowed"
        )
    # A long identifier becomes chunks: 255, digest of the whole (16 bytes), index and length (2 bytes each), 16 bytes of it.
    header, length = bytes([_CHUNK]) + _identifier_digest(content), len(content).to_bytes(2, "little")
    return [
        header + place.to_bytes(2, "little") + length + content[start : start + _CHUNK_BYTES].ljust(_CHUNK_BYTES, b"\0")
        for place, start in enumerate(range(0, len(content), _CHUNK_BYTES))
    ]


def set_items(identifiers: Collection[str]) -> list[bytes]:
    """Encode one client's set as items. Raises `BadIdentifier`, or `DuplicateIdentifier` if an identifier appears twice."""
    if isinstance(identifiers, str | bytes):
        raise BadIdentifier(f"identifiers {identifiers!r:.60}: a collection of strings is needed, not one string")
    seen: set[str] = set()
    items: list[bytes] = []
    for identifier in identifiers:
        items += items_of(identifier)
        if identifier in seen:
            raise DuplicateIdentifier(f"identifier {identifier!r:.60} is given twice")
        seen.add(identifier)
    return items


def identifiers_of(items: Iterable[bytes]) -> list[str]:
    """Decode items to the identifiers that they encode.

    Args:
        items: distinct items of 37 bytes, in any order.

    Returns:
        The identifiers, sorted by code point.

    Raises:
        InconsistentItems: the items do not encode any set. Nobody can tell which client is at fault.
    """
    identifiers: list[str] = []
    chunks: dict[tuple[bytes, int], dict[int, bytes]] = {}
    for item in items:
        if item[0] <= _SHORT_BYTES:
            identifiers.append(_decode_whole(item[1 : 1 + item[0]], [item]))
        elif item[0] == _CHUNK:
            place, length = int.from_bytes(item[17:19], "little"), int.from_bytes(item[19:21], "little")
            same = chunks.setdefault((item[1:17], length), {})
            if place in same:
                raise InconsistentItems(f"two different chunks {place} of one identifier of {length} bytes")
            same[place] = item
        else:
            raise InconsistentItems(f"an item begins with {item[0]}; allowed are 0..{_SHORT_BYTES} and {_CHUNK}")
    # Every chunk must be there once. Encoding the result again must give the same items, so each set has one encoding.
    for (_, length), by_place in chunks.items():
        count = -(-length // _CHUNK_BYTES)
        if sorted(by_place) != list(range(count)):
            raise InconsistentItems(
                f"an identifier of {length} bytes has {len(by_place)} chunks that are not the {count} needed"
            )
        whole = [by_place[place] for place in range(count)]
        identifiers.append(_decode_whole(b"".join(item[21:] for item in whole)[:length], whole))
    return sorted(identifiers)


def _decode_whole(content: bytes, items: list[bytes]) -> str:
    """Decode the identifier with UTF-8 `content`, and check that it encodes to `items`."""
    try:
        identifier = content.decode()
    except UnicodeDecodeError as error:
        raise InconsistentItems(f"an identifier of {len(content)} bytes is not UTF-8: {error.reason}") from error
    if items_of(identifier) != items:
        raise InconsistentItems(f"an identifier of {len(content)} bytes does not fit its padding, length or digest")
    return identifier


def _identifier_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=b"fkgsec psu id v1").digest()


def limbs_of(items: list[bytes]) -> np.ndarray:
    """Split items into limbs of 60 bits, least significant first: uint64 `[n, 5]`, the last limb below 2^56."""
    padded = np.zeros((len(items), 8 * NUM_LIMBS), dtype=np.uint8)
    padded[:, :ITEM_BYTES] = np.frombuffer(b"".join(items), dtype=np.uint8).reshape(-1, ITEM_BYTES)
    words = padded.view("<u8").astype(np.uint64)
    limbs = words.copy()
    # Limb i starts at bit 60 i = 64 i - 4 i: it takes the upper bits of word i - 1 and the lower bits of word i.
    for i in range(1, NUM_LIMBS):
        limbs[:, i] = (words[:, i - 1] >> np.uint64(64 - 4 * i)) | (words[:, i] << np.uint64(4 * i))
    return limbs & _LIMB_MASK


def items_from_limbs(limbs: np.ndarray) -> list[bytes]:
    """Join limbs to items: the inverse of `limbs_of`, for limbs in range."""
    words = np.empty((len(limbs), NUM_LIMBS), dtype="<u8")
    for i in range(NUM_LIMBS - 1):
        words[:, i] = (limbs[:, i] >> np.uint64(4 * i)) | (limbs[:, i + 1] << np.uint64(_LIMB_BITS - 4 * i))
    words[:, -1] = limbs[:, -1] >> np.uint64(4 * (NUM_LIMBS - 1))
    content = words.tobytes()
    stride = 8 * NUM_LIMBS
    return [content[start : start + ITEM_BYTES] for start in range(0, len(content), stride)]


def hash_items(parameters: Parameters, items: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Hash items to their cells, one per segment, and to the check value H.

    Args:
        parameters: salt and session, which key the hash.
        items: n items of 37 bytes.

    Returns:
        Cell indices, int64 `[n, 3]`, and H, uint64 `[n]` below p.

    Source: BLAKE2b (RFC 7693), keyed with the session and the salt.
    """
    key = derive(parameters.salt, "private set union table", parameters.session)
    hashed = b"".join(
        hashlib.blake2b(item, digest_size=32, key=key, person=b"fkgsec psu v1").digest() for item in items
    )
    words = np.frombuffer(hashed, dtype="<u8").reshape(-1, NUM_SEGMENTS + 1)
    # A multiplication and a shift map 32 bits of the hash to a cell of the segment, with a bias of at most segment / 2^32.
    segment = parameters.num_cells // NUM_SEGMENTS
    within = ((words[:, :NUM_SEGMENTS] >> _HALF_BITS) * np.uint64(segment)) >> _HALF_BITS
    places = within.astype(np.int64) + np.arange(NUM_SEGMENTS) * segment
    return places, words[:, NUM_SEGMENTS] % np.uint64(MERSENNE61.prime)


def tabulate(
    field: Field, places: np.ndarray, limbs: np.ndarray, checks: np.ndarray, multipliers: np.ndarray, num_cells: int
) -> np.ndarray:
    """Compute the table that holds n items: (r, r limbs, r H) added to each of an item's cells.

    Args:
        places: int64 `[n, 3]`, distinct cells of each item.
        limbs: uint64 `[n, L]`. checks: uint64 `[n]`, H of each item. multipliers: uint64 `[n]`, the r.

    Returns:
        uint64 `[num_cells, L + 2]`, elements of `field`.
    """
    keys = np.column_stack([np.ones(len(limbs), dtype=np.uint64), limbs, checks])
    rows = field.multiply(multipliers[:, None], keys)
    width = rows.shape[1]
    flat = places[:, :, None] * width + np.arange(width)
    values = np.broadcast_to(rows[:, None, :], flat.shape)
    return field.scatter_sum(flat.ravel(), values.ravel(), num_cells * width).reshape(num_cells, width)


def encode(parameters: Parameters, identifiers: Collection[str], randomness: Randomness) -> np.ndarray:
    """Make a client's table of its set, with fresh uniform multipliers.

    `encode(parameters, union, randomness)` is also the simulator: the sum of the clients' tables has its distribution.

    Args:
        identifiers: the client's set.
        randomness: source of the multipliers.

    Returns:
        uint64 `[num_cells * 7]`, elements below 2^61-1. The length depends on `parameters` alone.

    Raises `BadIdentifier` or `DuplicateIdentifier`.
    """
    return encode_with(parameters, identifiers, draw_multipliers(identifiers, randomness))


def draw_multipliers(identifiers: Collection[str], randomness: Randomness) -> np.ndarray:
    """Draw fresh uniform multipliers for a set's items, uint64 `[number of items]`, as `encode` does."""
    return MERSENNE61.uniform(len(set_items(identifiers)), randomness)


def encode_with(parameters: Parameters, identifiers: Collection[str], multipliers: np.ndarray) -> np.ndarray:
    """Make the table of `encode` with these multipliers.

    Args:
        multipliers: from `draw_multipliers`; use them for one table only.
    """
    items = set_items(identifiers)
    places, checks = hash_items(parameters, items)
    return tabulate(MERSENNE61, places, limbs_of(items), checks, multipliers, parameters.num_cells).ravel()


def peel(parameters: Parameters, table: np.ndarray) -> list[str]:
    """Peel a summed table, and return the identifiers of the union, sorted by code point.

    Args:
        table: uint64 `[num_cells * 7]`, elements below 2^61-1; not changed.

    Raises `PeelingError` when cells remain, `MalformedTable` or `InconsistentItems` when a client strayed from the protocol.
    """
    field, cells = MERSENNE61, table.reshape(parameters.num_cells, CELL_WIDTH).copy()
    names: set[bytes] = set()
    candidates = np.arange(parameters.num_cells)
    while len(candidates):
        # Goodrich and Mitzenmacher 2011, listing: read the pure cells, take their items out of all their cells, and repeat.
        # A cell that several items share passes for pure with probability about 2^-61.
        items, multipliers, places, checks = _pure_cells(parameters, cells, candidates)
        if not names.isdisjoint(items):
            raise MalformedTable("an item comes back after it was taken out: its three cells do not agree")
        names.update(items)
        # Only cells of removed items can become pure, so a chain of items does not cost m operations for each.
        candidates, local = np.unique(
            places, return_inverse=True
        )  # only these change: a chain of items costs no m each
        local = local.reshape(places.shape)
        peeled = tabulate(field, local, limbs_of(items), checks, field.negate(multipliers), len(candidates))
        cells[candidates] = field.add(cells[candidates], peeled)
    remaining = int(cells.any(axis=1).sum())
    if remaining:
        raise PeelingError(remaining, parameters.num_cells, balanced=is_balanced(cells))
    return identifiers_of(names)


def is_balanced(cells: np.ndarray) -> bool:
    """Return whether all segments have the same sum. Every sum of items has, since an item adds the same to each segment.

    Independent random values in the cells pass with probability p^-14.

    Args:
        cells: uint64 `[num_cells, 7]`, elements below 2^61-1.
    """
    segments = np.arange(len(cells)) * NUM_SEGMENTS // len(cells)
    columns = segments[:, None] * CELL_WIDTH + np.arange(CELL_WIDTH)
    sums = MERSENNE61.scatter_sum(columns.ravel(), cells.ravel(), NUM_SEGMENTS * CELL_WIDTH)
    sums = sums.reshape(NUM_SEGMENTS, CELL_WIDTH)
    return bool((sums == sums[0]).all())


def _pure_cells(
    parameters: Parameters, cells: np.ndarray, candidates: np.ndarray
) -> tuple[list[bytes], np.ndarray, np.ndarray, np.ndarray]:
    """Find the distinct items of the pure cells among the candidates, with their multipliers, cells and H."""
    field = MERSENNE61
    candidates = candidates[cells[candidates, 0] != 0]
    a, b, c = cells[candidates, 0], cells[candidates, 1:-1], cells[candidates, -1]
    # A pure cell holds (R, R limbs, R H): divide by the first element to get the key, and compare H and the cell index.
    limbs = field.multiply(b, field.inverse(a)[:, None])
    in_range = (limbs <= _LIMB_MASK).all(axis=1) & (limbs[:, -1] < 2**_LAST_LIMB_BITS)
    a, c, limbs, candidates = a[in_range], c[in_range], limbs[in_range], candidates[in_range]
    items = items_from_limbs(limbs)
    places, checks = hash_items(parameters, items)
    pure = (field.multiply(a, checks) == c) & (places == candidates[:, None]).any(axis=1)
    # An item that is alone in two cells is removed once.
    first = {items[i]: i for i in np.flatnonzero(pure)}
    chosen = np.fromiter(first.values(), dtype=np.int64, count=len(first))
    return list(first), a[chosen], places[chosen], checks[chosen]
