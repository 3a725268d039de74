"""What the parties of a deployed federation agree on before anything runs: one file, the same for the server and every client.

    keys = {name: new_identity(folder / name) for name in ("north", "south")}       # each where that client is
    terms = Agreement(run=new_run(), options=KgeOptions(defense="secagg"), parties=("north", "south"), identities=keys)
    terms.write(Path("agreement.json"))
    Agreement.read(Path("agreement.json")).digest                                   # what every message is bound to

All of it is public. Whoever compares digests over another channel knows that nobody was given other terms or other keys.
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
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.core.prg import SEED_BYTES, digest
from fkgsec.text import printable

ALGORITHMS = (
    "fede",
    "fedep",
    "fedepl",
    "fedr",
    "feds",
    "fedlu",
    "fedprox",
    "fedec",
    "pfedeg",
    "fede-svd",
    "fede-svd+",
    "fede-kd",
)
DEFENSES = ("psu", "secagg", "suppress", "dp", "robust")
"""What is supported with parties apart; anything else is refused by name."""

SECRET = "identity.key"
MOST_FEWEST = 1_000_000
Source = Literal["operating system", "laboratory"]


class Agreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of one run.

    Attributes:
        run: 32 hexadecimal digits, drawn anew for each run (`new_run`); names its sessions.
        options: what is trained and how it is defended.
        parties: the clients' names, in the order in which sums are taken.
        identities: by name the public key that a client signs with, in hexadecimal (`new_identity`); needed under `secagg`.
        randomness: what training draws from. "operating system": every party draws a seed of its own, which it keeps.
            "laboratory": `options.seed`, as in one process; for comparisons alone, since whoever has the data as well can train
            the federation again. Keys, shares, masks and noise come from the operating system in either case.
        audit: attacks that every party scores against its own truth after the run, of `core.audit.AUDITS`; their figures cross.
        fewest_triples: of a smaller group of its validation or test triples a party tells nothing, nor figures of attacks on
            fewer than twice as many: single ranks would follow.
        largest_bytes: of a message; a larger one is refused before it is read.

    Raises:
        SpecError: names the field, its value and what is allowed.
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
        if not self.tells(self.options.eval_sample or 0):
            raise SpecError(
                f"eval_sample must be at least fewest_triples, {self.fewest_triples}; got {self.options.eval_sample}: the sum of "
                "so few ranks tells single ones"
            )
        check_audit(self.audit, self.options)
        self._check_identities()

    def _check_identities(self) -> None:
        needed = self.parties if parse_defense(self.options.defense).secagg else ()
        if missing := [name for name in needed if name not in self.identities]:
            raise SpecError(f"identities: {', '.join(missing)} must have a public key under secagg")
        for name, key in self.identities.items():
            if name not in self.parties:
                raise SpecError(f"identities: {name!r} is no party; allowed: {', '.join(self.parties)}")
            if not _is_hex(key, 32):
                raise SpecError(f"identities: the key of {name} must be 64 hexadecimal digits; got {key!r}")

    def tells(self, count: int) -> bool:
        """Whether a party tells figures of so many triples. In the laboratory single ranks cross anyway."""
        return self.randomness == "laboratory" or count == 0 or count >= self.fewest_triples

    @property
    def digest(self) -> bytes:
        """sha256 of all of it but the device, which is each party's own."""
        plain = msgspec.structs.replace(self, options=msgspec.structs.replace(self.options, device="auto"))
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).digest()

    @property
    def fingerprint(self) -> str:
        """The first 160 bits of the digest, as ten groups of four hexadecimal digits that people can read to each other."""
        digits = self.digest.hex()[:40]
        return "-".join(digits[start : start + 4] for start in range(0, 40, 4))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The parties as messages name them."""
        return tuple(client_party(name) for name in self.parties)

    def write(self, path: Path) -> None:
        """Write it as JSON. Raises `RunError`."""
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises `RunError` for a file that cannot be read, `SpecError` for what is not allowed."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            raise RunError(f"{path}: no agreement ({printable(str(error), 300)})") from error
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from error


def check_apart(options: KgeOptions) -> None:
    """Raises `SpecError` for options that are not supported with parties apart, and for a defense that does not fit."""
    if not isinstance(options, KgeOptions):
        raise SpecError(f"options: parties apart embed knowledge graphs; got {type(options).__name__}")
    if options.algorithm not in ALGORITHMS:
        why = "is not supported" if RECIPES[options.algorithm].shared else "exchanges nothing"
        raise SpecError(f"algorithm: {options.algorithm} {why} with parties apart; allowed: {', '.join(ALGORITHMS)}")
    if options.has_encoder:
        raise SpecError(f"model: {options.model} has an encoder, which is not supported with parties apart")
    if options.keeps_all_entities:
        raise SpecError(
            "negative_scope and rank_scope must be own with parties apart, who know no vocabulary but theirs; got "
            f"{options.negative_scope!r} and {options.rank_scope!r}"
        )
    if options.keeps_by_client:
        raise SpecError("best_round must be federation with parties apart; got 'client'")
    if options.protocol_seed is not None:
        raise SpecError("protocol_seed opens every upload to whoever has it: leave it out with parties apart")
    check_defense(options)
    defense = parse_defense(options.defense)
    for name in defense.names:
        if name not in DEFENSES:
            raise SpecError(f"defense: {name} is not supported with parties apart; allowed: {', '.join(DEFENSES)}")
    if defense.secagg and defense.secagg.dropout:
        raise SpecError("defense: secagg: dropout simulates parties that fall silent; apart they do: leave it out")


def check_audit(names: tuple[str, ...], options: KgeOptions) -> None:
    """Raises `SpecError` for attacks that a party cannot score by itself."""
    recipe, summed = RECIPES[options.algorithm], parse_defense(options.defense).secagg is not None
    for name in names:
        if name not in AUDITS:
            raise SpecError(f"audit: {name!r} cannot be scored by one party alone; allowed: {', '.join(AUDITS)}")
        if name not in OF_MODELS and summed:
            raise SpecError(f"audit: {name} is of single uploads, which secagg sums; allowed: {', '.join(OF_MODELS)}")
        if name not in OF_MODELS and recipe.codec != "dense":
            raise SpecError(
                f"audit: {name} is of whole uploads, and {options.algorithm} sends parts; allowed: {', '.join(OF_MODELS)}"
            )


def agreed_terms(agreement: Agreement) -> Terms:
    """What a defended exchange builds on, from the public agreement alone."""
    recipe = RECIPES[agreement.options.algorithm]
    terms = Terms(agreement.options, agreement.addresses, recipe.shared, CODECS[recipe.codec])
    keys = {client_party(name): bytes.fromhex(key) for name, key in agreement.identities.items()}
    sessions = {
        (what, table): digest("session of a deployed federation", agreement.digest, what, table)[:16]
        for what in SESSIONS
        for table in recipe.shared
    }
    terms.adopt(keys, sessions)
    return terms


def new_run() -> str:
    """The name of a run, from the operating system."""
    return secrets.token_hex(16)


def new_identity(folder: Path, run: str) -> str:
    """Draw a party's lasting secret for one run into its folder, where only its user may read it; returns the public key. A
    folder that is made here is for its user alone, since the party's models will lie in it.

    Keys and noise derive from the secret. A secret that is there is kept, so that the same key comes back.

    Raises `RunError` where it cannot be written.
    """
    path = folder / SECRET
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
                handle.write(secrets.token_bytes(SEED_BYTES))
                handle.flush()
                os.fsync(handle.fileno())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
    return PartyEntropy(read_secret(folder), b"", run).identity.public_key().public_bytes_raw().hex()


def read_secret(folder: Path) -> bytes:
    """The lasting secret of a client. Raises `RunError` where it is missing or damaged."""
    path = folder / SECRET
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); new_identity makes it") from error
    if len(secret) != SEED_BYTES:
        raise RunError(
            f"{path}: has {len(secret)} bytes where a secret has {SEED_BYTES}; make a new one and agree on it"
        )
    return secret


def _is_hex(text: str, num_bytes: int) -> bool:
    return len(text) == 2 * num_bytes and all(letter in "0123456789abcdef" for letter in text)
