"""Terms that the parties of a defended exchange agree on, and the source of their randomness.

terms = Terms(options, parties, tables, codec)
terms.agree(Entropy.drawn(options, run))               # keys and names of sessions
terms.prepare("entities", num_rows, width, 1)          # encoding and noise, once the table's size is known
terms.setting(session, 1, participants, vectors, threshold)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.defenses.options import DpOptions, parse_defense
from fkgsec.defenses.privacy import LocalNoise, RingNoise, local_noise, ring_noise, ring_of
from fkgsec.errors import SpecError
from fkgsec.exchange import Codec
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.protocols import psu
from fkgsec.protocols.core.errors import DisconnectedGraph, OutOfRing, SettingError
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.prg import SEED_BYTES, Randomness, Ring, derive, digest, seeded
from fkgsec.protocols.secagg import Setting, Stage, Vector, safe_threshold
from fkgsec.protocols.secagg.bounds import require_small_risk
from fkgsec.randomness import generator

SESSIONS = ("psu", "broadcasts", "holders", "rows")
"""The purposes that sessions are named for."""


class PartyEntropy:
    """Entropy from which one party's keys, noise and sessions derive. Other parties' entropy is independent of it.

    Args:
        lasting: secret of keys and noise, the same after a stop.
        sessions: secret of everything that sessions draw, fresh after a stop.
        agreement: digest of the terms that noise is drawn for, so that no two agreements share noise; empty in one process.
    """

    def __init__(self, lasting: bytes, sessions: bytes, run: str, agreement: bytes = b"") -> None:
        self._lasting, self._sessions, self._run, self._agreement = lasting, sessions, run, agreement

    @property
    def identity(self) -> Ed25519PrivateKey:
        """Signing key of the party."""
        return Ed25519PrivateKey.from_private_bytes(derive(self._lasting, "identity in an exchange", self._run))

    def randomness(self, purpose: str, table: Table, round: int) -> Randomness:
        """Return the source of randomness for one purpose in one round.

        Args:
            purpose: names the use, such as "rows" or "local noise".
        """
        # A repeated round must add the same noise, or the mean of both uploads has less. It must use fresh keys and shares, or a
        # server could collect both kinds of share of one secret.
        lasts = purpose in ("local noise", "ring noise") or purpose.startswith("defense ")
        source = self._lasting if lasts else self._sessions
        context = (self._agreement,) if self._agreement else ()
        return seeded(derive(source, "randomness of an exchange", self._run, purpose, table, round, *context))


class Entropy:
    """The 32 bytes that a laboratory run stores to resume after a stop. Each party receives only its own part, by `of`.

    Keys and noise derive from `value`. With `fresh` bytes after a stop, everything that sessions draw is new.
    """

    def __init__(self, value: bytes, run: str, fresh: bytes = b"") -> None:
        self.value, self.run = value, run
        self._sessions = derive(value, "sessions of an exchange", run, fresh)

    @classmethod
    def drawn(cls, options: RunOptions, run: str) -> Entropy:
        """Draw the entropy from the operating system, or for tests from `protocol_seed`.

        Args:
            run: names the run; everything is bound to it.
        """
        if options.protocol_seed is None:
            return cls(secrets.token_bytes(SEED_BYTES), run)
        return cls(digest("fixed entropy of an exchange", options.protocol_seed), run)

    def of(self, place: int) -> PartyEntropy:
        """Derive the entropy of one party.

        Args:
            place: client index; the server comes after all clients.
        """
        lasting, sessions = (
            derive(secret, "party of an exchange", self.run, place) for secret in (self.value, self._sessions)
        )
        return PartyEntropy(lasting, sessions, self.run)

    def session(self, purpose: str, table: Table) -> bytes:
        """Derive the public name of the sessions of one purpose."""
        return derive(self._sessions, "session of an exchange", self.run, purpose, table, length=16)


class Terms:
    """See the module. All of it is public: in one process the server and all clients look at one object.

    Attributes:
        keys: public identity keys by party. sessions: names of sessions by purpose and table.
        num_participants: of a round. num_releases: rounds in which rows are transmitted; all parties can compute it.
        encodings, noise: by table, once prepared. widths: of its rows. largest_weight: of a client, by table.

    Raises:
        SpecError: a defense that no session could have.
    """

    def __init__(self, options: RunOptions, parties: Sequence[str], tables: Sequence[Table], codec: Codec) -> None:
        self.options, self.parties, self.tables, self.codec = options, tuple(parties), tuple(tables), codec
        self.defense = parse_defense(options.defense)
        self.num_participants = options.num_participants(len(parties))
        self.num_releases = max(1, sum(map(options.exchanges, range(1, options.rounds + 1))))
        self.keys: Mapping[str, bytes] = {}
        self.sessions: Mapping[tuple[str, Table], bytes] = {}
        self.encodings: dict[Table, FixedPoint] = {}
        self.noise: dict[Table, LocalNoise | RingNoise] = {}
        self.largest_weight: dict[Table, int] = {}
        self.widths: dict[Table, int] = {}

    def agree(self, entropy: Entropy) -> None:
        """Derive and publish identity keys and session names, in a run with all parties in one process.

        Args:
            entropy: of the run.
        """
        places = enumerate(self.parties)
        self.adopt(
            {party: entropy.of(place).identity.public_key().public_bytes_raw() for place, party in places},
            {(what, table): entropy.session(what, table) for what in SESSIONS for table in self.tables},
        )

    def adopt(self, keys: Mapping[str, bytes], sessions: Mapping[tuple[str, Table], bytes]) -> None:
        """Adopt identity keys and session names, then check the options.

        Args:
            keys: raw public keys by party.
            sessions: names by purpose (`SESSIONS`) and table.

        Raises:
            SpecError: no session could have these options.
        """
        if self.defense.dp and self.defense.dp.unit == "row" and RECIPES[self.options.algorithm].task != "kge":
            raise SpecError(
                "defense: dp: unit=row hides a row of embeddings; rows of parameters are nobody's: take unit=client"
            )
        self.keys, self.sessions = keys, sessions
        if self.defense.secagg:
            self._check()
        # Fail early: a noise that does not fit for one row fits no table.
        if self.defense.distributed_noise:
            self._ring_noise(1, 1)

    def prepare(self, table: Table, num_rows: int, width: int, largest_weight: int) -> None:
        """Choose the encoding and the noise of a table.

        Args:
            num_rows, width: size of the table.
            largest_weight: largest weight of a client.

        Raises:
            SpecError: the noise does not fit.
        """
        defense, self.largest_weight[table], self.widths[table] = self.defense, largest_weight, width
        if defense.secagg:
            summands = self.num_participants * largest_weight
            if summands >= Ring.UINT32.modulus:
                raise SpecError(f"weights of {table} up to {largest_weight:,}: their sum does not fit 32 bits")
            self.encodings[table] = FixedPoint.finest(summands, defense.secagg.clip, ring=ring_of(defense))
        if defense.dp is None:
            return
        if not defense.distributed_noise:
            self.noise[table] = local_noise(defense.dp, releases=self._releases(defense.dp))
        elif largest_weight > 1:
            raise SpecError(
                f"defense: dp: noise {defense.distributed_noise} is for weights of 1; {table} has clients of weight "
                f"{largest_weight}; take noise=gaussian"
            )
        else:
            self.noise[table], self.encodings[table] = self._ring_noise(num_rows, width)

    def _ring_noise(self, num_rows: int, width: int) -> tuple[RingNoise, FixedPoint]:
        assert self.defense.dp is not None
        return ring_noise(
            self.defense,
            releases=self._releases(self.defense.dp),
            dimension=width if self.defense.dp.unit == "row" else num_rows * width,
            num_clients=self.num_participants,
            fewest_survivors=self.fewest_survivors(self.num_participants),
        )

    def _releases(self, options: DpOptions) -> int:
        """Return how often a unit's values are released: each round, for a client once per table."""
        return self.num_releases * (1 if options.unit == "row" else len(self.tables))

    def union(self, table: Table) -> psu.Plan:
        """Return the plan of the private union of a table's names."""
        options = self.defense.psu
        assert options is not None
        threshold = safe_threshold(len(self.parties))
        return psu.Plan(
            self.sessions["psu", table], self.parties, threshold, self.keys, options.cap, options.max_attempts
        )

    def renews(self, round: int) -> bool:
        """Return whether the broadcast of a round renews only some rows, so that clients must know which."""
        return round > 0 and self.defense.suppress is not None and not self.codec.chooses_rows

    def largest_value(self, table: Table) -> float:
        """Return the largest absolute value of a mean of uploads."""
        encoding = self.encodings[table]
        # Noise in the ring can take a sum anywhere in it. Without noise, a mean is within the clip and the rounding.
        if isinstance(self.noise.get(table), RingNoise):
            return encoding.ring.modulus / 2 * 2.0**-encoding.fraction_bits
        return encoding.clip * (1 + 1e-6) + 2.0**-encoding.fraction_bits

    def setting(
        self,
        session: bytes,
        round: int,
        parties: tuple[str, ...],
        vectors: tuple[Vector, ...] = (),
        threshold: int | None = None,
        min_survivors: int | None = None,
    ) -> Setting:
        """Return the setting of one session of secure aggregation.

        Args:
            parties: participants. threshold, min_survivors: None: the defaults of the terms and of `Setting`.
        """
        assert self.defense.secagg is not None
        return Setting(
            session=session,
            round=round,
            parties=parties,
            threshold=threshold or self.threshold(len(parties)),
            vectors=vectors,
            identities={party: self.keys[party] for party in parties},
            neighbours=self.defense.secagg.neighbours,
            cipher=self.defense.secagg.cipher,
            min_survivors=min_survivors,
        )

    def threshold(self, num_parties: int) -> int:
        """Return the number of shares that open a secret.

        Args:
            num_parties: participants of the session.
        """
        options = self.defense.secagg
        if options is None:
            return num_parties
        safe = safe_threshold(num_parties)
        if options.neighbours is not None:
            safe = min(options.neighbours, safe_threshold(options.neighbours + 1))
        return options.threshold or safe

    def fewest_survivors(self, num_parties: int) -> int:
        """Return the smallest number of survivors for which a sum is opened.

        Args:
            num_parties: participants of the session.
        """
        if self.defense.secagg and self.defense.secagg.complete:
            return num_parties
        if self.defense.secagg and self.defense.secagg.neighbours is not None:
            return safe_threshold(num_parties)
        return self.threshold(num_parties)

    def dropouts(self, round: int, parties: Sequence[str]) -> dict[str, Stage]:
        """Draw the clients that fall silent in a round, with their stage; the same for every table.

        Args:
            parties: participants of the round.
        """
        assert self.defense.secagg is not None
        rng = generator(self.options.seed, "dropouts", round)
        chances, stages = rng.random(len(parties)), rng.integers(0, len(Stage), len(parties))
        return {
            party: Stage(int(stage))
            for party, chance, stage in zip(parties, chances, stages, strict=True)
            if chance < self.defense.secagg.dropout
        }

    def graph_risk(self) -> str:
        """State the risk of the k-regular graph in one session. Raises `SettingError` if it is too large."""
        secagg, count = self.defense.secagg, self.num_participants
        assert secagg is not None
        assert secagg.neighbours is not None
        colluders = 1 if secagg.colluders is None else secagg.colluders
        risk = require_small_risk(
            count,
            secagg.neighbours,
            threshold=self.threshold(count),
            colluders=colluders,
            dropout=secagg.dropout,
        )
        assumed = f"with {colluders} colluders at random places and dropout {secagg.dropout:g}"
        return f"secagg: {secagg.neighbours} neighbours of {count - 1}; {assumed} a session {risk.describe()}"

    def _check(self) -> None:
        secagg, suppress, count = self.defense.secagg, self.defense.suppress, self.num_participants
        assert secagg is not None
        if count < 2:
            raise SpecError("defense: secagg needs at least 2 participants in a round; raise participation")
        fewest = min(
            self.options.num_participants(len(self.parties), round + 1) for round in range(self.options.rounds)
        )
        if fewest < count:
            raise SpecError(
                f"defense: secagg: drop_alpha leaves {fewest} of {count} participants in some round, and a sum of so few is not "
                "the one that was checked; let them fall silent in it instead, by secagg:dropout=0.1 or more"
            )
        if suppress and suppress.t > count:
            raise SpecError(f"defense: suppress: t is {suppress.t}, but {count} clients take part in a round")
        try:
            self.setting(b"check", 0, self.parties[:count], (Vector("check", 1, Ring.UINT32),))
            if secagg.neighbours is not None:
                self.graph_risk()
            FixedPoint.finest(count, secagg.clip, ring=ring_of(self.defense))
        except (SettingError, DisconnectedGraph, OutOfRing) as error:
            raise SpecError(f"defense: secagg: {error}") from error
