"""The example workflows and the action: valid by their published schemas, and their own steps run in a clean environment."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fkgsec.experiments.gate.policy import read_policy

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SMALL_POLICY = """\
federations:
  small: {size: 600, dim: 8, batch_size: 64, num_negatives: 8, rounds: 3, eval_every: 1, unlinked_heads: 0}
limits:
  reconstruction.trr: {max: 0.9, threat: identifiers, leak: 0.5}
  utility.mrr: {min: 0.001}
"""


@pytest.mark.parametrize(
    ("file", "options"),
    [
        (EXAMPLES / "github-workflow.yml", ["--builtin-schema", "vendor.github-workflows"]),
        (EXAMPLES / "gitlab-ci.yml", ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
        (ROOT / "action.yml", ["--builtin-schema", "vendor.github-actions"]),
    ],
    ids=["workflow", "gitlab", "action"],
)
def test_files_are_valid(file: Path, options: list[str], tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="brings the published schemas of these files")
    command = [sys.executable, "-m", "check_jsonschema", *options]
    assert subprocess.run([*command, file], check=False, capture_output=True).returncode == 0
    broken = tmp_path / file.name
    broken.write_text(file.read_text().replace("steps:", "stepps:").replace("script:", "skript:"))
    assert subprocess.run([*command, broken], check=False, capture_output=True).returncode == 1


def test_the_example_policy_is_one() -> None:
    policy = read_policy(EXAMPLES / "policy.yaml")
    assert policy.federations["hospitals"].defense == "psu,secagg"
    assert len(policy.limits) == 6
    # What leaks to whoever holds a trained model is far above chance (README); a limit above that would endorse it.
    assert not [limit for limit in policy.limits if limit.measure.startswith("membership") and limit.allowed > 0.6]


def github_steps(path: Path) -> list[dict[str, Any]]:
    """The commands of a workflow's only job, or of a composite action; actions of others cannot be run here."""
    content = yaml.safe_load(path.read_text())
    steps = content["runs"]["steps"] if "runs" in content else next(iter(content["jobs"].values()))["steps"]
    return [step for step in steps if "run" in step]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has our dependencies and pip, but not us, and a copy of the sources to install from."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    lib = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    # Dependencies are found by their paths alone: .pth files in these folders, such as our editable installation, are not read.
    ours = [
        path for path in sys.path if Path(path).name == "site-packages"
    ]  # several, where one environment adds another's
    (lib / "dependencies.pth").write_text("".join(f"{path}\n" for path in ours))
    source = folder / "fkgsec"
    for name in ("fkgsec", "attacks", "defenses", "protocols", "experiments"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return folder


def environment(clean: Path, folder: Path) -> dict[str, str]:
    """Of a build: nothing of ours on any path, pip without network."""
    kept = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
    return {
        **kept,
        # One thread gives the same figures, and does not wait for a second one on a busy machine.
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "PATH": f"{clean / 'venv' / 'bin'}:/usr/bin:/bin",
        "FKGSEC": str(clean / "fkgsec"),
        "GITHUB_ACTION_PATH": str(clean / "fkgsec"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_IGNORE_INSTALLED": "1",  # leave alone what the dependencies' folder knows of us
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one upside down: no isolation
    }


def run(command: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As GitHub runs a step."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
        cwd=folder,
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
    )


def run_github(path: Path, folder: Path, env: dict[str, str], inputs: Mapping[str, str]) -> int:
    """The steps in their order, those with `if: always()` also after one that failed. Returns the failed one's status, or 0."""
    status = 0
    for step in github_steps(path):
        if status and "always()" not in step.get("if", ""):
            continue
        own = {key: value.replace("${{ inputs.", "").replace(" }}", "") for key, value in step.get("env", {}).items()}
        done = run(step["run"], folder, {**env, **{key: inputs[name] for key, name in own.items()}})
        print(done.stdout, done.stderr)
        status = status or done.returncode
    return status


@pytest.fixture(scope="module")
def proposed(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install fkgsec by the workflow's step and run `fkgsec check --init` in an empty folder, which this returns."""
    folder = tmp_path_factory.mktemp("proposed")
    env = environment(clean, folder)
    installed = run(github_steps(EXAMPLES / "github-workflow.yml")[0]["run"], folder, env)
    assert installed.returncode == 0, installed.stderr
    imported = run("cd / && python -c 'import fkgsec; print(fkgsec.__file__)'", folder, env).stdout
    assert imported.startswith(str(clean / "venv"))
    done = run("fkgsec check --init --quiet", folder, env)
    assert done.returncode == 0, done.stderr
    return folder


def trained(folder: Path) -> set[str]:
    """Return the names of the runs of `fkgsec check` in a folder."""
    return {path.name for path in (folder / "runs" / "check").iterdir() if path.is_dir()}


@pytest.mark.slow
def test_from_an_empty_folder_to_a_red_build_by_the_steps_of_the_workflow(
    clean: Path, proposed: Path, tmp_path: Path
) -> None:
    """Issue 6, acceptance 1."""
    env = environment(clean, tmp_path)
    shutil.copytree(proposed, tmp_path, dirs_exist_ok=True)
    green = run("fkgsec check policy.yaml --quiet", tmp_path, env)
    assert green.returncode == 0, green.stdout + green.stderr
    # The example's federation is that of `--init` under another name: under the same name its run is there already.
    (tmp_path / "example.yaml").write_text(
        (EXAMPLES / "policy.yaml").read_text().replace("  hospitals:", "  consortium:")
    )
    example = run("fkgsec check example.yaml --quiet", tmp_path, env)
    assert example.returncode == 0, example.stdout + example.stderr
    policy = tmp_path / "policy.yaml"
    assert not [limit for limit in read_policy(policy).limits if limit.measure.startswith("membership")]
    lines = policy.read_text().splitlines(keepends=True)
    assert sum("defense: psu,secagg" in line for line in lines) == 1
    policy.write_text("".join(line for line in lines if "defense: psu,secagg" not in line))
    reports = "--junit red.xml --sarif red.sarif --markdown red.md --json red.json"
    red = run(f"fkgsec check policy.yaml --quiet {reports}", tmp_path, env)
    assert red.returncode == 1, red.stdout + red.stderr
    assert trained(tmp_path) == trained(proposed)  # the runs of `--init`

    verdicts = json.loads((tmp_path / "red.json").read_text())["verdicts"]
    failed = [one for one in verdicts if one["status"] == "fail"]
    assert failed
    assert all(one["status"] == "fail" for one in verdicts if one["rule"].startswith("reconstruction."))
    junit = "".join(ET.parse(tmp_path / "red.xml").getroot().itertext())
    sarif, markdown = (tmp_path / "red.sarif").read_text(), (tmp_path / "red.md").read_text()
    for one in failed:
        figure = one["measured"]
        interval = f"{figure['value']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"
        assert f'name="{one["id"].partition("/")[2]}"' in (tmp_path / "red.xml").read_text()
        assert any(line.startswith("rebuilt, of hospital-") for line in one["evidence"])
        for text in (junit, sarif, markdown):
            for part in (one["about"], interval, one["evidence"][0], one["records"][0]):
                assert part in text
        assert (tmp_path / one["records"][0]).exists()


@pytest.mark.slow
def test_the_steps_of_the_workflow_the_action_and_gitlab(clean: Path, tmp_path: Path) -> None:
    """Each of the three trains anew (`--fresh`), so the federation is small."""
    (tmp_path / "policy.yaml").write_text(SMALL_POLICY)
    env = environment(clean, tmp_path)
    assert run_github(EXAMPLES / "github-workflow.yml", tmp_path, env, {}) == 0
    assert (tmp_path / "summary.md").read_text().startswith("## fkgsec check: pass")
    reports = {name: (tmp_path / f"fkgsec.{name}").read_bytes() for name in ("junit.xml", "sarif", "md", "json")}

    red = tmp_path / "red.yaml"  # the same runs, a limit that they pass
    red.write_text(
        (tmp_path / "policy.yaml").read_text().replace("utility.mrr: {min: 0.001}", "utility.mrr: {min: 0.9}")
    )
    (tmp_path / "summary.md").unlink()
    assert run_github(ROOT / "action.yml", tmp_path, env, {"policy": "red.yaml", "inconclusive": "fail"}) == 1
    assert (tmp_path / "summary.md").read_text().startswith("## fkgsec check: fail")

    for command in yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["fkgsec"]["script"]:
        done = run(command, tmp_path, env)
        assert done.returncode == 0, done.stdout + done.stderr
    again = {name: (tmp_path / f"fkgsec.{name}").read_bytes() for name in reports}
    assert again == reports  # the same code on the same data: the same verdict, to the byte
