"""The estimate of what a run takes, and what is free: the least that machine, control groups and limits leave."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks import memory
from fkgsec.experiments.tasks.memory import GIB, Free, available, check_memory, needed
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.unlearning.unlearn import triple_lines

KGE = {"size": 600, "clients": 2, "dim": 8, "rounds": 1, "num_negatives": 4, "device": "cpu"}
GRAPHS = {"algorithm": "cefgl", "size": 80, "clients": 2, "layers": 1, "width": 8, "rounds": 1, "device": "cpu"}


def tree(root: Path, **files: str) -> Path:
    """Files below a root of its own, by their paths with __ for a slash."""
    for name, content in {"proc__meminfo": "MemTotal: 9999999 kB\nMemAvailable: 4194304 kB\n", **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_the_machine(tmp_path: Path) -> None:
    assert available(tree(tmp_path)) == Free(4 * GIB, "the machine")


def test_the_least_of_nested_groups_of_version_2(tmp_path: Path) -> None:
    top = "sys__fs__cgroup__outer"
    root = tree(
        tmp_path,
        **{
            "proc__self__cgroup": "0::/outer/inner\n",
            f"{top}__inner__memory.max": "max\n",
            f"{top}__memory.max": f"{3 * GIB}\n",
            f"{top}__memory.current": f"{2 * GIB}\n",
            f"{top}__memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
    )
    assert available(root) == Free(2 * GIB, "the control group (a container's limit)")


def test_a_group_of_version_1_and_one_seen_from_within_its_container(tmp_path: Path) -> None:
    base = "sys__fs__cgroup__memory"
    inside = {
        "proc__self__cgroup": "4:cpu:/\n3:cpuset,memory:/docker/abc\n",
        f"{base}__memory.limit_in_bytes": f"{GIB}\n",
        f"{base}__memory.usage_in_bytes": f"{GIB // 2}\n",
    }
    assert available(tree(tmp_path, **inside)).num_bytes == GIB / 2
    unlimited = inside | {f"{base}__memory.limit_in_bytes": "9223372036854771712\n"}
    assert available(tree(tmp_path, **unlimited)).says == "the machine"


def numbers(**changes: object) -> dict[str, float]:
    spec = make_spec(None, {**KGE, **changes})
    return dict(needed(spec, spec.load_graph()))


def test_what_grows_with_what() -> None:
    small, deep, wide = numbers(), numbers(dim=16), numbers(num_negatives=40)
    for part in ("tables and optimizer", "models kept", "messages", "checkpoint"):
        assert deep[part] == pytest.approx(2 * small[part])
    assert wide["steps"] > 5 * small["steps"]
    assert numbers(algorithm="fedlu")["models kept"] == 2 * small["models kept"]
    assert numbers(defense="secagg")["messages"] > small["messages"]
    assert numbers(algorithm="single")["messages"] == 0
    spec = make_spec(None, GRAPHS)
    graph = spec.load_graph()
    narrow, broad = (needed(make_spec(None, GRAPHS | {"width": width}), graph) for width in (64, 128))
    assert 3 < broad["networks and optimizer"] / narrow["networks and optimizer"] < 4
    assert broad["batches"] > narrow["batches"]


@pytest.mark.parametrize("options", [KGE | {"dim": 1_000_000}, GRAPHS | {"width": 400_000}])
def test_what_does_not_fit_is_refused_with_its_parts_before_it_is_taken(
    options: dict[str, object], tmp_path: Path
) -> None:
    spec = make_spec(None, options)
    with pytest.raises(SpecError, match=r"^memory: the run needs about [\d,.]+ GiB \(.* messages [\d,.]+.*\)"):
        execute(spec, spec.load_graph(), tmp_path / "run", attack=False)
    assert not (tmp_path / "run").exists()


def test_force_and_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(None, KGE)
    graph = spec.load_graph()
    one = sum(needed(spec, graph).values())
    monkeypatch.setattr(memory, "available", lambda: Free(1.5 * one, "the machine"))
    check_memory(spec, graph)
    with pytest.raises(SpecError, match=r"^memory: 2 runs at a time need"):
        check_memory(spec, graph, at_once=2)
    with pytest.raises(SpecError, match="or --force"):
        execute(spec, graph, tmp_path / "run", attack=False, at_once=2)
    execute(spec, graph, tmp_path / "run", attack=False, at_once=0)
    execute(spec, graph, tmp_path / "run", attack=False, at_once=2)  # finished: it takes nothing


def test_commands_that_train_or_evaluate_anew_ask_first_and_take_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_spec(None, KGE | {"unlinked_heads": 0})
    graph = spec.load_graph()
    execute(spec, graph, Path("run"), attack=False)
    client = graph.clients[0]
    Path("forget.tsv").write_text(triple_lines(graph, client.name, client.train[:3]))
    Path("policy.yaml").write_text(
        "federations:\n  one: {data: consortium, size: 600, clients: 2, dim: 8, rounds: 1, num_negatives: 4, device: cpu}\n"
        "limits:\n  utility.mrr: {min: 0.001}\n"
    )
    unlearn = ["unlearn", "--run", "run", "--forget", "forget.tsv", "--client", client.name, "--out", "new", "--method"]
    verify = ["verify", "--run", "new", "--forget", "forget.tsv", "--out", "audit"]
    check = ["check", "policy.yaml", "--runs", "checked", "--quiet"]
    recompute = ["verify-run", "run", "--recompute"]
    assert CliRunner().invoke(app, [*unlearn, "finetune", "--decay-epochs", "1"]).exit_code == 0
    made = sorted(tmp_path.iterdir())
    monkeypatch.setattr(memory, "available", lambda: Free(0, "the machine"))
    for command in ([*unlearn, "retrain", "--overwrite"], verify, check, recompute):
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, "or --force" in done.stderr) == (2, True), command
        assert done.stderr.count("fkgsec: memory: ") == 1
    assert sorted(tmp_path.iterdir()) == made
    for command in ([*unlearn, "retrain", "--overwrite"], check, recompute):
        assert CliRunner().invoke(app, [*command, "--force"]).exit_code in (0, 1), command


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"size": 100_000_000_000}, "at most 10,000,000"),
        ({"algorithm": "fedavg", "size": 100_000_000_000}, "at most 1,000,000 graphs"),
        ({"size": 600, "clients": 100_000_000_000}, "20 per client or more"),
    ],
)
def test_sizes_that_would_run_for_minutes(options: dict[str, object], most: str) -> None:
    spec: RunSpec = make_spec(None, options)
    with pytest.raises(SpecError, match=most):
        spec.load_graph()
