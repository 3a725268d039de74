"""The terms of a deployed federation, agreed on before it runs: one file, the same for the server and every client.

    keys = {name: new_identity(folder / name, run) for name in ("north", "south")}       # each on that client's machine
    terms = Agreement(run=new_run(), options=KgeOptions(defense="secagg"), parties=("north", "south"), identities=keys)
    terms.write(Path("agreement.json"))
    Agreement.read(Path("agreement.json")).digest                                   # bound into every message

All terms are public. Parties that compare digests over another channel know that all have the same terms and keys.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal, Self

import msgspec

from fkgsec.defenses.options import check_defense, parse_defense
from fkgsec.defenses.terms import SESSIONS, PartyEntropy, Terms
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import CODECS
from fkgsec.experiments.deploy import FEWEST_TRIPLES
from fkgsec.experiments.deploy.core.audit import AUDITS, OF_MODELS
from fkgsec.experiments.deploy.core.messages import LARGEST
from fkgsec.experiments.runs.writing import read_bytes, write_atomically
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.core.prg import SEED_BYTES, digest
from fkgsec.text import printable

ALGORITHMS = (
    "fede", "fedep", "fedepl", "fedr", "feds", "fedlu", "fedprox", "fedec", "pfedeg", "fede-svd", "fede-svd+", "fede-kd",
)  # fmt: skip
DEFENSES = ("psu", "secagg", "suppress", "dp", "robust")
"""Supported algorithms and defenses; others are refused by name."""

SECRET = "identity.key"
MOST_FEWEST = 1_000_000
Source = Literal["operating system", "laboratory"]


class Agreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of one run.

    Attributes:
        run: 32 hexadecimal digits, drawn for each run (`new_run`); names its sessions.
        options: training and defense. parties: the clients' names, in the order of sums.
        identities: each client's public signing key in hexadecimal (`new_identity`); required under `secagg`.
        randomness: source of training's draws. "operating system": each party draws a secret seed. "laboratory":
            `options.seed`, as in one process; only for comparisons, since anyone with the data can repeat the training. Keys,
            shares, masks and noise always come from the operating system.
        audit: attacks of `core.audit.AUDITS` that every party scores against its truth after the run; it sends the figures.
        fewest_triples: smallest group of validation or test triples whose figures a party reveals; attacks need twice as many.
            Smaller groups would reveal single ranks.
        largest_bytes: of a message; larger ones are refused unread.

    Raises:
        SpecError: names the field, its value and the allowed values.
    """

    run: str
    options: KgeOptions
    parties: tuple[str, ...]
    identities: dict[str, str] = {}
    randomness: Source = "operating system"
    audit: tuple[str, ...] = ()
    fewest_triples: int = FEWEST_TRIPLES
    largest_bytes: int = LARGEST

    def __post_init__(self) -> None:
        if not _is_hex(self.run, 16):
            raise SpecError(f"run must be 32 hexadecimal digits; got {self.run!r}")
        if len(self.parties) < 2 or len(set(self.parties)) != len(self.parties):
            raise SpecError(f"parties must be at least 2 different names; got {', '.join(self.parties) or 'none'}")
        if not 1 <= self.largest_bytes <= LARGEST:
            raise SpecError(f"largest_bytes must lie in 1..{LARGEST:,}; got {self.largest_bytes}")
        if not 1 <= self.fewest_triples <= MOST_FEWEST:
            raise SpecError(f"fewest_triples must lie in 1..{MOST_FEWEST:,}; got {self.fewest_triples}")
        check_apart(self.options)
        # A sample is a small group, too.
        if not self.reveals(self.options.eval_sample or 0):
            raise SpecError(
                f"eval_sample must be at least fewest_triples, {self.fewest_triples}; got {self.options.eval_sample}: the sum of "
                "so few ranks tells single ones"
            )
        check_audit(self.audit, self.options)
        needed = self.parties if parse_defense(self.options.defense).secagg else ()
        if missing := [name for name in needed if name not in self.identities]:
            raise SpecError(f"identities: {', '.join(missing)} must have a public key under secagg")
        for name, key in self.identities.items():
            if name not in self.parties:
                raise SpecError(f"identities: {name!r} is no party; allowed: {', '.join(self.parties)}")
            if not _is_hex(key, 32):
                raise SpecError(f"identities: the key of {name} must be 64 hexadecimal digits; got {key!r}")

    def reveals(self, count: int) -> bool:
        """Return True if a party reveals figures of this many triples; in the laboratory it always does.

        Args:
            count: validation or test triples.
        """
        # Sums over few triples would reveal single ranks.
        return self.randomness == "laboratory" or count == 0 or count >= self.fewest_triples

    @property
    def digest(self) -> bytes:
        """SHA-256 of all terms but the device, which each party chooses."""
        # Parties may train on different devices under one agreement.
        plain = msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, device="auto"))
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).digest()

    @property
    def fingerprint(self) -> str:
        """First 160 bits of the digest, as ten groups of four hexadecimal digits to read aloud."""
        # 160 bits resist a search for a second agreement with the same fingerprint, and can still be read aloud.
        digits = self.digest.hex()[:40]
        return "-".join(digits[start : start + 4] for start in range(0, 40, 4))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The parties' names in messages."""
        return tuple(client_party(name) for name in self.parties)

    def write(self, path: Path) -> None:
        """Write the terms as JSON.

        Args:
            path: file to replace.

        Raises:
            RunError: it cannot be written.
        """
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of `write`.

        Args:
            path: file, possibly from another party.

        Raises:
            RunError: it cannot be read. SpecError: terms that are not allowed.
        """
        try:
            return msgspec.json.decode(read_bytes(path), type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            raise RunError(f"{path}: no agreement ({printable(str(error), 300)})") from error
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from error


def check_apart(options: KgeOptions) -> None:
    """Check that options and defense are supported with parties apart.

    Args:
        options: of the run.

    Raises:
        SpecError: they are not.
    """
    if not isinstance(options, KgeOptions):
        raise SpecError(f"options: parties apart embed knowledge graphs; got {type(options).__name__}")
    if options.algorithm not in ALGORITHMS:
        why = "is not supported" if RECIPES[options.algorithm].shared else "exchanges nothing"
        raise SpecError(f"algorithm: {options.algorithm} {why} with parties apart; allowed: {', '.join(ALGORITHMS)}")
    if options.has_encoder:
        raise SpecError(f"model: {options.model} has an encoder, which is not supported with parties apart")
    # Parties know only their own vocabulary, so they cannot rank against all entities.
    if options.keeps_all_entities:
        raise SpecError(
            "negative_scope and rank_scope must be own with parties apart, who know no vocabulary but theirs; got "
            f"{options.negative_scope!r} and {options.rank_scope!r}"
        )
    if options.keeps_by_client:
        raise SpecError("best_round must be federation with parties apart; got 'client'")
    # Anyone who has the seed could derive all keys and masks.
    if options.protocol_seed is not None:
        raise SpecError("protocol_seed opens every upload to anyone who has it: leave it out with parties apart")
    check_defense(options)
    defense = parse_defense(options.defense)
    for name in defense.names:
        if name not in DEFENSES:
            raise SpecError(f"defense: {name} is not supported with parties apart; allowed: {', '.join(DEFENSES)}")
    if defense.secagg and defense.secagg.dropout:
        raise SpecError("defense: secagg: dropout simulates parties that fall silent; apart they do: leave it out")


def check_audit(names: tuple[str, ...], options: KgeOptions) -> None:
    """Check that a party can score these attacks by itself.

    Args:
        names: attacks. options: of the run.

    Raises:
        SpecError: an attack needs another client's data, or single uploads that nobody sees.
    """
    recipe, summed = RECIPES[options.algorithm], parse_defense(options.defense).secagg is not None
    allowed = ", ".join(OF_MODELS)
    for name in names:
        if name not in AUDITS:
            raise SpecError(f"audit: {name!r} cannot be scored by one party alone; allowed: {', '.join(AUDITS)}")
        if name not in OF_MODELS and summed:
            raise SpecError(f"audit: {name} is of single uploads, which secagg sums; allowed: {allowed}")
        if name not in OF_MODELS and recipe.codec != "dense":
            raise SpecError(
                f"audit: {name} is of whole uploads, and {options.algorithm} sends parts; allowed: {allowed}"
            )


def agreed_terms(agreement: Agreement) -> Terms:
    """Derive the terms of a defended exchange from the agreement.

    Args:
        agreement: of the run.
    """
    recipe = RECIPES[agreement.options.algorithm]
    terms = Terms(agreement.options, agreement.addresses, recipe.shared, CODECS[recipe.codec])
    keys = {client_party(name): bytes.fromhex(key) for name, key in agreement.identities.items()}
    # Every party derives the same session names. The digest of the agreement is part of them, so parties with other terms open
    # nothing together.
    sessions = {
        (what, table): digest("session of a deployed federation", agreement.digest, what, table)[:16]
        for what in SESSIONS
        for table in recipe.shared
    }
    terms.adopt(keys, sessions)
    return terms


def new_run() -> str:
    """Draw the name of a run."""
    return secrets.token_hex(16)


def new_identity(folder: Path, run: str) -> str:
    """Draw a party's lasting secret for a run, unless its folder has one, and return the public key in hexadecimal.

    Args:
        folder: of the party's state; created if it is missing.
        run: the key is derived for this run.

    Raises:
        RunError: the secret cannot be written or read.
    """
    path = folder / SECRET
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Keys and noise derive from the secret, so only the user may read it, and the file must survive a crash: create it
        # exclusively with mode 600, and flush it to the disk.
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
                handle.write(secrets.token_bytes(SEED_BYTES))
                handle.flush()
                os.fsync(handle.fileno())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    return PartyEntropy(read_secret(folder), b"", run).identity.public_key().public_bytes_raw().hex()


def read_secret(folder: Path) -> bytes:
    """Read the lasting secret of a client, 32 bytes.

    Args:
        folder: of its state.

    Raises:
        RunError: it is missing or damaged.
    """
    path = folder / SECRET
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); new_identity makes it") from error
    if len(secret) != SEED_BYTES:
        raise RunError(f"{path}: a secret has {SEED_BYTES} bytes; got {len(secret)}. Make a new one and agree on it")
    return secret


def _is_hex(text: str, num_bytes: int) -> bool:
    return len(text) == 2 * num_bytes and all(letter in "0123456789abcdef" for letter in text)
