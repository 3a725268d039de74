"""The notebooks in examples/ run from the first cell to the last, show what they say, and are committed without outputs."""

import ast
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def run(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Run the code cells in one namespace, and show the value that each ends with as a notebook would.

    Returns: the namespace, and the values.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for number, cell in enumerate(cells_of(path)):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{path.name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), namespace))
            if hasattr(values[-1], "_repr_html_"):
                assert values[-1]._repr_html_()
    return namespace, values


@pytest.fixture(autouse=True)
def _drawn_without_a_screen() -> Any:
    matplotlib.use("Agg")
    yield
    plt.close("all")


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["defended", "own_triples", "pykeen_audit"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_committed(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in document["cells"]:
        assert isinstance(cell["source"], list)
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))
    text = path.read_text(encoding="utf-8")
    assert "/work" not in text
    assert str(Path.home()) not in text


def test_own_triples_to_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    namespace, values = run(FOLDER / "own_triples.ipynb")
    said = capsys.readouterr().out
    assert "identifiers: fail, TRR" in said
    assert "collusion: pass, TRR" in said
    over_all = namespace["over_all"].set_index(["metric", "threat_model"])
    attacked = over_all.loc[("trr", "identifiers")]
    assert attacked["baseline"] < attacked["low"] <= attacked["value"] <= attacked["high"] <= attacked["attainable"]
    rebuilt = values[-1]
    held = namespace["triples"][["head", "relation", "tail"]]
    assert len(rebuilt)
    assert len(rebuilt.merge(held, on=["head", "relation", "tail"])) >= len(rebuilt)  # all of them stand in the data


@pytest.mark.slow
def test_defended_against_undefended(capsys: pytest.CaptureFixture[str]) -> None:
    namespace, _ = run(FOLDER / "defended.ipynb")
    trr = namespace["chosen"].query("threat_model == 'identifiers'").set_index("defense")["value"]
    assert trr["none"] > trr["secure sums"]
    assert trr["none"] > trr["noise"]  # which is its baseline: fresh noise, and names by alignment in clear
    mrr = namespace["mrr"].set_index("defense")["value"]
    assert mrr["none"] > mrr["noise"]
    cosine = namespace["cosine"].groupby("defense")["value"].max()
    assert cosine["none"] > 0.99 > cosine["secure sums"]
    drawn = namespace["figure"]
    assert [axes.get_ylabel() for axes in drawn.axes] == ["triples rebuilt (TRR)", "test MRR"]
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == ["none", "secure sums", "noise"]
    assert "secure" in capsys.readouterr().out


@pytest.mark.slow
def test_audit_of_a_pykeen_model() -> None:
    pytest.importorskip("pykeen")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyKEEN's own
        namespace, _ = run(FOLDER / "pykeen_audit.ipynb")
    figures: pd.DataFrame = namespace["figures"]
    assert set(figures["threat_model"]) == {"collusion", "identifiers"}
    assert figures["reason"].isna().all()
    assert dict(zip(namespace["graph"].entities, range(10**6), strict=False)) == namespace["everything"].entity_to_id
    err = figures.query("headline and metric == 'err' and threat_model == 'identifiers'")["value"]
    assert (err == 1.0).all()  # names are told by alignment
    assert "pykeen" in sys.modules
