"""A party's policy: the narrowest one lets its agreement through, and each limit refuses what it names."""

from typing import Any

import msgspec
import pytest

from experiments.deploy.agreement import Agreement, new_run
from experiments.deploy.policy import Policy
from fkgsec.errors import SpecError
from fkgsec.federation.options import replace
from fkgsec.kge.options import KgeOptions

KEYS = {"berlin": "ab" * 32, "paris": "cd" * 32, "rome": "ef" * 32}
OPTIONS = KgeOptions(algorithm="fede", defense="psu,secagg", rounds=5, dim=16)


def agreed(options: KgeOptions = OPTIONS, **changes: Any) -> Agreement:
    return Agreement(**({"run": new_run(), "options": options, "parties": tuple(KEYS), "identities": KEYS} | changes))


def test_the_narrowest_policy_lets_its_own_agreement_through_and_no_other() -> None:
    agreement = agreed()
    policy = Policy.of(agreement)
    policy.check(agreement)
    with pytest.raises(SpecError, match=f"policy: agreement {agreement.digest.hex()[:16]} is what this party"):
        policy.check(agreed())


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            agreed(replace(OPTIONS, algorithm="fedr")),
            "algorithm fede is what this party takes part in; the agreement has fedr",
        ),
        (agreed(replace(OPTIONS, defense="")), "defense psu,secagg is .* has none"),
        (agreed(replace(OPTIONS, defense="secagg")), "defense psu,secagg is .* has secagg"),
        (
            agreed(parties=("berlin", "paris"), identities={k: KEYS[k] for k in ("berlin", "paris")}),
            "3 parties or more .* has 2",
        ),
        (agreed(replace(OPTIONS, rounds=6)), "5 rounds at most is .* has 6"),
        (agreed(replace(OPTIONS, dim=32)), "dim 16 at most is .* has 32"),
        (agreed(fewest_triples=9), "figures of 10 triples or more is .* has 9 or more"),
        (agreed(audit=("membership",)), "audit none is .* has membership"),
        (agreed(randomness="laboratory"), "randomness of the operating system is .* has laboratory"),
    ],
)
def test_each_limit_refuses_what_it_names(other: Agreement, line: str) -> None:
    policy = msgspec.structs.replace(Policy.of(agreed()), agreement="")
    policy.check(agreed())
    with pytest.raises(SpecError, match=line):
        policy.check(other)
