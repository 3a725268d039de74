"""Rows as numbers of a few bits: each tensor has a step, and whole multiples of it are sent.

    levels, steps = quantise(rows, tensor_places(names), bits=4)
    levels * steps[:, None]                          # the values that the other side reads

Rows are named `tensor/number` (`fkgsec.gnn.layout`). A tensor's step is its largest absolute value over 2^(bits - 1) - 1, so that
`bits` include the sign; or, as CEFGL's paper prints it, its Euclidean norm over 2^bits. Steps are sent beside the numbers. The
first broadcast has whole rows. `bits=32` disables quantization; from 21 on, float32 would not tell the multiple of a value. With
`factors=smaller` the server sends a low-rank matrix as two quantized factors if they have fewer rows; only without a defense,
since a defended broadcast is bound to its rows.

With secure sums, a client quantizes its rows and contributes the quantized values. Its steps stay secret, and nothing is
saved, as each number takes a ring element.

Leakage: the server sees every client's names and its rows as it reads them.
Source: cefgl.txt Eq. 10 and 11 (there `scale=l2`, and `rounding` to the nearest, which it calls random); QSGD (Alistarh et al.
2017) for `rounding=stochastic`. Differs: in the paper, 4 bits have 2^4 magnitudes beside a sign and zero, which need 6 bits: with
`scale=l2` that many are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError, SpecError
from fkgsec.exchange.aggregation import Answers
from fkgsec.exchange.codec import CODECS, ClientCodec, Codec, Content, Contribution, ServerCodec
from fkgsec.exchange.parts import Delivered, Holding, SharedTable, Upload, tensor_places
from fkgsec.exchange.tensors import factors
from fkgsec.federation.messages import SERVER, AnyMessage, QuantisedRows, Rows, encode
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator

Scale = Literal["max", "l2"]
Rounding = Literal["nearest", "stochastic"]
UNQUANTISED, MOST_BITS = 32, 20


class Quantised(NamedTuple):
    """Whole multiples int64 `[n, width]`, and the step of each row, float32 `[n]`."""

    levels: Tensor
    steps: Tensor

    def values(self) -> Tensor:
        """Multiply levels and steps, float32 `[n, width]`."""
        return self.levels * self.steps[:, None]


def quantise(
    rows: Tensor,
    places: Mapping[str, Tensor],
    *,
    bits: int,
    scale: Scale = "max",
    rng: np.random.Generator | None = None,
) -> Quantised:
    """Round the values of each tensor to multiples of its step.

    Args:
        rows: float `[n, width]`. places: row indices of each tensor.
        bits: per number.
        scale: "max" or "l2", the basis of the step.
        rng: None rounds to the nearest; otherwise up or down at random, with the value as the mean.
    """
    steps = torch.zeros(len(rows))
    for span in places.values():
        values = rows[span].float()
        # cefgl.txt Eq. 10 has the norm of the tensor over 2^bits; "max" uses the whole range of the levels.
        steps[span] = values.abs().max() / (2 ** (bits - 1) - 1) if scale == "max" else values.norm() / 2**bits
    exact = _over(rows.float(), steps)
    drawn = torch.zeros(()) if rng is None else torch.from_numpy(rng.random(tuple(exact.shape), dtype=np.float32))
    # Stochastic rounding of QSGD: floor(x + u) with u uniform in [0, 1) has mean x.
    levels = exact.round() if rng is None else (exact + drawn).floor()
    # Steps are rounded, too: the largest value may lie a hair beyond its level.
    largest = 2 ** (bits - 1) - 1 if scale == "max" else 2**bits
    return Quantised(levels.clamp(-largest, largest).long(), steps)


def _over(rows: Tensor, steps: Tensor) -> Tensor:
    """Divide rows by their steps; zero for a step of zero."""
    return torch.where(steps[:, None] > 0, rows / torch.where(steps > 0, steps, 1.0)[:, None], 0.0)


def _multiples(rows: Tensor, steps: Tensor) -> Quantised:
    """Recover the levels of rows that are multiples of known steps."""
    return Quantised(_over(rows, steps).round().long(), steps)


def check_bits(bits: int) -> None:
    """Check that float32 resolves a level times its step.

    Args:
        bits: per number, 2 to 20, or 32.

    Raises:
        SpecError: with more bits, the largest level would be read as one out of range.
    """
    if MOST_BITS < bits < UNQUANTISED:
        raise SpecError(f"bits must be 2 to {MOST_BITS}, or {UNQUANTISED} for rows as they are; got {bits}")


def wire_bits(bits: int, scale: Scale) -> int:
    """Return the bits of a transmitted number, with its sign and the largest magnitude.

    Args:
        bits: of the setting. scale: "l2" needs two more.
    """
    return bits if scale == "max" else bits + 2


class QuantisedClient(ClientCodec):
    """The client's half."""

    def __init__(self, holding: Holding, options: RunOptions, answers: Answers) -> None:
        super().__init__(holding, options, answers)
        check_bits(options.settings.bits)
        self._settings, self._places = options.settings, tensor_places(holding.names[: holding.num_uploaded])
        self._received = tensor_places(holding.names[: self.num_sent])
        self._quantised: Quantised | None = None

    def encode(self, round: int, rows: Tensor) -> Contribution:
        settings = self._settings
        if settings.bits == UNQUANTISED:
            return super().encode(round, rows)
        # Rounding depends on the values alone, so a round that is repeated sends the same bits.
        rng = _rng(self.options, round, rows)
        self._quantised = quantise(rows, self._places, bits=settings.bits, scale=settings.scale, rng=rng)
        return super().encode(round, self._quantised.values())

    def pack(self, round: int, party: str, table: Table, contribution: Contribution) -> AnyMessage:
        if self._quantised is None:
            return super().pack(round, party, table, contribution)
        wire = wire_bits(self._settings.bits, self._settings.scale)
        return QuantisedRows.pack(round, party, SERVER, table, *self._quantised, wire)

    def shape(self, message: AnyMessage) -> tuple[int, int]:
        return (message.num_rows, message.width) if isinstance(message, QuantisedRows) else super().shape(message)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        if not isinstance(message, QuantisedRows):
            return super().read(message, num_rows)
        rows = _values(message)
        if message.ranks:
            # Multiply the factors out.
            rows = factors.unpack(rows, message.ranks, self._received)
        whole = Rows.pack(message.round, message.sender, message.receiver, message.table, rows)
        return super().read(whole, num_rows)


class QuantisedServer(ServerCodec):
    """The server's half: the table has the quantized values that it sends."""

    def __init__(self, shared: SharedTable, options: RunOptions, answers: Answers) -> None:
        super().__init__(shared, options, answers)
        check_bits(options.settings.bits)
        self._settings, self._wire = options.settings, wire_bits(options.settings.bits, options.settings.scale)
        # Steps of the table's rows.
        self._steps = torch.empty(0)
        # Factors that are sent instead of the rows, if they are smaller.
        self._factored: tuple[Quantised, list[int]] | None = None

    def accept(self, round: int, message: AnyMessage) -> Upload:
        if self._settings.bits == UNQUANTISED:
            return super().accept(round, message)
        if not isinstance(message, QuantisedRows):
            raise RunError(f"{message.sender} uploaded {message.label} of {self.shared.table}; quantised rows expected")
        return super().accept(
            round, Rows.pack(message.round, message.sender, message.receiver, message.table, _values(message))
        )

    def publish(self, aggregated: Tensor, delivered: Delivered) -> None:
        settings, rng = self._settings, _rng(self.options, 0, aggregated)
        if settings.bits == UNQUANTISED:
            super().publish(aggregated, delivered)
            return
        # The table must have the values that clients read, or server and clients would drift apart.
        quantised = quantise(
            aggregated, tensor_places(self.shared.names), bits=settings.bits, scale=settings.scale, rng=rng
        )
        self.changed_levels = self._changed_share(quantised.levels)
        self.shared.rows, self._steps, self._factored = quantised.values(), quantised.steps, None
        # All clients must receive the same message: factors belong to a whole matrix.
        if settings.factors == "smaller" and not self.options.defense and self._all_are_sent_the_same():
            self._try_factors(aggregated, quantised, rng)

    def _changed_share(self, levels: Tensor) -> float:
        """Compute the share of the weight matrices' levels, int64 `[N, width]`, that differ from the last broadcast.

        Without a matrix, all levels count.
        """
        places = tensor_places(self.shared.names)
        if len(self._steps) and self._factored is None:
            last = _multiples(self.shared.rows, self._steps).levels
        # The last broadcast had whole rows or factors: quantize the table again for a comparison.
        else:
            last = quantise(self.shared.rows, places, bits=self._settings.bits, scale=self._settings.scale).levels
        # The largest value of a bias is close to a client's change of it, so its levels change even if the matrices' do not.
        matrices = [tensor_rows for tensor_rows in places.values() if len(tensor_rows) > 1] or list(places.values())
        tensor_rows = torch.cat(matrices)
        return float((levels[tensor_rows] != last[tensor_rows]).double().mean())

    def _try_factors(self, aggregated: Tensor, whole: Quantised, rng: np.random.Generator | None) -> None:
        sent = self.shared.sent(self.shared.parties[0])
        tensors = tensor_places([self.shared.names[int(place)] for place in sent])
        rows, parts, ranks = factors.pack(aggregated[sent], tensors)
        factored = quantise(rows, parts, bits=self._settings.bits, scale=self._settings.scale, rng=rng)
        if self._length(factored, ranks) < self._length(Quantised(whole.levels[sent], whole.steps[sent])):
            self._factored, self._steps = (factored, ranks), torch.zeros(len(aggregated))
            self.shared.rows = torch.zeros_like(aggregated)
            self.shared.rows[sent] = factors.unpack(factored.values(), ranks, tensors)

    def _length(self, sent: Quantised, ranks: Sequence[int] = ()) -> int:
        return len(encode(QuantisedRows.pack(0, SERVER, SERVER, self.shared.table, *sent, self._wire, ranks)))

    def _all_are_sent_the_same(self) -> bool:
        first, *others = (self.shared.sent(party) for party in self.shared.parties)
        return all(torch.equal(first, other) for other in others)

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        if self._settings.bits == UNQUANTISED or not len(self._steps):
            return super().pack(round, party, content)
        holding = self.shared.holdings.get(party, torch.arange(len(self.shared.names)))[: len(content)]
        if self._factored and torch.equal(content, self.shared.rows[holding]):
            sent, ranks = self._factored
            return QuantisedRows.pack(round, SERVER, party, self.shared.table, *sent, self._wire, ranks)
        sent = _multiples(content, self._steps[holding])
        # An adversary's rows are not multiples of the steps, and must fit the message too.
        if not torch.equal(sent.values(), content):
            names = [self.shared.names[int(place)] for place in holding]
            sent = quantise(content, tensor_places(names), bits=self._settings.bits, scale=self._settings.scale)
        return QuantisedRows.pack(round, SERVER, party, self.shared.table, *sent, self._wire)

    def tensors(self) -> dict[str, Tensor]:
        if self._factored is None:
            return {"steps": self._steps}
        sent, ranks = self._factored
        return {"steps": self._steps, "levels": sent.levels, "factor_steps": sent.steps, "ranks": torch.tensor(ranks)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._steps, self._factored = tensors["steps"], None
        if "ranks" in tensors:
            self._factored = Quantised(tensors["levels"], tensors["factor_steps"]), tensors["ranks"].tolist()


def _values(message: QuantisedRows) -> Tensor:
    return Quantised(*message.unpack()).values()


def _rng(options: RunOptions, round: int, rows: Tensor) -> np.random.Generator | None:
    """Return the generator for rounding a tensor, the same for the same values at any party; None: round to the nearest."""
    if options.settings.rounding != "stochastic":
        return None
    content = np.ascontiguousarray(rows.numpy(), dtype="<f4").tobytes()
    return generator(options.seed, "rounding", round, hashlib.sha256(content).hexdigest())


CODECS.register("quantised", Codec(QuantisedClient, QuantisedServer, whole=True))
