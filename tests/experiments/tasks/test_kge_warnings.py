"""What is said of clients whose own figures rest on next to nothing, and of columns that data do not have."""

import dataclasses

import numpy as np
import pytest

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.split_leaks import NEW, seen_in_training
from fkgsec.errors import SpecError
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks.kge import TASK


def test_clients_with_two_test_triples_or_fewer_are_named() -> None:
    graph = generate_consortium(clients=3, size=600, seed=0)
    assert not any("test triples or fewer" in line for line in TASK.warnings(graph))
    first, second, third = graph.clients
    few = [
        first,
        dataclasses.replace(second, test=second.test[:2]),
        dataclasses.replace(third, test=third.test[:0]),
    ]
    lines = TASK.warnings(dataclasses.replace(graph, clients=tuple(few)))
    assert (
        "2 of 3 clients have 2 test triples or fewer (hospital-2 2, hospital-3 none): figures of these clients are meaningless"
    ) in lines


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"triple_columns": "a,b,c"}, "triple_columns does not apply to the embedded consortium"),
        ({"data": "x.csv", "triple_columns": "a,b"}, "triple_columns must be three names, .*; got 'a,b'"),
        ({"data": "x.csv", "triple_columns": "a,a,b"}, "triple_columns must be three names"),
    ],
)
def test_columns_are_three_names_of_a_table(given: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make_spec(None, given).load_graph()


def test_statistics_say_how_many_test_triples_no_client_trains_on() -> None:
    graph = generate_consortium(clients=3, size=600, seed=0)
    first, second, third = graph.clients
    leaky = dataclasses.replace(first, test=np.concatenate([first.test, first.train[: len(first.test)]]))
    graph = dataclasses.replace(graph, clients=(leaky, second, dataclasses.replace(third, test=third.test[:0])))
    table = next(one for one in TASK.statistics(graph)[0] if "test triples" in one.title)
    (row,) = [row for row in table.rows if "new" in row[0]]
    shares = [(where == NEW).mean() for where in seen_in_training(graph)[:2]]
    assert row[1:] == (f"{shares[0]:.3f}", f"{shares[1]:.3f}", "nan")
    assert shares[0] <= 0.5
