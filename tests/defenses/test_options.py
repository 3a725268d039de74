"""What `--defense` accepts, and the line that says what is wrong with anything else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.options import (
    Defense,
    DpOptions,
    PsuOptions,
    SecaggOptions,
    SuppressOptions,
    check_defense,
    parse_defense,
)
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange import Transport
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel
from fkgsec.kge.options import KgeOptions

replace = msgspec.structs.replace

positive = st.floats(1e-6, 1e6)
SETTINGS = {
    "psu": st.fixed_dictionaries({}, optional={"cap": st.integers(1, 10**6), "max_attempts": st.integers(1, 6)}),
    "secagg": st.fixed_dictionaries(
        {},
        optional={
            "clip": positive,
            "bits": st.sampled_from([32, 64]),
            "threshold": st.integers(2, 50),
            "neighbours": st.integers(3, 50),
            "colluders": st.integers(0, 50),
            "cipher": st.sampled_from(["aes-256-ctr", "chacha20"]),
            "dropout": st.floats(0, 0.999),
        },
    ),
    "suppress": st.fixed_dictionaries({"t": st.integers(2, 50)}),
    "dp": st.fixed_dictionaries(
        {"clip": positive},
        optional={
            "delta": st.floats(1e-12, 0.0999),
            "unit": st.sampled_from(["client", "row"]),
            "noise": st.sampled_from(["gaussian", "discrete", "skellam"]),
            "colluders": st.integers(0, 50),
            "accountant": st.sampled_from(["rdp", "prv"]),
        },
    ),
}


@settings(deadline=None)
@given(data=st.data())
def test_what_is_written_is_what_is_read(data: st.DataObject) -> None:
    """Every subset of defenses with secagg in it, in any order, every setting given or left out."""
    names = ["secagg", *data.draw(st.lists(st.sampled_from(["psu", "suppress", "dp"]), unique=True))]
    given_settings = {name: data.draw(SETTINGS[name], label=name) for name in data.draw(st.permutations(names))}
    if "dp" in given_settings:
        dp = given_settings["dp"]
        dp[data.draw(st.sampled_from(["epsilon", "noise_multiplier"]))] = data.draw(st.floats(0.001, 1e6))
        dp.pop("colluders" if dp.get("noise") == "gaussian" else "accountant", None)
    if "suppress" in given_settings:
        given_settings["secagg"].pop("neighbours", None)
    if "neighbours" not in given_settings["secagg"]:
        given_settings["secagg"].pop("colluders", None)
    text = ",".join(
        f"{name}:" + ",".join(f"{key}={value}" for key, value in chosen.items()) if chosen else name
        for name, chosen in given_settings.items()
    )
    kinds = {"psu": PsuOptions, "secagg": SecaggOptions, "suppress": SuppressOptions, "dp": DpOptions}
    assert parse_defense(text) == Defense(**{name: kinds[name](**chosen) for name, chosen in given_settings.items()})


@settings(deadline=None, max_examples=40)
@given(text=st.text(alphabet="psuecagd:,=.0123456789 -_\t", max_size=30) | st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_spec_error(text: str) -> None:
    try:
        outcome: object = parse_defense(text)
    except SpecError as error:
        outcome = error
    assert isinstance(outcome, Defense) or str(outcome).startswith("defense: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Names and pieces.
        ("psi,secagg", "'psi' is unknown; allowed: psu, secagg, suppress, dp"),
        ("PSU,secagg", "'PSU' is unknown"),
        (",", "'' is unknown"),
        ("psu,,secagg", "'' is unknown"),
        ("psu,secagg,", "'' is unknown"),
        ("psu, ,secagg", "'' is unknown"),
        ("psu;secagg", "'psu;secagg' is unknown"),
        ("clip=3", "'clip=3' is no setting"),
        ("secagg=3", "'secagg=3' is no setting"),
        ("secagg:", "'secagg:' is no setting"),
        ("secagg:clip", "'secagg:clip' is no setting"),
        ("secagg,secagg", "secagg is named twice"),
        ("secagg:clip=8,psu,secagg:bits=64", "secagg is named twice"),
        ("secagg:clip=8,clip=8", "secagg has clip twice"),
        ("secagg:clip=8,dropout=0.1,clip=9", "secagg has clip twice"),
        # Keys.
        ("secagg:color=red", "secagg: .*`color`"),
        ("psu,secagg:cap=8", "secagg: .*`cap`"),
        ("secagg:=8", "secagg: .*``"),
        ("secagg,suppress", "suppress: .*`t`"),
        ("dp:epsilon=3", "dp: .*`clip`"),
        # Types.
        ("secagg:clip=big", "secagg: clip: "),
        ("secagg:clip=", "secagg: clip: "),
        ("secagg:clip=8:9", "secagg: clip: "),
        ("secagg:clip=1e999", "secagg: clip: "),
        ("secagg:threshold=2.5", "secagg: threshold: "),
        ("secagg:bits=48", "secagg: bits: "),
        ("secagg:cipher=rot13", "secagg: cipher: "),
        ("secagg,psu:cap=many", "psu: cap: "),
        ("dp:clip=1,epsilon=1,unit=triple", "dp: unit: "),
        ("dp:clip=1,epsilon=1,noise=laplace", "dp: noise: "),
        ("dp:clip=1,epsilon=1,accountant=gdp", "dp: accountant: "),
        ("dp:clip=1,epsilon=1,colluders=half", "dp: colluders: "),
        # Values.
        ("secagg:clip=0", "secagg: clip must be above 0 and at most 1,000,000; got 0"),
        ("secagg:dropout=1", r"secagg: dropout must be in \[0, 1\); got 1"),
        ("secagg:threshold=1", "secagg: threshold must be at least 2; got 1"),
        ("secagg:neighbours=2", "secagg: neighbours must be at least 3; got 2"),
        ("secagg:neighbours=4,colluders=-1", "secagg: colluders must be at least 0; got -1"),
        ("secagg:colluders=1", "secagg: colluders applies to neighbours"),
        ("secagg,suppress:t=1", "suppress: t must be at least 2; got 1"),
        ("dp:clip=0,epsilon=1", "dp: clip must be above 0 and at most 1,000,000; got 0"),
        ("dp:clip=1,epsilon=0", "dp: epsilon must be above 0 and at most 1,000,000; got 0"),
        ("dp:clip=1,noise_multiplier=0", "dp: noise_multiplier must be in 0.001..1,000,000; got 0"),
        ("dp:clip=1,epsilon=1,delta=0", r"dp: delta must be above 0 and below 0.1; got 0"),
        ("dp:clip=1,epsilon=1,delta=1", r"dp: delta must be above 0 and below 0.1; got 1"),
        ("dp:clip=1,epsilon=1,colluders=-1", "dp: colluders must be at least 0; got -1"),
        # Combinations.
        ("psu", "psu needs secagg: uploads in plaintext would show the server who holds what"),
        ("psu,dp:clip=1,epsilon=1", "psu needs secagg"),
        ("suppress:t=2", "suppress needs secagg"),
        ("secagg:neighbours=4,suppress:t=2", "suppress needs masks between all clients"),
        ("dp:clip=1,epsilon=1,noise=discrete", "noise discrete needs secagg"),
        ("dp:clip=1,epsilon=1,noise=skellam", "noise skellam needs secagg"),
        ("dp:clip=1", "dp: give exactly one of epsilon and noise_multiplier"),
        ("dp:clip=1,epsilon=1,noise_multiplier=1", "dp: give exactly one of epsilon and noise_multiplier"),
        ("psu:cap=0,secagg", "psu: cap must be in 1..10,000,000; got 0"),
        ("psu:cap=100000000,secagg", "psu: cap must be in 1..10,000,000"),
        ("psu:max_attempts=0,secagg", "psu: max_attempts must be in 1..6; got 0"),
        ("psu:max_attempts=7,secagg", "psu: max_attempts must be in 1..6; got 7"),
        ("dp:clip=1,noise_multiplier=1e-200", "dp: noise_multiplier must be in 0.001..1,000,000"),
        ("dp:clip=1e300,epsilon=1", "dp: clip must be above 0"),
        ("secagg,dp:clip=1,epsilon=1,accountant=prv", "accountant does not apply to integer noise"),
        ("dp:clip=1,epsilon=1,colluders=1", "colluders does not apply to gaussian noise"),
    ],
)
def test_the_message_names_the_field(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^defense: {message}"):
        parse_defense(text)


def test_which_noise_goes_where() -> None:
    dp = "dp:clip=1,epsilon=1"
    assert parse_defense(dp).distributed_noise is None
    assert parse_defense(f"{dp},noise=gaussian").distributed_noise is None
    assert parse_defense(f"secagg,{dp}").distributed_noise == "discrete"
    assert parse_defense(f"secagg,{dp},noise=gaussian").distributed_noise is None
    assert parse_defense(f"secagg,{dp},noise=skellam").distributed_noise == "skellam"
    assert parse_defense("psu,secagg").distributed_noise is None


@pytest.mark.parametrize("algorithm", ["single", "collective"])
def test_an_algorithm_that_exchanges_nothing_has_nothing_to_defend(
    algorithm: str, options: KgeOptions, graph: Callable[[int], FederatedGraph]
) -> None:
    defended = replace(options, algorithm=algorithm, defense="secagg")
    with pytest.raises(SpecError, match=f"^defense: {algorithm} exchanges nothing that 'secagg' could protect"):
        check_defense(defended)
    with pytest.raises(SpecError, match="exchanges nothing"):
        run_federation(graph(3), defended, make_transport=make_transport)
    check_defense(replace(options, algorithm=algorithm))


def test_a_sum_of_one_participant_is_refused(options: KgeOptions, graph: Callable[[int], FederatedGraph]) -> None:
    lonely = replace(options, defense="secagg", participation=0.34)
    with pytest.raises(SpecError, match="secagg needs at least 2 participants in a round"):
        run_federation(graph(3), lonely, make_transport=make_transport)


def test_the_exchange_is_the_one_that_was_asked_for(options: KgeOptions) -> None:
    parts = ["client/a", "client/b"], ["entities"], "a run"
    assert type(make_transport(Channel(), options, *parts)) is Transport
    assert type(make_transport(Channel(), replace(options, defense="secagg"), *parts)) is DefendedTransport


def test_blanks_are_no_defense(options: KgeOptions) -> None:
    with pytest.raises(SpecError, match="names none"):
        check_defense(replace(options, defense="  "))
