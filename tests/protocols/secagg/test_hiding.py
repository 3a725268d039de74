"""What the server can see of one client: nothing but noise, measured; and the broken variants are told apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fkgsec.protocols.core.errors import TooFewParties
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.keys import agree
from fkgsec.protocols.core.masking import mask_vector
from fkgsec.protocols.core.prg import Ring
from fkgsec.protocols.core.shamir import reconstruct
from fkgsec.protocols.secagg import Setting, Stage, bindings, client, server
from fkgsec.protocols.secagg.messages import Advertisement, MaskedUpload, RevealedShares

LIMIT = 1e-9  # of a chi-square test: seeds are fixed, and each control below lies far beyond


def uniform_p_value(values: np.ndarray, ring: Ring) -> float:
    """Chi-square of the bytes of ring elements against uniform; of 2^61-1 the seven whole bytes."""
    whole = values.astype(ring.dtype).view(np.uint8).reshape(len(values), -1)
    counts = np.bincount(whole[:, :7].ravel(), minlength=256)
    expected = counts.sum() / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255))


class View(NamedTuple):
    """What the server ends up with: uploads, reconstructed self mask seeds and mask keys, and all keys."""

    setting: Setting
    uploads: dict[str, np.ndarray]
    seeds: dict[str, bytes]
    private: dict[str, bytes]
    peers: dict[str, Advertisement]

    def without_self_mask(self, party: str, upload: np.ndarray, seed: bytes | None = None) -> np.ndarray:
        """The upload with that seed's mask off, by default the party's own, where the server has it."""
        vector = self.setting.vectors[0]
        mask = bindings.self_mask_seed(self.setting, party, seed or self.seeds[party], vector.name)
        return mask_vector(upload, [], [mask], vector.ring, self.setting.cipher)

    def without_pair_masks(self, party: str, upload: np.ndarray, private: bytes, with_whom: list[str]) -> np.ndarray:
        """The upload with the masks off that follow from a private mask key of `party`."""
        vector = self.setting.vectors[0]
        plus, minus = [], []
        for peer in with_whom:
            secret = agree(private, self.peers[peer].mask_key, peer=peer)
            seed = bindings.pair_mask_seed(self.setting, self.peers[party], self.peers[peer], secret, vector.name)
            (minus if bindings.adds_pair_mask(self.setting, party, peer) else plus).append(seed)
        return mask_vector(upload, plus, minus, vector.ring, self.setting.cipher)


def read_view(setting: Setting, messages: list) -> View:
    """Everything that an honest-but-curious server computes from what crossed."""
    vector = setting.vectors[0]
    shares: dict[tuple[str, str], dict[int, bytes]] = {}
    uploads, peers = {}, {}
    for message in messages:
        match message:
            case Advertisement():
                peers[message.sender] = message
            case MaskedUpload():
                uploads[message.sender] = np.frombuffer(message.vectors[vector.name], dtype=vector.ring.dtype)
            case RevealedShares():
                for kind in ("self_masks", "mask_keys"):
                    for party, one in getattr(message, kind).items():
                        shares.setdefault((kind, party), {})[setting.point[message.sender]] = one
    opened = {
        key: reconstruct(held, threshold=setting.threshold)
        for key, held in shares.items()
        if len(held) >= setting.threshold
    }
    by_kind = [
        {party: secret for (one, party), secret in opened.items() if one == kind}
        for kind in ("self_masks", "mask_keys")
    ]
    return View(setting, uploads, *by_kind, peers)


def recorded_view(cohort, wire) -> View:
    log = wire()
    cohort.run(deliver=log)
    return read_view(cohort.setting, [message for _, receiver, message in log.log if receiver == "server"])


def real_inputs(cohort, ring: Ring):
    """Fixed-point values as a federation would send, far from uniform."""
    codec = FixedPoint.finest(len(cohort.setting.parties), ring=ring)
    rng = np.random.default_rng(5)
    length = cohort.setting.vectors[0].length
    return replace(
        cohort,
        inputs={party: {"v0": codec.encode(rng.normal(0, 1, length)).values} for party in cohort.setting.parties},
    )


@pytest.mark.parametrize("ring", Ring)
@pytest.mark.parametrize("zeros", [False, True])
def test_an_upload_is_uniform_and_an_input_is_not(cohort, wire, ring: Ring, zeros: bool) -> None:
    made = real_inputs(cohort(3, length=40_000, rings=(ring,)), ring)
    if zeros:
        made = replace(made, inputs={party: {"v0": ring.zeros(40_000)} for party in made.setting.parties})
    view = recorded_view(made, wire)
    for party, upload in view.uploads.items():
        assert uniform_p_value(upload, ring) > LIMIT
        assert uniform_p_value(made.inputs[party]["v0"], ring) < LIMIT  # the control: unmasked
        stripped = view.without_self_mask(party, upload)  # the server can: this client survived
        assert uniform_p_value(stripped, ring) > LIMIT
    assert view.seeds.keys() == set(made.setting.parties)
    assert not view.private


def test_without_pair_masks_the_revealed_seed_opens_an_upload(cohort, wire) -> None:
    """The control of the test above: a client that masks with b alone is read as soon as b is known."""
    made = real_inputs(cohort(3, length=2000), Ring.UINT32)
    view = recorded_view(made, wire)
    seed = bindings.self_mask_seed(made.setting, "client0", view.seeds["client0"], "v0")
    lonely = mask_vector(made.inputs["client0"]["v0"], [seed], [], Ring.UINT32)
    assert uniform_p_value(lonely, Ring.UINT32) > LIMIT
    assert (view.without_self_mask("client0", lonely) == made.inputs["client0"]["v0"]).all()


# A client that drops out.


class Late(NamedTuple):
    """What is left of a dropped client's upload, for the server that has it after all."""

    view: View
    upload: np.ndarray
    member: client.Member
    inputs: np.ndarray
    shares_of_seed: int
    shares_of_key: int


def late_upload(cohort, steps, stage: Stage) -> Late:
    """client2 sends nothing from `stage` on; the upload it would have made reaches the server after the end."""
    made = real_inputs(cohort(7, length=20_000), Ring.UINT32)
    session = steps(made, gone={"client2": stage}).reach(Stage.MASK)
    if stage > Stage.SHARE:
        member = session.states["client2"].member
        _, message = client.mask(session.fresh("client2"), session.due["client2"], made.inputs["client2"])
    session.reach(Stage.UNMASK)
    revealed = session.perform(Stage.UNMASK)
    total = server.open_sum(session.server, list(revealed.values()))
    assert total.vectors["v0"].tolist() == made.clear_sum("v0", total.survivors)
    crossed = [message for one in session.sent.values() for message in one.values()]
    view = read_view(made.setting, crossed)
    return Late(
        view,
        np.frombuffer(message.vectors["v0"], dtype="<u4"),
        member,
        made.inputs["client2"]["v0"],
        sum("client2" in one.self_masks for one in revealed.values()),
        sum("client2" in one.mask_keys for one in revealed.values()),
    )


def test_a_late_upload_stays_under_its_own_mask(cohort, steps) -> None:
    """Dropped before the upload: the server has the mask key, and no share of b, so b's mask stays on."""
    late = late_upload(cohort, steps, Stage.MASK)
    assert (late.shares_of_seed, late.shares_of_key) == (0, 6)
    assert late.view.private == {"client2": late.member.mask_keys.private}
    others = [party for party in late.view.setting.parties if party != "client2"]
    bare = late.view.without_pair_masks("client2", late.upload, late.view.private["client2"], others)
    assert uniform_p_value(bare, Ring.UINT32) > LIMIT
    for secret in {*late.view.seeds.values(), *late.view.private.values()}:  # nothing that it opened is b
        assert secret != late.member.self_seed
        guess = late.view.without_self_mask("client2", bare, secret)
        assert uniform_p_value(guess, Ring.UINT32) > LIMIT
    # The control: with b as well the input is open.
    assert (late.view.without_self_mask("client2", bare, late.member.self_seed) == late.inputs).all()


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_an_upload_in_the_sum_stays_under_its_pair_masks(cohort, steps, stage: Stage) -> None:
    """Dropped after the upload: the server has b, and no share of the mask key, so the pair masks stay on."""
    late = late_upload(cohort, steps, stage)
    assert (late.shares_of_seed, late.shares_of_key) == (6, 0)
    assert late.view.seeds["client2"] == late.member.self_seed
    assert not late.view.private
    bare = late.view.without_self_mask("client2", late.upload)
    assert uniform_p_value(bare, Ring.UINT32) > LIMIT
    others = [party for party in late.view.setting.parties if party != "client2"]
    for secret in late.view.seeds.values():
        guess = late.view.without_pair_masks("client2", bare, secret, others)
        assert uniform_p_value(guess, Ring.UINT32) > LIMIT
    # The control: with the mask key as well the input is open.
    opened = late.view.without_pair_masks("client2", bare, late.member.mask_keys.private, others)
    assert (opened == late.inputs).all()


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE])
def test_a_client_that_never_shared_leaves_nothing_to_open(cohort, steps, stage: Stage) -> None:
    made = cohort(7)
    session = steps(made, gone={"client2": stage}).reach(Stage.UNMASK)
    revealed = session.perform(Stage.UNMASK)
    assert not any("client2" in {*one.self_masks, *one.mask_keys} for one in revealed.values())
    assert all("client2" not in session.before[Stage.UNMASK][party].shares for party in revealed)


def test_the_server_does_not_take_the_late_upload(cohort, steps) -> None:
    """Named with the reason, and the sum is that of the others."""
    made = cohort(7)
    session = steps(made, gone={"client2": Stage.MASK}).reach(Stage.MASK)
    _, upload = session.answer(Stage.MASK, "client2")
    session.reach(Stage.CONSISTENCY)
    sent = [*session.perform(Stage.CONSISTENCY).values(), upload]
    confirmed, requests = server.collect_confirmations(session.server, sent)
    assert confirmed.roll.excluded["client2"].startswith("LateMessage: MaskedUpload of client2")
    assert "client2" not in requests
    session.reach(Stage.UNMASK)
    revealed = session.perform(Stage.UNMASK)
    posing = replace_sender(revealed["client0"])  # nor as somebody who takes part in round 4
    for late, reason in ((upload, "LateMessage"), (posing, "UnknownSender")):
        total = server.open_sum(session.server, [late, *revealed.values()])
        assert total.excluded["client2"].startswith(reason)
        assert total.vectors["v0"].tolist() == made.clear_sum("v0", total.survivors)
        assert "client2" not in total.survivors


def replace_sender(message: RevealedShares) -> RevealedShares:
    return RevealedShares(message.session, message.round, "client2", message.self_masks, message.mask_keys)


def test_colluders_below_the_threshold_do_not_open_a_late_upload(cohort, steps) -> None:
    """The dropped client's shares of b lie with all others; four colluders of a threshold of five lack one."""
    made = cohort(7)
    session = steps(made, gone={"client2": Stage.MASK}).reach(Stage.CONSISTENCY)
    held = {
        made.setting.point[party]: session.states[party].shares["client2"].self_mask
        for party in ("client0", "client1", "client3", "client4", "client5")
    }
    seed = session.states["client2"].member.self_seed
    assert reconstruct(held, threshold=5) == seed  # the control: five have it
    with pytest.raises(TooFewParties):
        reconstruct(dict(list(held.items())[:4]), threshold=5)


# Two worlds with one sum.


@pytest.mark.parametrize(
    ("num_parties", "threshold", "num_colluders"), [(5, 3, 1), (5, 4, 3), (20, 11, 2), (20, 14, 8), (20, 14, 7)]
)
def test_an_active_server_opens_one_upload_with_twice_the_threshold_less_all_holders_on_its_side(
    num_parties: int, threshold: int, num_colluders: int, cohort, steps
) -> None:
    """It tells half of the others that a client survived, the other half that it dropped out. Colluders sign both."""
    made = cohort(num_parties, threshold=threshold)
    session = steps(made).reach(Stage.MASK)
    victim, *others = made.setting.parties
    colluders, honest = others[:num_colluders], others[num_colluders:]
    uploads, before = session.perform(Stage.MASK), session.server

    def opened(survivors: list[str], group: list[str]) -> np.ndarray:
        state, told = server.collect_uploads(before, [uploads[party] for party in survivors])
        states = {party: session.fresh(party) if party in colluders else session.states[party] for party in group}
        confirmed = {party: client.confirm(state, told[party]) for party, state in states.items()}
        state, requests = server.collect_confirmations(state, [message for _, message in confirmed.values()])
        revealed = [client.unmask(confirmed[party][0], requests[party]) for party in group]
        return server.open_sum(state, revealed).vectors["v0"]

    left = threshold - num_colluders - 1
    groups = [victim, *colluders, *honest[:left]], [*colluders, *honest[left:]]
    whole = opened([victim, *others], groups[0])
    if num_colluders < 2 * threshold - num_parties:
        with pytest.raises(TooFewParties):
            opened(others, groups[1])
        return
    assert (whole - opened(others, groups[1]) == made.inputs[victim]["v0"]).all()


class Auc(NamedTuple):
    value: float
    low: float
    high: float


def auc_interval(scores: np.ndarray, labels: np.ndarray) -> Auc:
    """The area under the curve with a 95 % interval. Source: Hanley and McNeil 1982."""
    value = float(roc_auc_score(labels, scores))
    num_one, num_other = int(labels.sum()), int((1 - labels).sum())
    q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value) + (num_one - 1) * (q1 - value**2) + (num_other - 1) * (q2 - value**2)
    half = 1.96 * np.sqrt(max(variance, 0.0) / (num_one * num_other))
    return Auc(value, value - half, value + half)


def distinguish(features: np.ndarray, labels: np.ndarray) -> list[Auc]:
    """What trained classifiers make of it, out of fold: a linear one and one of trees."""
    scaled = StandardScaler().fit_transform(features)  # trees take differences below 1e-7 for none
    models = (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500)),
        ExtraTreesClassifier(n_estimators=60, min_samples_leaf=5, random_state=0),
    )
    return [
        auc_interval(cross_val_predict(model, scaled, labels, cv=5, method="predict_proba")[:, 1], labels)
        for model in models
    ]


NUM_RUNS = 60  # of each world
LENGTH = 4
ONE, OTHER = np.array([3.0, -2.0, 0.5, 7.0]), np.array([-1.0, 4.0, 0.25, -6.0])
Features = Callable[[View, View], np.ndarray]


def signed(values: np.ndarray) -> np.ndarray:
    return Ring.UINT32.to_integers(values).astype(np.float64)


def worlds(cohort, wire, features: Features, *, reuse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Views of two rounds, with label 0 when client0 holds ONE and client1 OTHER, with 1 when it is the other way.

    Both clients hold zeros in the first round. With `reuse` the second round repeats its session, number and
    randomness: the mistake that fresh keys prevent.
    """
    codec = FixedPoint.finest(3)
    zeros = {"v0": Ring.UINT32.zeros(LENGTH)}
    rows, labels = [], []
    for run in range(2 * NUM_RUNS):
        label = run % 2
        values = (ONE, OTHER) if label == 0 else (OTHER, ONE)
        seed = b"world" + run.to_bytes(2, "big")
        before = cohort(3, length=LENGTH, seed=seed, round=0)
        after = before if reuse else cohort(3, length=LENGTH, seed=seed + b"'", round=1)
        third = {"client2": {"v0": codec.encode(np.full(LENGTH, 0.1)).values}}
        pair = {f"client{place}": {"v0": codec.encode(one).values} for place, one in enumerate(values)}
        views = [
            recorded_view(replace(before, inputs={"client0": zeros, "client1": zeros, **third}), wire),
            recorded_view(replace(after, inputs={**pair, **third}), wire),
        ]
        rows.append(features(*views))
        labels.append(label)
    return np.array(rows), np.array(labels)


def everything(before: View, after: View) -> np.ndarray:
    """Uploads of both rounds, with and without the self masks that the server can take off, and their differences."""
    stripped = [
        [one.without_self_mask(party, upload) for party, upload in one.uploads.items()] for one in (before, after)
    ]
    plain = [list(one.uploads.values()) for one in (before, after)]
    differences = [now - then for then, now in zip(*stripped, strict=True)]
    differences += [now - then for then, now in zip(*plain, strict=True)]
    return signed(np.concatenate([*plain[0], *plain[1], *stripped[0], *stripped[1], *differences]))


def test_two_worlds_with_one_sum_look_alike(cohort, wire) -> None:
    features, labels = worlds(cohort, wire, everything)
    for auc in distinguish(features, labels):
        print(auc)
        assert auc.low <= 0.5 <= auc.high, auc


def test_reused_masks_are_told_apart(cohort, wire) -> None:
    """The control: the same features and classifiers, masks that repeat. The difference of two uploads is the input."""
    features, labels = worlds(cohort, wire, everything, reuse=True)
    assert all(auc.low > 0.9 for auc in distinguish(features, labels))


def test_pair_masks_that_anybody_can_derive_are_told_apart(cohort, wire, monkeypatch) -> None:
    """The other control: pair masks from a public seed hide nothing once the self mask is off."""
    for side in (client, server):
        monkeypatch.setattr(side, "pair_mask_seed", lambda *_: bytes(32))
    features, labels = worlds(cohort, wire, everything)
    assert all(auc.low > 0.9 for auc in distinguish(features, labels))
