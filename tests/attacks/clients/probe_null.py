"""What the displacement probe says where nothing is displaced: its figure's null under the clip, on the runs of the matrix.

    python -m tests.attacks.clients.probe_null                # some minutes

Each run of the matrix under `robust:rule=clip` is trained with the probe's client in it, once with its moves and once with none:
it uploads what it received, as in the rounds of the probe, and asks who followed moves that it never made. Of these the AUC
(trained triples among random pairs, of each victim the questions of the probe) is taken for many drawn directions. A third column
has the directions drawn anew in the run in which rows were moved, but in others: what moving alone does to it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fkgsec import run_federation
from fkgsec.attacks.clients.active import ATTACK, Answers, Plan, ask, asked_of, draw_plan
from fkgsec.attacks.clients.asking import askable, numbers, places
from fkgsec.attacks.kge.view import KgeView, kge_view
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.uploads.questions import draw_questions, named
from fkgsec.defenses import make_transport
from fkgsec.experiments.runs.record import Record
from fkgsec.randomness import generator
from tests.experiments.test_matrix_results import CLIP, FOLDER, cases

DRAWS = 200


def trained(record: Record) -> tuple[Laboratory[KgeView], Truth, Plan]:
    """The run trained again, with what its evaluator knows, and what the client plans."""
    spec, train = record.spec, partial(run_federation, make_transport=make_transport)
    result, options = train(spec.load_graph(), spec.federation_options()), spec.attack_options()
    who, seed = options.colluders(result.graph.clients), options.seed
    view_of = partial(kge_view, threat_model=THREAT_MODELS["client"], colluder=who, leak=options.leak[0], seed=seed)
    view, laboratory = view_of(result), Laboratory(result, train, options, who, view_of)
    victims, rng = [one.name for one in view.victims], generator(seed, "score", ATTACK.name, "client")
    truth = Truth(ATTACK, view.threat_model, view.round, None, laboratory._runs, victims, who, options, rng)
    return laboratory, truth, draw_plan(view, options, generator(seed, "attack", ATTACK.name, "client"))


def rows_of(truth: Truth, plan: Plan, victim: str) -> tuple[np.ndarray, np.ndarray]:
    """The trained triples and the random pairs that are asked, in the client's rows, int64 `[q, 3]` each."""
    place, kind = numbers(plan.knowledge.entity_names), numbers(plan.knowledge.relation_names)
    known = askable(truth.graph, truth.colluders, victim)
    asked = draw_questions(truth, victim, partial(asked_of, truth, plan, victim, known), truth.rng)
    trained, others = (places(named(truth, victim, part), place, kind) for part in (asked.trained, asked.random))
    return trained, others


def auc(answers: Answers, asked: tuple[np.ndarray, np.ndarray]) -> float:
    return float(placements(*map(answers.displacement, asked)).members.mean())


def nulls(answers: Answers, asked: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Means over victims of the AUC for directions that nobody moved in, float64 `[DRAWS]`."""
    rng, plan = np.random.default_rng(0), answers.plan
    size = float(plan.moves.abs().max())
    found = []
    for _ in range(DRAWS):
        signs = 2 * rng.integers(0, 2, tuple(plan.moves.shape)) - 1
        moves = torch.from_numpy((size * signs).astype(np.float32))
        other = answers._replace(plan=replace(plan, moves=moves))
        found.append(np.mean([auc(other, one) for one in asked]))
    return np.array(found)


def main() -> None:
    print(
        "| data | seed | probe | nobody moves: mean (sd of a draw) | moved in others: mean (sd of a draw) | draws as high |"
    )
    print("|---" * 6 + "|")
    for data in ("hospitals", "umls"):
        rows = []
        for path in sorted(FOLDER.glob(f"{data}-seed*.json")):
            laboratory, truth, plan = trained(cases(path.stem)[CLIP])
            asked = [rows_of(truth, plan, victim) for victim in truth.victims]
            made = {}
            for name, moves in (("moved", plan.moves), ("still", torch.zeros_like(plan.moves))):
                probed = ask(replace(plan, moves=moves), laboratory)
                made[name] = probed._replace(plan=plan)
            probe = np.mean([auc(made["moved"], one) for one in asked])
            still, others = (nulls(made[name], asked) for name in ("still", "moved"))
            rows.append((probe, still, others))
            print(line(data, path.stem[-1], *rows[-1]), flush=True)
        print(line(data, "all", *(np.mean([row[place] for row in rows], axis=0) for place in range(3))), flush=True)


def line(data: str, seed: str, probe: float, still: np.ndarray, others: np.ndarray) -> str:
    """Of the mean over victims."""
    shown = [f"{one.mean():.4f} ({one.std(ddof=1):.4f})" for one in (still, others)]
    return f"| {data} | {seed} | {probe:.3f} | {shown[0]} | {shown[1]} | {(still >= probe).sum()} of {len(still)} |"


if __name__ == "__main__":
    main()
