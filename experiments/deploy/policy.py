"""The terms that a party accepts, and the file that states them beside its name and its data.

    settings = read_settings(Path("consortium/parties/berlin/party.json"), PartySettings, "party")
    settings.policy.check(agreement)                                   # `SpecError` for terms that the party does not accept

A policy bounds every term of an agreement: each field of `Agreement`, each option, each setting of each defense, and each other
party's key. It refuses a term that it does not bound, so a later version cannot add one unseen. The policy belongs to the party:
nobody else reads it, and the server cannot change it. A party checks it when its process starts, before it answers anything.

In `party.json` a bound is the accepted value, or an object with one of these keys:

    "terms": {"defense.dp.epsilon": {"at_most": 8}, "defense.secagg.threshold": {"at_least": 4}, "dim": 128,
              "model": {"any_of": ["transe", "rotate"]}, ...}
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from fkgsec.defenses.options import parse_defense
from fkgsec.errors import SpecError
from fkgsec.experiments.deploy.agreement import Agreement

COMPARISONS = ("at_least", "at_most", "any_of")
ABSENT = "absent"


def terms_of(agreement: Agreement) -> dict[str, Any]:
    """List every term by name, as JSON values: fields, options, `defense.NAME.SETTING` and `identities.NAME`.

    Args:
        agreement: to list.
    """
    fields = msgspec.to_builtins(agreement)
    options = fields.pop("options")
    settings = msgspec.to_builtins(agreement.options.settings)
    defense = parse_defense(options.pop("defense"))
    terms = fields | options | settings | {"defense": ",".join(defense.names)}
    terms |= {f"identities.{name}": key for name, key in terms.pop("identities").items()}
    for name in defense.names:
        chosen = defense.others.get(name) or getattr(defense, name)
        terms |= {f"defense.{name}.{setting}": value for setting, value in msgspec.to_builtins(chosen).items()}
    # The device is not a term: each party chooses its own. The settings are listed one by one above.
    for left_out in ("settings", "device"):
        del terms[left_out]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in terms.items()}


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms that a party accepts.

    Attributes:
        agreement: fingerprint of the one agreement that it accepts; empty: any agreement within the bounds.
        terms: a bound for each term; see the module.

    Raises:
        SpecError: a bound with an unknown or more than one comparison, or with a limit that is no number or no list.
    """

    agreement: str = ""
    terms: dict[str, Any]

    def __post_init__(self) -> None:
        for name, bound in self.terms.items():
            if not isinstance(bound, dict):
                continue
            if len(bound) != 1 or not set(bound) <= set(COMPARISONS):
                raise SpecError(f"policy: {name} must be a value or have one of {', '.join(COMPARISONS)}; got {bound}")
            ((comparison, limit),) = bound.items()
            # A text as limit would accept each of its parts, such as a defense that is none.
            if comparison == "any_of":
                if not isinstance(limit, list):
                    raise SpecError(f"policy: {name}: any_of must be a list of values; got {_shown(limit)}")
            elif not _is_number(limit):
                raise SpecError(f"policy: {name}: {comparison} must be a number; got {_shown(limit)}")

    @classmethod
    def exactly(cls, agreement: Agreement) -> Self:
        """Return the narrowest policy that accepts this agreement.

        Args:
            agreement: its values become the bounds.
        """
        return cls(agreement=agreement.fingerprint, terms=terms_of(agreement))

    def refused(self, agreement: Agreement) -> dict[str, str]:
        """Describe each refused term by name: the policy's bound and the agreement's value.

        Args:
            agreement: to check.
        """
        terms, refused = terms_of(agreement), {}
        for name in sorted({*terms, *self.terms}):
            # Refuse terms without a bound, so that a later version cannot add one unseen.
            if name not in self.terms:
                refused[name] = f"the policy has no bound; the agreement has {_shown(terms[name])}"
            elif name not in terms or not _accepts(self.terms[name], terms[name]):
                value = _shown(terms[name]) if name in terms else ABSENT
                refused[name] = f"the policy accepts {_shown(self.terms[name])}; the agreement has {value}"
        return refused

    def check(self, agreement: Agreement) -> None:
        """Check an agreement.

        Args:
            agreement: to check.

        Raises:
            SpecError: it is another than the accepted one, or has refused terms; lists all of them.
        """
        # The fingerprint pins one agreement; its terms are compared as well, so that a refusal names them.
        if self.agreement not in ("", agreement.fingerprint):
            raise SpecError(
                f"policy: accepts agreement {self.agreement}; this is {agreement.fingerprint}. Compare it with the other parties"
            )
        if refused := self.refused(agreement):
            raise SpecError("policy: " + "; ".join(f"{name}: {why}" for name, why in refused.items()))

    def accepting(self, agreement: Agreement, names: set[str]) -> Self:
        """Return a policy for this agreement alone.

        Args:
            names: terms whose value in the agreement becomes the bound.
        """
        terms = terms_of(agreement)
        bounds = {name: bound for name, bound in self.terms.items() if name not in names or name in terms}
        changed = {name: terms[name] for name in names if name in terms}
        return msgspec.structs.replace(self, agreement=agreement.fingerprint, terms=bounds | changed)


def changed_terms(before: Agreement, after: Agreement) -> dict[str, str]:
    """Describe each term that differs between two agreements, by name.

    Args:
        before, after: the two agreements.
    """
    old, new = terms_of(before), terms_of(after)
    shown = {
        name: tuple(_shown(terms[name]) if name in terms else ABSENT for terms in (old, new)) for name in {*old, *new}
    }
    return {name: f"{shown[name][0]} -> {shown[name][1]}" for name in sorted(shown) if len(set(shown[name])) > 1}


def _accepts(bound: Any, value: Any) -> bool:
    if not isinstance(bound, dict):
        return bound == value
    ((comparison, limit),) = bound.items()
    if comparison == "any_of":
        return value in limit
    # A term that is absent or None, such as no limit at all, is not within a bound.
    if not _is_number(value):
        return False
    return value >= limit if comparison == "at_least" else value <= limit


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{comparison.replace('_', ' ')} {_shown(limit)}" for comparison, limit in value.items())
    return msgspec.json.encode(value).decode()


class PartySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party's file.

    Attributes:
        name: among the parties of the agreement.
        data: its own triples: a folder with train.txt, valid.txt and test.txt, absolute or below the party's folder.
        device: that it trains on.
        policy: the terms that it accepts.
    """

    name: str
    data: str
    device: str = "auto"
    policy: Policy
