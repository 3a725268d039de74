"""Options of `--defense`: `psu,secagg`, `secagg:dropout=0.1,suppress:t=2`, `dp:epsilon=8,clip=0.1`.

class Rounded(DefenseOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):   # a defense of one's own
    step: float = 0.01

    def protect(self, round, table, rows, received, randomness):
        return torch.round(rows / self.step) * self.step

KINDS.register("rounded", Rounded)             # or an entry point of group `fkgsec.defenses`; --defense rounded:step=0.1,secagg
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from fkgsec.arguments import settings_from
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.protocols import MAX_ATTEMPTS, Accountant, CipherName
from fkgsec.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from fkgsec.exchange import Delivery, Screened, Upload
    from fkgsec.federation.options import RunOptions
    from fkgsec.protocols.core.prg import Randomness

# Of norms, epsilons and multipliers. Larger values are mistakes.
MOST = 1e6
Unit = Literal["client", "row"]
Noise = Literal["gaussian", "discrete", "skellam"]


class DefenseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one defense, checked at construction. A defense of another package also defines `protect` or `screen`.

    Attributes:
        about: a line for `--help` and for the statement of a run's protection; not a setting.
    """

    about: ClassVar[str] = ""

    def protect(self, round: int, table: Table, rows: Tensor, received: Tensor, randomness: Randomness) -> Tensor:
        """Return the rows that a client uploads, `[num_uploaded, width]`, before clipping and noise of `dp` and any sum.

        Args:
            rows: as trained, float32. received: the same rows as it last received them.
            randomness: the client's; the same if a round is repeated after a stop.
        """
        return rows

    def screen(self, round: int, table: Table, uploads: Mapping[str, Upload], previous: Tensor) -> Screened:
        """Return the uploads that the server aggregates. Not called if the server learns only the sum.

        Args:
            uploads: by party, in the order of the parties. previous: the rows as they were last sent, `[N, width]`.
        """
        from fkgsec.exchange import Screened  # which loads torch

        return Screened(uploads)

    def check(self, options: RunOptions, delivers: Delivery) -> None:
        """Check that the defense fits the run.

        Args:
            options: of the run.
            delivers: what the server receives, "sum" or "single uploads".

        Raises:
            SpecError: the defense does not fit.
        """

    def statement(self) -> str:
        """State what the defense protects."""
        return f"{self.about or 'a defense of another package'}; no guarantee is stated for it"


class PsuOptions(DefenseOptions, frozen=True, kw_only=True):
    """Alignment by private set union: the server learns the union of names, but not who holds which.

    Attributes:
        cap: expected size of the union, for which the first table is made. A larger union takes one more table, four times as
            large. None: start at 1,024, without that limit. See `fkgsec.protocols.psu.Plan`.
        max_attempts: largest number of tables, each four times as large as the one before (a damaged one is tried once more
            at its size).
    """

    cap: int | None = None
    max_attempts: int = MAX_ATTEMPTS

    def __post_init__(self) -> None:
        _check(self.cap is None or 1 <= self.cap <= 10**7, "cap", self.cap, "in 1..10,000,000")
        _check(1 <= self.max_attempts <= MAX_ATTEMPTS, "max_attempts", self.max_attempts, f"in 1..{MAX_ATTEMPTS}")


class SecaggOptions(DefenseOptions, frozen=True, kw_only=True):
    """Secure aggregation of every upload: the server learns the sum, how many hold each row, and who is in it.

    Attributes:
        clip: largest absolute value of an upload; clients clip larger values and log this locally.
        bits: bits of a ring element, 32 or 64.
        threshold: shares that open a secret; None: `fkgsec.protocols.secagg.safe_threshold` of the round's participants.
        neighbours: None: every pair of clients shares a mask; k, at least 3: a k-regular graph, which assumes a server that
            follows the protocol. Refused if `fkgsec.protocols.secagg.bounds` finds its risk too large.
        colluders: with `neighbours`: largest number of clients, at any place in the graph, that share all they know with the
            server; None: 1.
        complete: True: clients confirm a sum only if every participant of the round is in it. Two sums then never differ by a
            client that dropped out, and a dropout voids the round. Use it with participation 1. With
            `neighbours`, each client checks that all of its neighbors are in the sum.
        cipher: cipher that generates the masks.
        dropout: probability that a participant drops out of a round, at a random stage (simulated, seeded).
    """

    clip: float = 16.0
    bits: Literal[32, 64] = 32
    threshold: int | None = None
    neighbours: int | None = None
    colluders: int | None = None
    complete: bool = False
    cipher: CipherName = "aes-256-ctr"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check(0 < self.clip <= MOST, "clip", self.clip, f"above 0 and at most {MOST:,.0f}")
        _check(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")
        for name, least in (("threshold", 2), ("neighbours", 3)):
            value = getattr(self, name)
            _check(value is None or value >= least, name, value, f"at least {least}")
        _check(self.colluders is None or self.colluders >= 0, "colluders", self.colluders, "at least 0")
        if self.colluders is not None and self.neighbours is None:
            raise SpecError("colluders applies to neighbours; between all clients the threshold says how many")


class SuppressOptions(DefenseOptions, frozen=True, kw_only=True):
    """Rows with fewer than t holders stay with their clients; the server learns that they exist, and how many hold them.

    Colluding holders count too: with t - 1 of them, a transmitted row belongs to one honest client. A client that lies may
    count itself t - 1 times, and so alone do what t - 1 colluders do. If a client falls silent between counting and
    sending, the round is given up. A server that lies to all clients about the counts gets sums of rare rows.

    Attributes:
        t: smallest number of holders of a transmitted row, at least 2.
    """

    t: int

    def __post_init__(self) -> None:
        _check(self.t >= 2, "t", self.t, "at least 2")


class DpOptions(DefenseOptions, frozen=True, kw_only=True):
    """Clipped uploads with noise.

    An upload is the last broadcast plus the client's change of it. The change is clipped, and noise is added to the sum of both.

    Attributes:
        clip: l2 norm that a change is clipped to: of the whole table (unit client) or of each row (unit row).
        epsilon: bound of the privacy loss over all `rounds`, from which the noise follows.
        delta: probability with which the loss may exceed `epsilon`; choose it well below 1 over the number of units.
        noise_multiplier: standard deviation of the noise over the sensitivity, instead of epsilon.
        unit: whose values are protected. "client": all values of one client's uploads. "row": one row of one client's uploads;
            other rows contain effects of the same triples, so this is no guarantee for a triple.
        noise: "gaussian": each client alone, before anything is sent; "discrete" or "skellam": integers that each client adds
            inside secure aggregation, so that only the sum has the whole noise. None: gaussian without secure aggregation,
            discrete with it.
        colluders: number of clients in a sum that may reveal their noise to the server; for integer noise, None: 1.
        accountant: method for gaussian noise; None: rdp.
    """

    clip: float
    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    unit: Unit = "client"
    noise: Noise | None = None
    colluders: int | None = None
    accountant: Accountant | None = None

    def __post_init__(self) -> None:
        _check(0 < self.clip <= MOST, "clip", self.clip, f"above 0 and at most {MOST:,.0f}")
        _check(0 < self.delta < 0.1, "delta", self.delta, "above 0 and below 0.1")
        _check(self.colluders is None or self.colluders >= 0, "colluders", self.colluders, "at least 0")
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise SpecError("give exactly one of epsilon and noise_multiplier")
        _check(
            self.epsilon is None or 0 < self.epsilon <= MOST,
            "epsilon",
            self.epsilon,
            f"above 0 and at most {MOST:,.0f}",
        )
        multiplier = self.noise_multiplier
        _check(
            multiplier is None or 0.001 <= multiplier <= MOST, "noise_multiplier", multiplier, f"in 0.001..{MOST:,.0f}"
        )


class Defense(msgspec.Struct, frozen=True):
    """The defenses of a run; None where one is not used. `others`: those that work on rows alone (`DefenseOptions.protect` and
    `screen`), such as `robust` and those of other packages, by name, in the order of the text."""

    psu: PsuOptions | None = None
    secagg: SecaggOptions | None = None
    suppress: SuppressOptions | None = None
    dp: DpOptions | None = None
    others: dict[str, DefenseOptions] = {}

    def __post_init__(self) -> None:
        # Private set union and suppression hide who holds what. Plaintext uploads would show it.
        if self.secagg is None:
            for name, why in (
                ("psu", "uploads in plaintext would show the server who holds what"),
                ("suppress", "holders are counted inside it"),
            ):
                if getattr(self, name) is not None:
                    raise SpecError(f"{name} needs secagg: {why}")
            if self.dp is not None and self.dp.noise in ("discrete", "skellam"):
                raise SpecError(f"noise {self.dp.noise} needs secagg: each client alone adds too little of it")
        elif self.suppress is not None and self.secagg.neighbours is not None:
            raise SpecError("suppress needs masks between all clients: leave out neighbours")
        if self.dp is not None:
            option, where = ("accountant", "integer") if self.distributed_noise else ("colluders", "gaussian")
            if getattr(self.dp, option) is not None:
                raise SpecError(f"{option} does not apply to {where} noise; leave it out")

    @property
    def names(self) -> list[str]:
        """Names of the defenses in use."""
        return [kind for kind in KINDS if kind in self.others or getattr(self, kind, None) is not None]

    @property
    def delivers(self) -> Delivery:
        """What the server receives of a round's uploads."""
        return "sum" if self.secagg else "single uploads"

    @property
    def knows_holdings(self) -> bool:
        """True if the server learns who holds each row."""
        return self.psu is None

    def screen(self, round: int, table: Table, uploads: Mapping[str, Upload], previous: Tensor) -> Screened:
        """Apply the screens of all defenses in turn. A row that several of them change counts once for each.

        Args:
            uploads: by party. previous: the rows as they were last sent, `[N, width]`.
        """
        from fkgsec.exchange import Screened  # which loads torch

        cut: dict[str, int] = {}
        for extra in self.others.values():
            uploads, cut_rows = extra.screen(round, table, uploads, previous)
            counted = [party for party in uploads if party in cut or party in cut_rows]
            cut = {party: cut.get(party, 0) + cut_rows.get(party, 0) for party in counted}
        return Screened(uploads, cut)

    @property
    def distributed_noise(self) -> Noise | None:
        """Integer noise that clients add inside secure aggregation, or None."""
        if self.dp is None or self.secagg is None:
            return None
        noise = self.dp.noise or "discrete"
        return None if noise == "gaussian" else noise


KINDS: Registry[type[DefenseOptions]] = Registry(
    "defense",
    "fkgsec.defenses",
    {
        "psu": "fkgsec.defenses.options:PsuOptions",
        "secagg": "fkgsec.defenses.options:SecaggOptions",
        "suppress": "fkgsec.defenses.options:SuppressOptions",
        "dp": "fkgsec.defenses.options:DpOptions",
        "robust": "fkgsec.defenses.robust:RobustOptions",
    },
)
_OF_PROTOCOLS = ("psu", "secagg", "suppress", "dp")


def words_of(name: str) -> str:
    """Describe a defense for `--help`: its name, its settings and its `about` line."""
    kind = KINDS[name]
    settings = ", ".join(kind.__struct_fields__)
    return f"{name}{f' ({settings})' if settings else ''}{f', {kind.about}' if kind.about else ''}"


# Deployed parties check their options in every message.
@functools.lru_cache(maxsize=256)
def parse_defense(text: str) -> Defense:
    """Parse `name[:key=value,...],...`; empty text means no defense.

    Args:
        text: value of `--defense`.

    Raises:
        SpecError: an unknown defense or setting, a value that is not allowed, a repetition, or a combination that hides nothing.

    >>> parse_defense("secagg:clip=8,dropout=0.1,suppress:t=2").suppress
    SuppressOptions(t=2)
    """
    written: dict[str, dict[str, str]] = {}
    name = ""
    for piece in (part.strip() for part in text.split(",") if text.strip()):
        head, colon, rest = (part.strip() for part in piece.partition(":"))
        # A further setting of the defense before it.
        if not colon and "=" in piece:
            setting = piece
        else:
            name, setting = head, rest
            if name not in KINDS:
                raise SpecError(f"defense: {name!r} is unknown; allowed: {', '.join(KINDS)}")
            if name in written:
                raise SpecError(f"defense: {name} is named twice")
            written[name] = {}
            if not colon:
                continue
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not name:
            raise SpecError(f"defense: {piece!r} is no setting; write name:key=value,key=value")
        if key in written[name]:
            raise SpecError(f"defense: {name} has {key} twice")
        written[name][key] = value
    parsed = {}
    for name, settings in written.items():
        parsed[name] = settings_from(f"defense: {name}", KINDS[name], settings)
    others = {name: options for name, options in parsed.items() if name not in _OF_PROTOCOLS}
    try:
        return Defense(**{name: options for name, options in parsed.items() if name in _OF_PROTOCOLS}, others=others)
    except SpecError as error:
        raise SpecError(f"defense: {error}") from error


def check_defense(options: RunOptions) -> None:
    """Check that the defense of a run fits its algorithm.

    Args:
        options: of the run.

    Raises:
        SpecError: an unknown defense, or one that does not fit what the algorithm exchanges.
    """
    if options.defense and parse_defense(options.defense) == Defense():
        raise SpecError(f"defense: {options.defense!r} names none; allowed: {', '.join(KINDS)}")
    if options.defense and not RECIPES[options.algorithm].shared:
        raise SpecError(f"defense: {options.algorithm} exchanges nothing that {options.defense!r} could protect")
    if not options.defense:
        return
    from fkgsec.exchange import check_fit  # which loads torch

    defense = parse_defense(options.defense)
    check_fit(
        options.algorithm,
        delivers=defense.delivers,
        knows_holdings=defense.knows_holdings,
        hides_choice=defense.dp is None,
        transport=f"defense {options.defense!r}",
    )
    for name, other in defense.others.items():
        try:
            other.check(options, defense.delivers)
        except SpecError as error:
            raise SpecError(f"defense: {name}: {error}") from error


def _check(right: bool, name: str, value: object, allowed: str) -> None:
    if not right:
        raise SpecError(f"{name} must be {allowed}; got {value}")
