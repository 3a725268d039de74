"""Private set union of two parties (Kolesnikov, Rosulek, Trieu and Wang 2019, "KRTW19"), which FedR cites.

The sender holds a set X of identifiers, the receiver a set Y. The receiver learns the union. Seven pure functions are the
seven steps, six messages cross, `union_two_party` drives them in one process. Needs the extra `two-party`.

1. Offer. The receiver draws a salt. Both hash their items to `num_bins` bins of `load` slots, a function of the public cap.
2. Queries. The sender fills its bins with a dummy and shuffles each. For every slot it blinds the item for an oblivious
   pseudorandom function (`protocols.oprf`); every slot has a key of its own at the receiver, k_j.
3. Programs. For slot j the receiver draws s_j and interpolates the polynomial P_j with P_j(y) = s_j - F_{k_j}(y) for every
   y of its bin and for the dummy, and uniform values at uniform other nodes, so that the degree says nothing.
4. Indications. The sender sends P_j(x) + F_{k_j}(x). It is s_j exactly when x is in Y or the dummy (reverse membership).
5. Choices, transfers, end. By oblivious transfer the receiver gets x where the test failed, and the dummy where it held.

What each party sees, beyond the public cap and `max_bytes` (all six messages have lengths that depend on them alone):
- Sender: nothing. The P_j are uniform polynomials to it: it knows F_{k_j} at one input, and s_j hides that value too.
- Receiver: the union, hence X \\ Y. Of the intersection it learns nothing, not its size either. A dummy passes the test as
  a member does, so a bin shows `load` minus its new items, whatever X and Y share; a slot's place is uniform, so the places
  of the new items say nothing. All that it sees can be simulated from X \\ Y, Y and the public values. The number of new
  items in each bin is known already before the transfers, by a receiver that stops there.
- **Who brought what.** A server that is the receiver against each client in turn learns which client brought each new item,
  and of whatever it leaves out of its own set who holds it. That is the protocol's output, not a flaw of it, and why it is
  no default here: `protocols.psu` hides the owner.
- Not hidden: the receiver's running time grows with |Y|. Identifiers come out in clear.

Dummies and order decide this. Dummies outside the receiver's bins would look like new items, come out as dummies, and leave
the number of members of each bin in the open. Unshuffled bins, real items first, would show members by the places before
the last new item: the authors' published code (osu-crypto/PSU) fills its bins so. Jia et al. 2022 speak of "unnecessary
leakage" in KRTW19; their full text was not at hand, and these two are the ways that we see and close.

Assumes: both follow the protocol (semi-honest). A receiver that lies gets all of X by choosing it; a sender that lies adds
items, or damages one of two transfers and sees from an abort which one the receiver opened. Bins overflow with a chance
below 2^-40 for each pair of sets fixed before the salt; the test errs with a chance below 2^-100.

Cost, one core, both parties, both directions: 1 s and 1.2 MB at cap 237 (146 bytes each), 4 s and 4.2 MB at 1,024 and 67 s
and 73 MB at 16,384 (32 bytes each).

Source: KRTW19. Differs: (a) the function is the RFC 9497 one on ristretto255, not one from transfer
extension, and transfers are Chou and Orlandi 2015, so every slot costs scalar multiplications; (b) the sender sends its
indication in the clear where the authors' code runs a private equality test: for x not in Y it is a function of x, which the
receiver gets anyway, and for all others it is s_j; (c) bins are shuffled; (d) field 2^127-1 in place of GF(2^l).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from protocols import oblivious_transfer, oprf
from protocols.errors import MalformedMessage, SettingError
from protocols.one_shot import Taken
from protocols.prg import Randomness, draw
from protocols.psu_two_party_table import (
    FIELD_BYTES,
    PRIME,
    Setting,
    evaluate,
    fill_bins,
    interpolate,
    interpolation_rows,
    locate,
    pad_set,
    shuffle_slots,
    split,
    uniform_elements,
    unpack_elements,
    unpad,
)
from protocols.secagg import Deliver, direct
from protocols.secagg_messages import Message, check_header

_SALT_BYTES = 32
_Kind = TypeVar("_Kind", bound=Message)


# Messages.


class Offer(Message, frozen=True, tag="two-party-offer"):
    """Receiver to sender: the salt of the bins, and the public values, to be compared."""

    salt: bytes
    cap: int
    max_bytes: int


class Queries(Message, frozen=True, tag="two-party-queries"):
    """Sender to receiver: a blinded element for each slot, and the element of the oblivious transfers."""

    blinded: bytes
    transfer_element: bytes


class Programs(Message, frozen=True, tag="two-party-programs"):
    """Receiver to sender: for each slot the evaluated element and the load + 1 coefficients of its polynomial."""

    evaluated: bytes
    coefficients: bytes


class Indications(Message, frozen=True, tag="two-party-indications"):
    """Sender to receiver: a field element for each slot."""

    indications: bytes


class Choices(Message, frozen=True, tag="two-party-choices"):
    """Receiver to sender: an element for each slot."""

    elements: bytes


class Transfers(Message, frozen=True, tag="two-party-transfers"):
    """Sender to receiver: two ciphertexts for each slot."""

    sealed: bytes


AnyMessage = Offer | Queries | Programs | Indications | Choices | Transfers
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def decode(frame: bytes) -> AnyMessage:
    """The message in `frame`, made by `secagg_messages.encode`. Raises `MalformedMessage`."""
    try:
        return _decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"{len(frame)} bytes cannot be read as a message: {error}") from error


# States: what a party keeps between two of its steps.


@dataclass(frozen=True)
class ReceiverOffered:
    setting: Setting
    salt: bytes
    bins: tuple[tuple[bytes, ...], ...] = field(repr=False)
    taken: Taken = field(repr=False, compare=False)


@dataclass(frozen=True)
class ReceiverProgrammed:
    offered: ReceiverOffered
    secrets: tuple[int, ...] = field(repr=False)
    transfer_element: bytes


@dataclass(frozen=True)
class ReceiverChose:
    offered: ReceiverOffered
    choices: tuple[oblivious_transfer.Choice, ...] = field(repr=False)


@dataclass(frozen=True)
class SenderQueried:
    setting: Setting
    salt: bytes
    slots: tuple[bytes, ...] = field(repr=False)
    blinds: tuple[bytes, ...] = field(repr=False)
    transfer_key: oblivious_transfer.TransferKey
    taken: Taken = field(repr=False, compare=False)


class TwoPartyUnion(NamedTuple):
    """The receiver's result, both sorted. `learnt` is X \\ Y: what this sender, and nobody else in the run, brought."""

    identifiers: tuple[str, ...]
    learnt: tuple[str, ...]


# The seven steps. Steps 3 to 7 are taken once: a second answer from one state tells of the set what the first kept back, and
# raises `StateReused`. Each raises `ReplayedMessage`, `UnexpectedMessage` or `UnknownSender` for a message of another run, kind
# or party, `WrongLength` for parts of another length, and the errors of its parts.


def receiver_offer(
    setting: Setting, identifiers: Collection[str], randomness: Randomness
) -> tuple[ReceiverOffered, Offer]:
    """Step 1: hash Y to bins under a fresh salt.

    Raises `BadIdentifier`, `DuplicateIdentifier`, `SetTooLarge`, `BinOverflow`.
    """
    items = pad_set(setting, identifiers)
    salt = draw(randomness, _SALT_BYTES)
    offer = Offer(setting.session, setting.round, setting.receiver, salt, setting.cap, setting.max_bytes)
    return ReceiverOffered(setting, salt, fill_bins(setting, salt, items), Taken(setting.receiver)), offer


def sender_query(
    setting: Setting, identifiers: Collection[str], message: Message, randomness: Randomness
) -> tuple[SenderQueried, Queries]:
    """Step 2: hash X to bins, fill them with dummies, shuffle each, and blind every slot.

    Raises as `receiver_offer`, and `SettingError` when the receiver holds other public values.
    """
    offer = _check(setting, message, Offer)
    if (offer.cap, offer.max_bytes) != (setting.cap, setting.max_bytes) or len(offer.salt) != _SALT_BYTES:
        raise SettingError(
            f"{setting.receiver} offers cap {offer.cap}, max_bytes {offer.max_bytes} and a salt of {len(offer.salt)} "
            f"bytes; agreed are {setting.cap}, {setting.max_bytes} and {_SALT_BYTES}"
        )
    bins = fill_bins(setting, offer.salt, pad_set(setting, identifiers))
    slots = shuffle_slots(setting, bins, randomness)
    blinded = [oprf.blind(item, randomness) for item in slots]
    key = oblivious_transfer.announce(randomness)
    state = SenderQueried(setting, offer.salt, slots, tuple(each.blind for each in blinded), key, Taken(setting.sender))
    elements = b"".join(each.element for each in blinded)
    return state, Queries(setting.session, setting.round, setting.sender, elements, key.element)


def receiver_program(
    state: ReceiverOffered, message: Message, randomness: Randomness
) -> tuple[ReceiverProgrammed, Programs]:
    """Step 3: evaluate the blinded elements, and program one polynomial for each slot. Raises `InvalidElement`."""
    state.taken.mark("receiver_program")
    setting = state.setting
    queries = _check(setting, message, Queries)
    blinded = split(queries.blinded, oprf.ELEMENT_BYTES, setting.num_slots, "blinded elements")
    oprf.check_element(queries.transfer_element, "the element of the transfers")
    seed = draw(randomness, oprf.SEED_BYTES)
    keys = [oprf.derive_key(seed, setting.context(slot)) for slot in range(setting.num_slots)]
    evaluated = [oprf.blind_evaluate(key, element) for key, element in zip(keys, blinded, strict=True)]
    secrets = uniform_elements(randomness, setting.num_slots)
    coefficients = bytearray()
    for place, items in enumerate(state.bins):
        slots = slice(place * setting.load, (place + 1) * setting.load)
        for polynomial in _program_bin(state, items, keys[slots], secrets[slots], randomness):
            coefficients += b"".join(value.to_bytes(FIELD_BYTES, "little") for value in polynomial)
    programs = Programs(setting.session, setting.round, setting.receiver, b"".join(evaluated), bytes(coefficients))
    return ReceiverProgrammed(state, tuple(secrets), queries.transfer_element), programs


def _program_bin(
    state: ReceiverOffered,
    items: tuple[bytes, ...],
    keys: Sequence[bytes],
    secrets: Sequence[int],
    randomness: Randomness,
) -> list[list[int]]:
    """The polynomials of a bin's slots: through s - F(y) at the receiver's items and the dummy, uniform elsewhere."""
    members = [*items, state.setting.dummy]
    elements = [oprf.hash_to_group(item) for item in members]
    num_free = state.setting.load + 1 - len(members)
    nodes = [locate(state.setting, state.salt, item)[1] for item in members]
    rows = interpolation_rows(nodes + uniform_elements(randomness, num_free))
    polynomials = []
    for key, secret in zip(keys, secrets, strict=True):
        outputs = [oprf.output(item, oprf.multiply(key, each)) for item, each in zip(members, elements, strict=True)]
        values = [(secret - _mask(each)) % PRIME for each in outputs] + uniform_elements(randomness, num_free)
        polynomials.append(interpolate(rows, values))
    return polynomials


def _mask(output: bytes) -> int:
    """An output of the pseudorandom function, 512 bits, as a field element: the bias is below 2^-380."""
    return int.from_bytes(output, "little") % PRIME


def sender_indicate(state: SenderQueried, message: Message) -> Indications:
    """Step 4: P_j(x) + F_{k_j}(x) for every slot. Raises `InvalidElement`, `OutOfRing`."""
    state.taken.mark("sender_indicate")
    setting = state.setting
    programs = _check(setting, message, Programs)
    evaluated = split(programs.evaluated, oprf.ELEMENT_BYTES, setting.num_slots, "evaluated elements")
    width = (setting.load + 1) * FIELD_BYTES
    polynomials = split(programs.coefficients, width, setting.num_slots, "polynomials")
    indications = bytearray()
    for item, blind, element, packed in zip(state.slots, state.blinds, evaluated, polynomials, strict=True):
        mask = _mask(oprf.finalize(item, blind, element))
        value = evaluate(unpack_elements(packed, "a coefficient"), locate(setting, state.salt, item)[1])
        indications += ((value + mask) % PRIME).to_bytes(FIELD_BYTES, "little")
    return Indications(setting.session, setting.round, setting.sender, bytes(indications))


def receiver_choose(
    state: ReceiverProgrammed, message: Message, randomness: Randomness
) -> tuple[ReceiverChose, Choices]:
    """Step 5: choose the dummy where the test held, the item where it failed. Raises `OutOfRing`."""
    state.offered.taken.mark("receiver_choose")
    setting = state.offered.setting
    received = _check(setting, message, Indications).indications
    split(received, FIELD_BYTES, setting.num_slots, "indications")
    choices = [
        oblivious_transfer.choose(
            state.transfer_element, indication == secret, context=setting.context(slot), randomness=randomness
        )
        for slot, (indication, secret) in enumerate(
            zip(unpack_elements(received, "an indication"), state.secrets, strict=True)
        )
    ]
    elements = b"".join(choice.element for choice in choices)
    chosen = Choices(setting.session, setting.round, setting.receiver, elements)
    return ReceiverChose(state.offered, tuple(choices)), chosen


def sender_transfer(state: SenderQueried, message: Message, randomness: Randomness) -> Transfers:
    """Step 6: for every slot the item and the dummy, of which the receiver can open one. Raises `InvalidElement`."""
    state.taken.mark("sender_transfer")
    setting = state.setting
    choices = _check(setting, message, Choices)
    elements = split(choices.elements, oprf.ELEMENT_BYTES, setting.num_slots, "chosen elements")
    sealed = bytearray()
    for slot, (item, element) in enumerate(zip(state.slots, elements, strict=True)):
        messages = (item, setting.dummy)
        context = setting.context(slot)
        pair = oblivious_transfer.transfer(
            state.transfer_key, element, messages, context=context, randomness=randomness
        )
        sealed += pair[0] + pair[1]
    return Transfers(setting.session, setting.round, setting.sender, bytes(sealed))


def receiver_finish(state: ReceiverChose, message: Message) -> TwoPartyUnion:
    """Step 7: open the transfers and join what is new to Y. Raises `BadCiphertext`, `MalformedMessage`."""
    state.offered.taken.mark("receiver_finish")
    setting, salt = state.offered.setting, state.offered.salt
    transfers = _check(setting, message, Transfers)
    width = setting.item_bytes + oblivious_transfer.OVERHEAD_BYTES
    sealed = split(transfers.sealed, width, 2 * setting.num_slots, "ciphertexts")
    bins = [set(items) for items in state.offered.bins]
    learnt = []
    for slot, choice in enumerate(state.choices):
        pair = (sealed[2 * slot], sealed[2 * slot + 1])
        item = oblivious_transfer.receive(choice, pair, context=setting.context(slot), source=setting.sender)
        place = slot // setting.load
        if choice.bit:
            if item != setting.dummy:
                raise MalformedMessage(f"{setting.sender} transfers something else than a dummy in slot {slot}")
            continue
        if item in bins[place] or locate(setting, salt, item)[0] != place:
            raise MalformedMessage(f"{setting.sender} transfers an item in slot {slot} that does not belong there")
        bins[place].add(item)
        learnt.append(unpad(setting, item))
    own = [unpad(setting, item) for items in state.offered.bins for item in items]
    return TwoPartyUnion(tuple(sorted(own + learnt)), tuple(sorted(learnt)))


def union_two_party(
    sender_set: Collection[str],
    receiver_set: Collection[str],
    *,
    cap: int,
    max_bytes: int,
    session: bytes,
    sender_randomness: Randomness,
    receiver_randomness: Randomness,
    round: int = 0,
    sender: str = "client",
    receiver: str = "server",
    deliver: Deliver = direct,
) -> TwoPartyUnion:
    """One run in one process, every message through `deliver`. The result is the receiver's; the sender has none.

    Args:
        sender_set, receiver_set: distinct identifiers, at most `cap` each, of at most `max_bytes` bytes of UTF-8. Two that
            differ only in their normal form stay two.
        session, round: name the run; no two runs may share both.

    Raises: as the seven steps; `MissingExtra` without rbcl.
    """
    setting = Setting(session, round, sender, receiver, cap, max_bytes)
    offered, offer = receiver_offer(setting, receiver_set, receiver_randomness)
    queried, queries = sender_query(setting, sender_set, deliver(receiver, sender, offer), sender_randomness)
    programmed, programs = receiver_program(offered, deliver(sender, receiver, queries), receiver_randomness)
    indications = sender_indicate(queried, deliver(receiver, sender, programs))
    chose, choices = receiver_choose(programmed, deliver(sender, receiver, indications), receiver_randomness)
    transfers = sender_transfer(queried, deliver(receiver, sender, choices), sender_randomness)
    return receiver_finish(chose, deliver(sender, receiver, transfers))


def _check(setting: Setting, message: Message, kind: type[_Kind]) -> _Kind:
    source = setting.receiver if kind in (Offer, Programs, Choices) else setting.sender
    return check_header(message, kind, session=setting.session, round=setting.round, senders=(source,))
