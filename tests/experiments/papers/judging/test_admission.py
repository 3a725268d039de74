"""Records that contradict themselves or each other count for no cell and no claim, whoever wrote them."""

import json
from pathlib import Path

import msgspec
import pytest

from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.integrity.origin import Origin
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.forgetting import Forgotten, Quality
from fkgsec.experiments.papers.judging.admission import admit, end_of
from fkgsec.experiments.papers.judging.claims import Judged, Pair, read_claims
from fkgsec.experiments.papers.judging.claims_page import command_lines
from fkgsec.experiments.papers.judging.scoreboard import make_scoreboard, scoreboard_lines
from fkgsec.experiments.papers.results import read_records
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.runs.record import Bytes, Record, read_record, sealed
from fkgsec.experiments.runs.stored import encode_stored

RESULTS = Path("results")
CELL = "TransE FedR DDB14 C5"
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def table() -> Experiment:
    return read_experiment(find_experiment("zhang2022_fedr_table2"))


@pytest.fixture(scope="module")
def fedr() -> Record:
    return read_record(RESULTS / "ddb14-fed5-fedr.json")


def standing(table: Experiment, *records: Record) -> tuple[str, tuple[int, ...], str]:
    [board] = make_scoreboard([table], records)
    cell = next(one for one in board.cells if one.name == CELL)
    return cell.standing, cell.seeds, cell.why


def with_mrr(record: Record, low: float, value: float, high: float, *, seed: int = 12345) -> Record:
    """The record with this figure, as of a run with this seed."""
    rounds = [replace(entry, loss=None if entry.loss is None else entry.loss + seed) for entry in record.rounds]
    utility = {"mrr": Estimate(value, low, high, 100, "bootstrap")}
    by_client = dict.fromkeys(record.utility_by_client, utility)
    spec = record.spec.replace(seed=seed)
    return replace(record, utility=utility, utility_by_client=by_client, seed=seed, spec=spec, rounds=rounds)


def cut(record: Record, number: int) -> Record:
    """The record as if it had ended after so many rounds; contradicts nothing that `read_record` looks at."""
    up, down = (getattr(record.bytes, name)[: number + 1] for name in ("up_by_round", "down_by_round"))
    sent = Bytes(sum(up), sum(down), up, down)
    return replace(record, rounds=record.rounds[: number + 1], best_round=5, bytes=sent)


def longer(record: Record, number: int) -> Record:
    """The record as if it had gone on for so many rounds after validation ended it, to a better one."""
    last = record.rounds[-1]
    further = [replace(last, round=last.round + 1 + one, valid=0.9) for one in range(number)]
    return replace(record, rounds=[*record.rounds, *further], best_round=last.round + 1)


def with_figures(record: Record, **values: float) -> Record:
    """The record with these figures of the whole test split and of every client."""
    changed = {name.replace("_", "@"): exact(value, 100) for name, value in values.items()}
    by_client = {name: figures | changed for name, figures in record.utility_by_client.items()}
    return replace(record, utility=record.utility | changed, utility_by_client=by_client)


def without_losses(record: Record) -> Record:
    return replace(record, rounds=[replace(entry, loss=None) for entry in record.rounds])


def test_the_record_itself_counts(table: Experiment, fedr: Record) -> None:
    assert admit([fedr]) == ([fedr], [])
    assert standing(table, fedr) == ("inside", (12345,), "")


FORGED = {
    "its checkout had changes": lambda one: replace(one, environment=replace(one.environment, dirty=True)),
    "it ends at round 6, and its settings do not (300 rounds at most)": lambda one: cut(one, 6),
    "its mrr is 5": lambda one: with_mrr(one, -3, 5, 9),
    "it names no commit": lambda one: replace(one, environment=replace(one.environment, commit=None, dirty=None)),
    "it ends at round 67, and its settings at round 65": lambda one: longer(one, 2),
    "it keeps round 65, and validation is best at round 40": lambda one: replace(one, best_round=65),
    "it has a round without a loss": without_losses,
    "its hits@10 is 1.5": lambda one: with_figures(one, hits_10=1.5),
    "its hits@1 is 0.9, above its hits@3": lambda one: with_figures(one, hits_1=0.9, mrr=0.95),
    "its mrr is 0.01, below its hits@1": lambda one: with_figures(one, mrr=0.01),
}


@pytest.mark.parametrize("said", FORGED)
def test_a_record_that_contradicts_itself_counts_for_nothing(table: Experiment, fedr: Record, said: str) -> None:
    forged = FORGED[said](fedr)
    assert admit([forged]) == ([], [f"fedr transe on DDB14-Fed5, seed 12345: {said}"])
    assert standing(table, forged)[0] == "not run"


def test_of_records_that_contradict_each_other_the_first_counts(fedr: Record) -> None:
    other_data = replace(with_mrr(fedr, 0.4, 0.5, 0.6, seed=1), data=replace(fedr.data, hash="f" * 64))
    twin = replace(fedr, seed=2, spec=fedr.spec.replace(seed=2))
    better = with_mrr(fedr, 0.44, 0.4461, 0.45)
    kept, left_out = admit([fedr, other_data, twin, better, fedr])
    assert kept == [fedr, fedr]
    known = fedr.data.hash[:12]
    assert [line.partition(": ")[2] for line in left_out] == [
        f"its data have hash ffffffffffff, those of others {known}", "it has the losses of seed 12345, round by round",
        "another record of the same run has other figures",
    ]  # fmt: skip


def test_a_run_ends_where_its_settings_end_it(fedr: Record) -> None:
    last = fedr.rounds[-1].round
    assert end_of(fedr) == last
    assert {end_of(cut(fedr, number)) for number in (1, last - 1)} == {None}
    assert end_of(replace(cut(fedr, 6), spec=fedr.spec.replace(rounds=6))) == 6
    assert end_of(replace(fedr, spec=fedr.spec.replace(patience=0))) is None
    assert end_of(longer(fedr, 3)) == last


def test_all_clients_reach_no_more_than_the_best_of_them(fedr: Record) -> None:
    reached = [figures["mrr"].value for figures in fedr.utility_by_client.values()]
    _, [line] = admit([replace(fedr, utility=fedr.utility | {"mrr": exact(max(reached) + 0.01, 100)})])
    assert line.endswith(
        f"its mrr is {max(reached) + 0.01:.4f}, those of its clients {min(reached):.4f} to {max(reached):.4f}"
    )


def test_a_copy_with_losses_a_hair_apart_and_one_of_other_sizes_are_left_out(fedr: Record) -> None:
    apart = [replace(entry, loss=entry.loss and entry.loss * (1 + 1e-9)) for entry in fedr.rounds]
    copy = replace(fedr, seed=2, spec=fedr.spec.replace(seed=2), rounds=apart)
    sizes = {name: sizes | {"entities": sizes["entities"] - 1} for name, sizes in fedr.data.clients.items()}
    smaller = replace(with_mrr(fedr, 0.4, 0.45, 0.5, seed=3), data=replace(fedr.data, clients=sizes))
    kept, left_out = admit([fedr, copy, smaller])
    assert kept == [fedr]
    assert [line.partition(": ")[2] for line in left_out] == [
        "it has the losses of seed 12345, round by round",
        "its clients have other sizes than those of others with the same data",
    ]


def test_scores_of_unlearning_are_shares(fedr: Record) -> None:
    quality = [Quality("a", "local", "forget", {"hits@1": exact(-2.0, 10)})]
    asked = Asked(role="raw")
    forged = Forgotten(
        schema="fkgsec/forgotten/1", run=fedr, asked=asked, data_hash=fedr.data.hash, forget_hash="f" * 64, num_forget={"a": 9},
        quality=quality, seconds=0.0, environment=fedr.environment, origin=Origin(""),
    )  # fmt: skip
    assert admit([forged]).left_out == ["fedr transe raw on DDB14-Fed5, seed 12345: its hits@1 is -2"]


def test_a_record_whose_digest_was_taken_out_is_named(tmp_path: Path, fedr: Record) -> None:
    path = tmp_path / "record.json"
    made = replace(fedr, environment=replace(fedr.environment, vector_level="AVX2, znver3"))
    path.write_bytes(encode_stored(sealed(replace(made, origin=Origin("0" * 64)))))
    assert len(read_records([tmp_path])[0]) == 1
    path.write_bytes(encode_stored(made))
    assert read_records([tmp_path]) == ([], [f"{path}: has no digest, which records of its version have"])


def test_words_of_a_record_stay_on_their_line_of_a_page(table: Experiment, fedr: Record) -> None:
    word = "a\n\n# Certified\n\n| all | cells |"
    forged = replace(fedr, spec=fedr.spec.replace(data=word), environment=replace(fedr.environment, dirty=True))
    lines = scoreboard_lines(make_scoreboard([table], [forged]), admit([forged]).left_out)
    assert [line for line in lines if "Certified" in line] == [
        line for line in lines if line.startswith("* Left out: fedr")
    ]
    pair = Pair(
        "p",
        True,
        exact(0.5, 9),
        exact(0.5, 9),
        exact(0.5, 9),
        "for",
        (0,),
        "",
        ("fkgsec x\n```\n\n# Certified ```",),
        "t",
        "c",
    )
    page = command_lines(Judged(read_claims()[0], "open", (pair,), {}))
    assert page[2:] == ["```", "fkgsec x ` ` ` # Certified ` ` `", "```"]


def test_a_record_that_was_edited_is_named(tmp_path: Path, fedr: Record) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(encode_stored(sealed(replace(fedr, origin=Origin("0" * 64)))))
    assert read_records([tmp_path])[1] == []
    document = json.loads(path.read_bytes())
    document["utility"]["mrr"]["value"] += 0.001
    path.write_text(json.dumps(document))
    assert read_records([tmp_path]) == (
        [],
        [f"{path}: has changed since it was written: its digest differs"],
    )


# What judges a cell.


def test_two_seeds_far_apart_decide_nothing(table: Experiment, fedr: Record) -> None:
    far = [with_mrr(fedr, 0.19, 0.2, 0.21, seed=0), with_mrr(fedr, 0.59, 0.6, 0.61, seed=1)]
    assert standing(table, *far) == ("undecided", (0, 1), "its interval reaches further than 10% of the paper's figure")
    assert standing(table, with_mrr(fedr, 0.0, 0.9, 1.0))[0] == "undecided"
    near = [with_mrr(fedr, 0.44, value, 0.45, seed=seed) for seed, value in enumerate((0.445, 0.446, 0.447))]
    assert standing(table, *near)[:2] == ("inside", (0, 1, 2))


def test_every_value_that_validation_chooses_from_is_to_be_tried(fedr: Record) -> None:
    table = read_experiment(find_experiment("zhu2023_fedlu_table1"))
    cell = next(one for one in table.cells if one.name == "TransE FedLU (local) C3")
    candidates = tuple(spec.replace(rounds=fedr.rounds[-1].round, patience=5) for spec in cell.candidates)
    runs = [
        replace(fedr, spec=spec.replace(seed=0), seed=0, data=replace(fedr.data, name=str(place)))
        for place, spec in enumerate(candidates)
    ]
    only = table._replace(cells=(cell._replace(candidates=candidates),))
    standings = [make_scoreboard([only], runs[:number])[0].cells[0].standing for number in (1, 2, 3)]
    assert standings == ["not run", "not run", "outside"]


def test_a_cost_of_one_run_and_a_size_of_data(table: Experiment, fedr: Record) -> None:
    cell = next(one for one in table.cells if one.name == CELL)
    of = {
        metric: table._replace(cells=(cell._replace(figures={metric: paper}),))
        for metric, paper in (("r@cg", 40.0), ("entities", 4462.2))
    }
    assert standing(of["r@cg"], fedr)[0] == "undecided"
    assert standing(of["entities"], fedr)[0] == "inside"
    other = table._replace(cells=(cell._replace(figures={"entities": 4462.3}),))
    assert standing(other, fedr)[0] == "outside"
    assert exact(4462.2, 5).low == 4462.2
