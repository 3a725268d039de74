"""Parameters as rows, back and forth."""

import torch

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
