"""The golden runs: each a command line of `fkgsec`, tiny, on generated data, with the protocols' randomness fixed.

A case may name the folder of an earlier one (`runs/NAME`), which is then made first. All paths are relative to one folder,
in which `figures.prepare` has put the data.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TINY = (
    "--size 300 --dim 8 --batch-size 64 --num-negatives 8 --rounds 3 --eval-every 1 --learning-rate 0.01 "
    "--device cpu --protocol-seed 7"
)
ATTACK = f"{TINY} --unlinked-heads 5"


class Case(NamedTuple):
    """One command. `slow` cases stay out of the ordinary suite."""

    name: str
    command: str
    slow: bool = False

    @property
    def needs(self) -> list[str]:
        """The cases whose run folders this command reads."""
        read = re.findall(r"(?<!--out )\bruns/([\w.+-]+)", self.command)
        return list(dict.fromkeys(name for name in read if name != self.name))


def train(name: str, options: str, *, slow: bool = False, tiny: str = TINY) -> Case:
    """Train, and keep utility, losses, bytes and tables."""
    return Case(name, f"train {tiny} {options} --out runs/{name} --quiet", slow)


def attack(name: str, options: str, *, slow: bool = False) -> Case:
    """Train and attack."""
    return Case(name, f"attack {ATTACK} {options} --out runs/{name} --quiet", slow)


def again(name: str, run: str, options: str, *, slow: bool = False) -> Case:
    """Attack a run of an earlier case by other means."""
    return Case(name, f"attack --run runs/{run} --unlinked-heads 5 {options} --out runs/{name} --quiet", slow)


def refused(name: str, command: str) -> Case:
    """A command that ends with a status other than 0, which is all that is kept of it."""
    return Case(f"refused-{name}", f"{command} --out runs/refused-{name} --quiet")


def unlearn(run: str, method: str, *, name: str = "", options: str = "") -> Case:
    """Let a run forget four triples of hospital-1."""
    name = f"unlearn-{run}-{name or method}"
    command = f"unlearn --run runs/{run} --forget forget.tsv --client hospital-1 --method {method}"
    return Case(name, f"{command} {options} --epochs 2 --decay-epochs 2 --out runs/{name} --quiet".replace("  ", " "))


RECIPES = (
    *(train(name, f"--algorithm {name}") for name in ("single", "collective", "fedep", "fedepl", "fedprox", "fedec")),
    *(train(name, f"--algorithm {name}") for name in ("pfedeg", "fede-kd")),
    train("fede-svd", "--algorithm fede-svd --rank 1 --columns 2"),
    train("fede-svd+", "--algorithm fede-svd+ --rank 1 --columns 2"),
    attack("fede", "--algorithm fede --leak 1 --leak 0.5"),
    attack("fedr", "--algorithm fedr --leak 1"),
    attack("feds", "--algorithm feds --leak 1 --inference cosine"),
    train("fedlu", "--algorithm fedlu"),
)
VARIANTS = (
    train("fedlu-published", "--algorithm fedlu --variant published --evaluate before --negative-sides each"),
    train("fedlu-wait", "--algorithm fedlu --warmup-rounds 1 --private-start server"),
    train("fedprox-distance", "--algorithm fedprox --proximal distance"),
    train("feds-always-sparse", "--algorithm feds --sparse-rounds 0 --sparsity 0.5"),
    train("feds-every-second", "--algorithm feds --sparse-rounds 1"),
    train("pfedeg-embedding", "--algorithm pfedeg --affinity embedding --start own"),
    train("fede-kd-half", "--algorithm fede-kd --shared-dim-ratio 0.5"),
    train("fede-rotate", "--algorithm fede --model rotate"),
    train("fede-complex", "--algorithm fede --model complex --gamma 4"),
    train("fede-distmult", "--algorithm fede --model distmult --temperature 0"),
    train("fede-part", "--algorithm fede --participation 0.67 --seed 3 --split-seed 3 --evaluate before"),
    train("fede-sides", "--algorithm fede --negative-sides both --eval-sides both --local-epochs 1"),
    train("fede-all", "--algorithm fede --negative-scope all --rank-scope all --patience 1"),
    train("fede-published", "--algorithm fede --negative-scope published --rank-scope all"),
    train("fede-divided", "--data graph --clients 2 --partition clusters", tiny=TINY.replace("--size 300 ", "")),
)
DEFENSES = (
    attack("fede+psu+secagg", "--defense psu,secagg --leak 1"),
    attack("fede+secagg", "--defense secagg:bits=64,clip=1.5,dropout=0.2 --clients 4 --leak 1 --inference score"),
    train("fede+regular", "--defense secagg:neighbours=4,threshold=3 --clients 6 --size 420"),
    train("fede+suppress", "--defense psu,secagg,suppress:t=2"),
    train("fede+dp-row", "--defense dp:unit=row,clip=0.1,epsilon=8"),
    train("fede+dp-client", "--defense dp:clip=0.5,noise_multiplier=0.2,accountant=prv"),
    train("fede+dp-discrete", "--defense secagg,dp:clip=0.1,epsilon=40"),
    train("fede+dp-skellam", "--defense psu,secagg,dp:unit=row,noise=skellam,clip=0.1,epsilon=40"),
    train("fedr+psu+secagg", "--algorithm fedr --defense psu,secagg"),
    attack("fedr+secagg", "--algorithm fedr --defense secagg --leak 1 --inference score"),
    train("fedr+dp", "--algorithm fedr --defense dp:clip=0.1,epsilon=8"),
    attack("feds+secagg", "--algorithm feds --defense secagg --leak 1 --inference score"),
    train("feds+suppress", "--algorithm feds --defense secagg,suppress:t=2"),
    train("fedep+secagg", "--algorithm fedep --defense secagg"),
    train("fedec+secagg", "--algorithm fedec --defense psu,secagg"),
    train("fedprox+secagg", "--algorithm fedprox --defense psu,secagg"),
    train("fedlu+secagg", "--algorithm fedlu --defense psu,secagg"),
    train("fedlu+dp", "--algorithm fedlu --defense dp:unit=row,clip=0.1,epsilon=8"),
    train("fede-kd+secagg", "--algorithm fede-kd --defense secagg"),
    train("pfedeg+dp", "--algorithm pfedeg --defense dp:clip=0.1,epsilon=8"),
    train("fede-svd+secagg", "--algorithm fede-svd --rank 1 --columns 2 --defense psu,secagg"),
    train("fede-svd-plus+dp", "--algorithm fede-svd+ --rank 1 --columns 2 --defense dp:clip=0.1,epsilon=8"),
)
REFUSALS = (
    refused("feds+psu", f"train {TINY} --algorithm feds --defense psu,secagg"),
    refused("feds+dp", f"train {TINY} --algorithm feds --defense dp:clip=0.1,epsilon=8"),
    refused("pfedeg+secagg", f"train {TINY} --algorithm pfedeg --defense secagg"),
    refused("single+secagg", f"train {TINY} --algorithm single --defense secagg"),
    refused("collective+dp", f"train {TINY} --algorithm collective --defense dp:clip=0.1,epsilon=8"),
    refused("psu", f"train {TINY} --defense psu"),
    refused("suppress", f"train {TINY} --defense suppress:t=2"),
    refused("regular+suppress", f"train {TINY} --clients 6 --defense secagg:neighbours=4,suppress:t=2"),
    refused("regular-too-thin", f"train {TINY} --clients 6 --defense secagg:neighbours=3,colluders=5"),
    refused("discrete-alone", f"train {TINY} --defense dp:noise=discrete,clip=0.1,epsilon=8"),
    refused("threshold", f"train {TINY} --defense secagg:threshold=9"),
    refused("collective-attacked", f"attack {ATTACK} --algorithm collective"),
    refused("published-sums", f"attack {ATTACK} --defense secagg --metric published"),
    refused("setting-of-others", f"train {TINY} --algorithm fede --sparsity 0.4"),
)
ATTACKS = (
    again("fede-server", "fede", "--threat server --leak 1"),
    again("fede-published-counts", "fede", "--metric published --leak 1"),
    again("fede-colluder-2", "fede", "--colluder hospital-2 --threat identifiers --leak 1 --inference names"),
    again("fedr-entities", "fedr", "--threat collusion+entities --leak 1 --attack-seed 5"),
    again("fedlu-attacked", "fedlu", "--leak 1 --inference score"),
    again("pfedeg-attacked", "pfedeg", "--leak 1 --inference cosine"),
    again("fede-svd-attacked", "fede-svd", "--leak 1 --inference cosine"),
    again("fede-kd-attacked", "fede-kd", "--leak 1 --inference cosine"),
    again("single-attacked", "single", "--leak 1"),
    again("suppress-attacked", "fede+suppress", "--leak 1 --inference score"),
    again("dp-attacked", "fede+dp-row", "--leak 1 --inference score"),
    again("discrete-attacked", "fede+dp-discrete", "--leak 1 --inference score"),
    again("fedlu-secagg-attacked", "fedlu+secagg", "--leak 1 --inference score"),
    Case("exported", "export --run runs/fede --out runs/exported"),
    Case("audited", "audit --tables runs/exported --leak 1 --unlinked-heads 5 --json runs/audited.json --quiet"),
)
UNLEARNING = (
    *(unlearn("fedlu", method) for method in ("fedlu", "retrain", "finetune", "ascent", "relabel", "delete")),
    unlearn("fedlu", "fedlu", name="published", options="--variant published"),
    unlearn("fedlu", "fedlu", name="soft", options="--no-hard --mu-soft 0.5"),
    unlearn("fede", "finetune"),
    unlearn("collective", "ascent"),
    unlearn("feds", "relabel"),
    unlearn("fede+psu+secagg", "ascent"),
    *(unlearn("fedlu+secagg", method) for method in ("fedlu", "retrain", "finetune", "relabel", "delete")),
    unlearn("feds+secagg", "finetune"),
    unlearn("fede+dp-row", "finetune"),
    Case(
        "verified",
        "verify --run runs/unlearn-fedlu-fedlu --forget forget.tsv --client hospital-1 --raw runs/fedlu "
        "--references 3 --budget 3 --shadows 4 --plants 1 --relearn-steps 2 --audit-seed 11 --out runs/verified --quiet",
        slow=True,
    ),
)
SEEDS = (Case("several-seeds", f"attack {ATTACK} --leak 1 --seeds 2 --out runs/several-seeds --quiet"),)
GATE = (
    Case("checked", "check tiny.yaml --runs runs/gate --json runs/checked.json --quiet"),
    Case("checked-audits", "check audits.yaml --runs runs/gate --json runs/checked-audits.json --quiet", slow=True),
    Case("checked-example", "check example.yaml --runs runs/gate --json runs/checked-example.json --quiet", slow=True),
    Case(
        "compared",
        f"compare {ATTACK.replace(' --protocol-seed 7', '')} --case none --case fedr --leak 1 --out runs/compared --quiet",
        slow=True,
    ),
)
DATA = tuple(
    Case(f"data-{name}", f"data stats {options} --json runs/data-{name}.json")
    for name, options in (
        ("consortium", "--size 300 --split-seed 4"),
        *(
            (kind, f"--data graph --clients 3 --partition {kind} --split-seed 2")
            for kind in ("triples", "relations", "clusters")
        ),
    )
)
CASES = (*DATA, *RECIPES, *VARIANTS, *DEFENSES, *REFUSALS, *ATTACKS, *UNLEARNING, *SEEDS, *GATE)
BY_NAME = {case.name: case for case in CASES}
