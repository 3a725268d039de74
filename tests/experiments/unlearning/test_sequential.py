"""A sequential audit: its looks spend the stated error once, and it errs no more often than that."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.forgetting.evidence import Evidence, Power, weigh_evidence
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.attacks.forgetting.readings import READINGS, AuditRun, Reading
from fkgsec.attacks.membership.audits import Audited
from fkgsec.experiments.unlearning.options import Thresholds, looks
from fkgsec.experiments.unlearning.verdict import EXIT_STATUS, judge
from tests.experiments.unlearning.test_unlearn import measure

NUM_FORGOTTEN, NUM_CONTROLS, GAIN = 400, 200, 4.0
TELLS = {("a", "local"): Power(*[Sensitivity(told_apart_from=0.05, honest_passes_from=0.08, rejected_from=0.1)] * 2)}
LOOKS = looks(4, 16)


@pytest.mark.parametrize(
    ("first", "most", "counts"), [(4, 16, [4, 8, 16]), (3, 10, [3, 6, 10]), (5, 5, [5]), (0, 9, [0])]
)
def test_looks_double_up_to_the_budget_and_spend_the_error_once(first: int, most: int, counts: list[int]) -> None:
    made = looks(first, most)
    assert [look.references for look in made] == counts
    assert sum(look.spending for look in made) == pytest.approx(1.0)
    assert all(before.spending < after.spending for before, after in itertools.pairwise(made))


def test_each_look_of_an_audit_takes_stronger_evidence_than_a_single_one() -> None:
    """A measure that is told apart by the whole error is not told apart by a hundredth of it."""
    measures = [measure(0.75, n=40, seed=4)]
    assert judge(measures, Thresholds(), None).outcome == "not forgotten"
    assert judge(measures, Thresholds(), None, spending=0.01).outcome == "inconclusive"


class World:
    """Triples of one client by difficulty; trainings scatter around it and shift all triples alike."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.difficulty = 3 * self.rng.normal(size=NUM_FORGOTTEN + NUM_CONTROLS)
        self.reference_test = self.rng.normal(size=150)
        triples = np.stack(
            [np.arange(NUM_FORGOTTEN + NUM_CONTROLS), *[np.zeros(NUM_FORGOTTEN + NUM_CONTROLS, int)] * 2], axis=1
        )
        members, controls = triples[:NUM_FORGOTTEN], triples[NUM_FORGOTTEN:]
        self.audits = [Audited(0, "a", True, members, members, controls)]
        client = ClientGraph("a", np.arange(len(triples)), np.arange(1), triples, triples[:0], triples[:0])
        self.graph = FederatedGraph("a", tuple(map(str, range(len(triples)))), ("r",), (client,))

    def train(self, trained_on: np.ndarray) -> AuditRun:
        """Read a training on some of the audited triples, bool `[n]`."""

        noise = self.rng.normal(size=len(self.difficulty)) + 0.1 * self.rng.normal()
        values = self.difficulty + noise + GAIN * trained_on
        test = self.reference_test + self.rng.normal(size=150)
        reading = Reading(dict.fromkeys(READINGS, values), None, test)
        return AuditRun({(0, "local"): reading}, {0: trained_on})

    def audit(self, share: float) -> str:
        """Judge a training that kept a share of the forget set, look by look."""
        nothing, left = np.zeros(len(self.difficulty), dtype=bool), np.zeros(len(self.difficulty), dtype=bool)
        left[: round(share * NUM_FORGOTTEN)] = True
        audited = self.train(left)
        shadows = []
        for _ in range(2):
            half = self.rng.permutation(len(nothing)) % 2 == 0
            shadows += [self.train(half), self.train(~half)]
        references: list[AuditRun] = []
        for look in LOOKS:
            references += [self.train(nothing) for _ in range(look.references - len(references))]
            outcome = judge(
                [WITHIN], Thresholds(), self.weigh(audited, references, shadows, look.spending), spending=look.spending
            ).outcome
            if outcome != "inconclusive":
                return outcome
        return "inconclusive"

    def weigh(
        self, audited: AuditRun, references: list[AuditRun], shadows: list[AuditRun], spending: float
    ) -> Evidence:
        """Weigh the evidence of a look, of an audit that can tell a tenth apart."""
        level = Thresholds().error * spending
        return weigh_evidence(audited, references, shadows, [], self.graph, self.audits, TELLS, level)


WITHIN = measure(0.0)


def test_an_honest_and_a_dishonest_run_are_decided() -> None:
    assert World(1).audit(0.0) == "forgotten"
    assert World(2).audit(0.5) == "not forgotten"


@pytest.mark.slow
def test_over_all_looks_the_errors_add_up_to_the_stated_one() -> None:
    """At most 5 % of honest runs are told apart, and at most 2.5 % of those with the tolerated tenth left in are certified.

    The limits are the 99 % points of 200 draws at these chances.
    """
    honest = [World(seed).audit(0.0) for seed in range(200)]
    tenth = [World(1000 + seed).audit(Thresholds().share) for seed in range(200)]
    print(
        *(f"{outcome}: {honest.count(outcome)} honest, {tenth.count(outcome)} with a tenth" for outcome in EXIT_STATUS)
    )
    assert honest.count("not forgotten") <= 18
    assert tenth.count("forgotten") <= 11
    assert honest.count("forgotten") >= 120
