"""Parameters of a network as rows of one table, so that they are exchanged like any other rows.

    layout = Layout.of(model.encoder(), width=64)
    rows = layout.pack(parameters)                   # float32 [R, 64]
    layout.unpack(rows)["convs.0.lin.weight"]        # the tensor again

A matrix `[out, 64]` has 64 values per row, a matrix `[64, in]` is laid out by columns, a vector of 64 is one row. Any
other tensor is flattened, and its last row padded with zeros. Rows are named `name/number`, so their names tell which
parameters they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Rows of a table by the tensor that they hold.

    Attributes:
        width: of a row.
        shapes: of the tensors by name, in the order of their rows.
    """

    width: int
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], width: int) -> Layout:
        """Build the layout of some tensors, in order.

        Args:
            width: of a row.
        """
        return cls(width, {name: tuple(tensor.shape) for name, tensor in tensors.items()})

    @property
    def names(self) -> list[str]:
        """Names of all rows."""
        return [f"{name}/{row}" for name, shape in self.shapes.items() for row in range(self._num_rows(shape))]

    def _num_rows(self, shape: Sequence[int]) -> int:
        return -(-max(1, torch.Size(shape).numel()) // self.width)

    def _by_columns(self, shape: Sequence[int]) -> bool:
        # A matrix [64, in] by columns: each row of the table is then the weights of one input.
        return len(shape) == 2 and shape[0] == self.width != shape[1]

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy tensors to rows `[R, width]`.

        Args:
            tensors: by name, with the layout's shapes.
        """
        parts = []
        for name, shape in self.shapes.items():
            flat = (tensors[name].T if self._by_columns(shape) else tensors[name]).detach().reshape(-1)
            # Pad the last row with zeros.
            missing = self._num_rows(shape) * self.width - flat.numel()
            parts.append(torch.cat([flat, flat.new_zeros(missing)]).reshape(-1, self.width))
        return torch.cat(parts)

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """Undo `pack`: views of the rows, by name.

        Args:
            rows: float `[R, width]`.
        """
        tensors, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + self._num_rows(shape)
            flat, turned = rows[start:stop].reshape(-1)[: torch.Size(shape).numel()], tuple(reversed(shape))
            tensors[name] = flat.reshape(turned).T if self._by_columns(shape) else flat.reshape(shape)
            start = stop
        return tensors
