"""Parameters as rows, back and forth."""

import torch
from torch import nn

from fkgsec.exchange.parts import tensor_places
from fkgsec.gnn.layout import Layout


def test_rows_of_every_shape() -> None:
    tensors = {
        "square": torch.arange(9.0).reshape(3, 3),
        "wide": torch.arange(6.0).reshape(2, 3),
        "tall": torch.arange(12.0).reshape(3, 4),
        "bias": torch.tensor([7.0, 8.0, 9.0]),
        "eps": torch.tensor(5.0),
        "odd": torch.arange(8.0).reshape(2, 2, 2),
    }
    layout = Layout.of(tensors, width=3)
    rows = layout.pack(tensors)
    assert rows[:3].tolist() == tensors["square"].tolist()
    assert rows[3:5].tolist() == tensors["wide"].tolist()
    assert rows[5:9].tolist() == tensors["tall"].T.tolist()  # by columns, each of one input
    assert rows[9:].tolist() == [[7, 8, 9], [5, 0, 0], [0, 1, 2], [3, 4, 5], [6, 7, 0]]
    assert layout.names[4:10] == ["wide/1", "tall/0", "tall/1", "tall/2", "tall/3", "bias/0"]
    assert len(layout.names) == len(set(layout.names)) == len(rows)
    for name, tensor in layout.unpack(rows).items():
        assert torch.equal(tensor, tensors[name])


def test_names_say_where_tensors_lie() -> None:
    """In whatever order the rows are, a private union's for one."""
    network = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 2))
    parameters = dict(network.named_parameters())
    layout = Layout.of(parameters, width=12)
    order = torch.randperm(len(layout.names), generator=torch.Generator().manual_seed(0))
    names, rows = [layout.names[place] for place in order], layout.pack(parameters)[order]
    places = tensor_places(names)
    assert set(places) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    for name in ("0.weight", "1.weight"):
        assert torch.equal(rows[places[name]], parameters[name])


def test_packing_copies_and_unpacking_looks() -> None:
    tensor = torch.zeros(2, 3)
    layout = Layout.of({"w": tensor}, width=3)
    rows = layout.pack({"w": tensor})
    layout.unpack(rows)["w"].fill_(1)
    assert rows.sum() == 6
    assert tensor.sum() == 0
