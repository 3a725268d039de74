"""What decides a claim if the paper's figures are true, and the order of runs that follows."""

import msgspec
import pytest

from fkgsec.experiments.papers.estimates import Costs, Entry, Timed, Timings, entries_of
from fkgsec.experiments.papers.judging.claims import judge_claims, num_needed, read_claims
from fkgsec.experiments.papers.power import need_of, order_by_claims, power_sheet
from fkgsec.experiments.papers.queue import wanted_runs
from fkgsec.experiments.papers.results import Results
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment

SECONDS = {"DDB14-Fed5": 1.0, "DDB14-Fed10": 2.0, "DDB14-Fed15": 3.0}


@pytest.fixture(scope="module")
def table() -> Experiment:
    return read_experiment(find_experiment("zhang2022_fedr_table2"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, table: Experiment) -> tuple[list[Entry], Costs]:
    folder = tmp_path_factory.mktemp("power")
    timings = Timings(folder, lambda spec, graph: Timed(SECONDS.get(spec.data, 9.0), 0.0, 300, 4000, ""))
    timings._load = lambda spec: None  # type: ignore[method-assign]  # no data are read
    costs = Costs([], timings=timings)
    return entries_of(wanted_runs([table], Results(), folder / "all", num_seeds=1), costs), costs


def test_a_claim_takes_its_cheapest_tests_until_it_is_decided(
    planned: tuple[list[Entry], Costs], table: Experiment
) -> None:
    claim = next(one for one in read_claims() if one.claim == "FedR is above Local")
    entries, costs = planned
    (judged,) = judge_claims([claim], [table], [])
    need = need_of(judged, [table], entries, costs, 1)
    assert need.outcome == "holds"
    assert len(need.tests) == num_needed(60) == 15
    assert len(need.entries) == 30  # FedR and Local, no run twice
    assert {one.job.spec.data for one in need.entries} == {"DDB14-Fed5", "DDB14-Fed10", "DDB14-Fed15"}
    order = order_by_claims([judged], [table], entries, costs, 1)
    assert order[:30] == list(need.entries)
    assert {one.job.folder for one in order} == {one.job.folder for one in entries}
    assert len(order) == len(entries)
    paid = need_of(judged, [table], entries, costs, 1, planned=need.entries)
    assert (paid.outcome, paid.seconds) == ("holds", 0.0)


def test_what_the_papers_figures_do_not_decide_cannot_be_decided(
    planned: tuple[list[Entry], Costs], table: Experiment
) -> None:
    """The paper prints FedR within .03 of FedE in some columns by less than half an interval, and not in others."""
    plain = next(one for one in read_claims() if one.within)
    entries, costs = planned
    (judged,) = judge_claims([msgspec.structs.replace(plain, within=0.0205)], [table], [])
    need = need_of(judged, [table], entries, costs, 1)
    assert need.outcome == "open"
    assert "cannot be decided" in power_sheet([need]).rows[0]
