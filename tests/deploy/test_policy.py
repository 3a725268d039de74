"""A party's policy bounds every term of an agreement, and `agree` changes nothing that it was not told to accept."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fkgsec.errors import SpecError
from fkgsec.experiments.deploy.agreement import Agreement, new_identity, new_run
from fkgsec.experiments.deploy.consortium import write_file
from fkgsec.experiments.deploy.data import read_party_data
from fkgsec.experiments.deploy.keys import agree
from fkgsec.experiments.deploy.layout import PartyFolder, encode_settings, read_settings
from fkgsec.experiments.deploy.party import Party
from fkgsec.experiments.deploy.policy import PartySettings, Policy, changed_terms, terms_of
from fkgsec.federation.options import replace
from fkgsec.kge.options import KgeOptions

KEYS = {"berlin": "ab" * 32, "paris": "cd" * 32, "rome": "ef" * 32, "wien": "01" * 32, "bern": "23" * 32}
DEFENSE = "psu,secagg:threshold=4,suppress:t=3,dp:clip=0.5,epsilon=8,unit=client"
OPTIONS = KgeOptions(algorithm="fede", defense=DEFENSE, rounds=5, dim=16)
RUN = new_run()
OTHER_KEYS = {name: key[::-1] if name != "bern" else "45" * 32 for name, key in KEYS.items()}
INVENTED = {"berlin": KEYS["berlin"], **{f"ghost-{number}": f"{number}{number}" * 32 for number in range(4)}}


def agreed(options: KgeOptions = OPTIONS, **changes: Any) -> Agreement:
    return Agreement(**({"run": RUN, "options": options, "parties": tuple(KEYS), "identities": KEYS} | changes))


def defended(old: str, new: str) -> Agreement:
    assert old in DEFENSE
    return agreed(replace(OPTIONS, defense=DEFENSE.replace(old, new)))


WIDER = {
    "defense.dp.epsilon": defended("epsilon=8", "epsilon=1000000"),
    "defense.dp.unit": defended("unit=client", "unit=row"),
    "defense.dp.clip": defended("clip=0.5", "clip=5"),
    "defense.suppress.t": defended("t=3", "t=2"),
    "defense.secagg.threshold": defended("threshold=4", "threshold=3"),
    "defense.secagg.clip": defended("threshold=4", "threshold=4,clip=64"),
    "participation": agreed(replace(OPTIONS, participation=0.6)),
    "learning_rate": agreed(replace(OPTIONS, learning_rate=1e-9)),
    "identities.paris": agreed(identities=OTHER_KEYS | {"berlin": KEYS["berlin"]}),
    "identities.ghost-0": agreed(parties=tuple(INVENTED), identities=INVENTED),
    "defense": agreed(replace(OPTIONS, defense="secagg:threshold=4")),
    "algorithm": agreed(replace(OPTIONS, algorithm="fedr")),
    "rounds": agreed(replace(OPTIONS, rounds=6)),
    "fewest_triples": agreed(fewest_triples=9),
    "audit": agreed(audit=("membership",)),
    "randomness": agreed(randomness="laboratory"),
    "run": agreed(run=new_run()),
}


@pytest.mark.parametrize("term", WIDER)
def test_what_was_not_accepted_is_refused_by_name(term: str) -> None:
    policy = msgspec.structs.replace(Policy.exactly(agreed()), agreement="")
    policy.check(agreed())
    with pytest.raises(SpecError, match=f"{term}: the policy"):
        policy.check(WIDER[term])


def test_every_field_of_an_agreement_is_a_term() -> None:
    """A field or an option that a later version adds is bounded, or this test says so."""
    terms, agreement = terms_of(agreed()), agreed()
    options = agreement.options
    names = {*agreement.__struct_fields__, *options.__struct_fields__, *options.settings.__struct_fields__}
    derived = {"identities", "options", "settings", "device"}
    assert names - derived <= terms.keys()
    for name, setting in (("secagg", "threshold"), ("dp", "delta"), ("suppress", "t"), ("psu", "cap")):
        assert f"defense.{name}.{setting}" in terms
    assert {f"identities.{name}" for name in KEYS} <= terms.keys()


def test_a_term_without_a_bound_is_refused() -> None:
    policy = Policy.exactly(agreed())
    terms = {name: bound for name, bound in policy.terms.items() if name != "dim"}
    with pytest.raises(SpecError, match="dim: the policy has no bound; the agreement has 16"):
        Policy(terms=terms).check(agreed())


def test_bounds_accept_a_range_and_refuse_what_is_absent() -> None:
    bounds: dict[str, Any] = {"defense.dp.epsilon": {"at_most": 8}, "defense.secagg.threshold": {"at_least": 4}}
    policy = Policy(terms=Policy.exactly(agreed()).terms | bounds | {"dim": {"any_of": [8, 16]}})
    for accepted in (agreed(), defended("epsilon=8", "epsilon=2"), defended("threshold=4", "threshold=5")):
        policy.check(accepted)
    for refused in (
        defended("epsilon=8", "epsilon=8.5"),
        defended("epsilon=8", "noise_multiplier=0.01"),
        defended("threshold=4", "threshold=3"),
        defended("secagg:threshold=4", "secagg"),
        agreed(replace(OPTIONS, dim=32)),
    ):
        with pytest.raises(SpecError, match="policy"):
            policy.check(refused)
    with pytest.raises(SpecError, match="must be a value or have one of"):
        Policy(terms={"dim": {"at_least": 1, "at_most": 3}})


def test_a_policy_can_demand_that_sums_are_complete() -> None:
    """Sums of which the server may lose a party differ by what that party holds."""
    complete = defended("threshold=4", "threshold=4,complete=true")
    policy = Policy(terms=Policy.exactly(complete).terms | {"defense.secagg.threshold": {"at_least": 3}})
    policy.check(complete)
    with pytest.raises(SpecError, match="complete: the policy accepts true; the agreement has false"):
        policy.check(agreed())


@pytest.mark.parametrize(
    "bound",
    [
        {"any_of": "psu,secagg,suppress,dp"},  # "" is a part of it
        {"any_of": 8},
        {"any_of": None},
        {"at_most": "8"},
        {"at_most": None},
        {"at_least": [4]},
        {"at_least": True},
    ],
    ids=str,
)
def test_a_limit_of_another_type_is_no_bound(bound: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"policy: defense: (any_of|at_most|at_least) must be a"):
        Policy(terms=Policy.exactly(agreed()).terms | {"defense": bound})


def test_the_narrowest_policy_accepts_its_own_agreement_alone() -> None:
    agreement = agreed()
    Policy.exactly(agreement).check(agreement)
    with pytest.raises(SpecError, match=f"accepts agreement {agreement.fingerprint}"):
        Policy.exactly(agreement).check(WIDER["rounds"])


def test_the_fingerprint_has_at_least_128_bits() -> None:
    groups = agreed().fingerprint.split("-")
    assert sum(map(len, groups)) * 4 >= 128
    assert "".join(groups) == agreed().digest.hex()[: len("".join(groups))]


@pytest.fixture
def berlin(tmp_path: Path) -> tuple[PartyFolder, Agreement]:
    """A party that has accepted an agreement, with its own key in it."""
    folder = PartyFolder(tmp_path / "berlin")
    folder.state.mkdir(parents=True)
    first = agreed(identities=KEYS | {"berlin": new_identity(folder.state, RUN)})
    first.write(folder.agreement)
    settings = PartySettings(name="berlin", data="data", policy=Policy.exactly(first))
    write_file(folder.settings, encode_settings(settings))
    return folder, first


@pytest.mark.parametrize("term", ["rounds", "defense.dp.epsilon", "identities.ghost-0"])
def test_agree_accepts_a_wider_term_only_when_told_to(term: str, berlin: tuple[PartyFolder, Agreement]) -> None:
    folder, first = berlin
    new = msgspec.structs.replace(
        WIDER[term], identities=WIDER[term].identities | {"berlin": first.identities["berlin"]}
    )
    assert term in changed_terms(Agreement.read(folder.agreement), new)
    before = folder.settings.read_bytes(), folder.agreement.read_bytes()
    with pytest.raises(SpecError, match=f"{term}: the policy .* --accept TERM"):
        agree(folder, new)
    assert (folder.settings.read_bytes(), folder.agreement.read_bytes()) == before
    policy = read_settings(folder.settings, PartySettings, "party").policy
    agree(folder, new, policy.refused(new).keys())
    accepted = read_settings(folder.settings, PartySettings, "party").policy
    accepted.check(new)
    assert Agreement.read(folder.agreement) == new
    with pytest.raises(SpecError, match="policy"):
        accepted.check(first)


def test_agree_refuses_to_accept_what_is_no_change(berlin: tuple[PartyFolder, Agreement]) -> None:
    folder, first = berlin
    with pytest.raises(SpecError, match="accept: rounds: the policy refuses no such term"):
        agree(folder, first, ["rounds"])


def test_the_digest_of_its_data_confirms_no_guess(consortium: Any) -> None:
    """A server that knows the run and guesses the data right cannot tell: parties of equal data and run send other digests."""
    apart = consortium()
    name = apart.names[0]
    data = read_party_data(apart.root / "data" / name, name)
    terms = msgspec.structs.replace(apart.terms, identities={})
    first, second = (Party(apart.root / folder, name, terms, data) for folder in ("one", "another"))
    assert first.data_digest != second.data_digest
    assert first.data_digest == Party(apart.root / "one", name, terms, data).data_digest
