"""What a party consents to, and the file that says so beside its name and its data.

    settings = read_settings(Path("consortium/parties/berlin/party.json"), PartySettings, "party")
    settings.policy.check(agreement)                                   # a `SpecError` for what the party does not take part in

The policy is the party's own: nobody else reads it, and the server cannot change it. It is checked when the party's process
starts, before the party answers anything.
"""

from __future__ import annotations

from typing import Self

import msgspec

from defenses.options import parse_defense
from experiments.deploy.agreement import FEWEST_TRIPLES, Agreement
from fkgsec.errors import SpecError


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what a party takes part in.

    Attributes:
        agreement: the first 16 hexadecimal digits of the agreement's digest; empty: any agreement within the limits below.
        algorithms: those allowed.
        defense: defenses that must be on, such as psu and secagg.
        fewest_parties, most_rounds, most_dim: limits of these.
        fewest_triples: of its validation and test triples that it tells a sum of.
        laboratory: whether training may draw from seeds that others know, and single test ranks cross.
        audit: attacks that it scores against its own data after the run, and tells the figures of.
    """

    agreement: str = ""
    algorithms: tuple[str, ...]
    defense: tuple[str, ...]
    fewest_parties: int = 2
    fewest_triples: int = FEWEST_TRIPLES
    most_rounds: int
    most_dim: int
    laboratory: bool = False
    audit: tuple[str, ...] = ()

    @classmethod
    def of(cls, agreement: Agreement) -> Self:
        """The narrowest policy that lets this agreement through."""
        return cls(
            agreement=agreement.digest.hex()[:16],
            algorithms=(agreement.options.algorithm,),
            defense=tuple(parse_defense(agreement.options.defense).names),
            fewest_parties=len(agreement.parties),
            fewest_triples=agreement.fewest_triples,
            most_rounds=agreement.options.rounds,
            most_dim=agreement.options.dim,
            laboratory=agreement.randomness == "laboratory",
            audit=agreement.audit,
        )

    def check(self, agreement: Agreement) -> None:
        """Raises `SpecError` with what the policy says and what the agreement has."""
        options, digest = agreement.options, agreement.digest.hex()[:16]
        defense = parse_defense(options.defense).names
        conditions = (
            (
                self.agreement in ("", digest),
                f"agreement {self.agreement}",
                f"this is {digest}; compare it with the others'",
            ),
            (options.algorithm in self.algorithms, f"algorithm {' or '.join(self.algorithms)}", options.algorithm),
            (set(self.defense) <= set(defense), f"defense {','.join(self.defense)}", ",".join(defense) or "none"),
            (
                len(agreement.parties) >= self.fewest_parties,
                f"{self.fewest_parties} parties or more",
                len(agreement.parties),
            ),
            (
                agreement.fewest_triples >= self.fewest_triples,
                f"figures of {self.fewest_triples} triples or more",
                f"{agreement.fewest_triples} or more",
            ),
            (options.rounds <= self.most_rounds, f"{self.most_rounds} rounds at most", options.rounds),
            (options.dim <= self.most_dim, f"dim {self.most_dim} at most", options.dim),
            (
                self.laboratory or agreement.randomness != "laboratory",
                "randomness of the operating system",
                agreement.randomness,
            ),
            (
                set(agreement.audit) <= set(self.audit),
                f"audit {','.join(self.audit) or 'none'}",
                ",".join(agreement.audit),
            ),
        )
        for met, wanted, got in conditions:
            if not met:
                raise SpecError(f"policy: {wanted} is what this party takes part in; the agreement has {got}")


class PartySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party's file.

    Attributes:
        name: among the parties of the agreement.
        data: its own triples: a folder with train.txt, valid.txt and test.txt, absolute or below the party's folder.
        device: that it trains on.
        policy: what it takes part in.
    """

    name: str
    data: str
    device: str = "auto"
    policy: Policy
