"""Quantised rows against loops over single numbers, on the wire and under tampering."""

import pytest
import torch

from fkgsec.errors import RunError
from fkgsec.exchange import CODECS, Holding, SharedTable
from fkgsec.exchange.parts import Delivered, tensor_places
from fkgsec.exchange.tensors.quantised import MOST_BITS, Quantised, Scale, _multiples, quantise, wire_bits
from fkgsec.federation.messages import QuantisedRows, Rows, decode, encode
from fkgsec.gnn.options import GnnOptions
from fkgsec.randomness import generator

NAMES = ["w/0", "w/1", "b/0", "w/2", "none/0"]
PLACES = tensor_places(NAMES)


@pytest.fixture
def rows() -> torch.Tensor:
    """Two tensors whose rows lie mixed, and one of zeros."""
    drawn = torch.from_numpy(generator(0, "test").normal(size=(5, 6))).float()
    drawn[2] *= 100
    drawn[4] = 0
    return drawn


def test_four_numbers_by_hand() -> None:
    """3 bits hold -3..3: with the largest value 3 a step is 1; by the norm of (12, -5), 13, it is 13 / 8."""
    found = quantise(torch.tensor([[3.0, -1.2], [0.6, 0.4]]), {"x": torch.arange(2)}, bits=3)
    assert found.levels.tolist() == [[3, -1], [1, 0]]
    assert found.steps.tolist() == [1.0, 1.0]
    printed = quantise(torch.tensor([[12.0, -5.0]]), {"x": torch.tensor([0])}, bits=3, scale="l2")
    assert printed.levels.tolist() == [[7, -3]]  # 12 / 1.625 = 7.4, 5 / 1.625 = 3.1
    assert printed.values().tolist() == [[11.375, -4.875]]


@pytest.mark.parametrize("scale", ["max", "l2"])
def test_the_largest_levels_cross_and_are_told_from_their_values(scale: Scale, rows: torch.Tensor) -> None:
    rows[2, 1:] = 0  # by the norm, too, one value of it has the largest level
    found = quantise(rows, PLACES, bits=MOST_BITS, scale=scale)
    packed = QuantisedRows.pack(1, "client/a", "server", "parameters", *found, wire_bits(MOST_BITS, scale))
    levels, steps = packed.unpack()
    assert torch.equal(levels, found.levels)
    assert torch.equal(_multiples(found.values(), steps).levels, levels)
    assert int(levels.abs().max()) == (2 ** (MOST_BITS - 1) - 1 if scale == "max" else 2**MOST_BITS)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_nearest_by_the_largest_value(bits: int, rows: torch.Tensor) -> None:
    found = quantise(rows, PLACES, bits=bits)
    levels = 2 ** (bits - 1) - 1
    for name, places in PLACES.items():
        largest = float(rows[places].abs().max())
        for place in places:
            for value, read in zip(rows[place].tolist(), found.values()[place].tolist(), strict=True):
                expected = largest * round(value / largest * levels) / levels if largest else 0.0
                assert read == pytest.approx(expected, rel=1e-5, abs=1e-7), name
    assert int(found.levels.abs().max()) == levels


def test_stochastic_rounding_is_right_in_the_mean(rows: torch.Tensor) -> None:
    drawn = torch.stack([quantise(rows, PLACES, bits=3, rng=generator(seed, "test")).values() for seed in range(400)])
    steps = quantise(rows, PLACES, bits=3).steps
    assert (drawn.mean(0) - rows).abs().div(steps.clamp_min(1e-9)[:, None]).max() < 4 * 0.5 / 20
    assert ((drawn - rows).abs() <= steps[:, None] * 1.0001).all()


@pytest.mark.parametrize("bits", [2, 5, 16, 32])
def test_the_message_gives_back_what_went_in(bits: int) -> None:
    levels = torch.from_numpy(generator(0, "test").integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size=(7, 3)))
    steps = torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25, 0.0, 0.5])
    message = decode(encode(QuantisedRows.pack(1, "a", "b", "t", levels, steps, bits)))
    assert isinstance(message, QuantisedRows)
    back = message.unpack()
    assert torch.equal(back[0], levels)
    assert torch.equal(back[1], steps)
    assert message.counts == [2, 3, 1, 1]
    assert len(message.data) == -(-21 * bits // 8)


@pytest.mark.parametrize(
    "damage",
    [
        {"data": b"\0"},
        {"counts": [7]},
        {"counts": [2, 3, 1, 2]},
        {"counts": [-1, 6, 1, 1]},
        {"bits": 0},
        {"steps": b""},
    ],
)
def test_a_damaged_message_is_refused(damage: dict[str, object]) -> None:
    levels, steps = torch.zeros(7, 3, dtype=torch.int64), torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25, 0.0, 0.5])
    message = QuantisedRows.pack(1, "a", "b", "t", levels, steps, 4)
    changed = QuantisedRows(**({name: getattr(message, name) for name in message.__struct_fields__} | damage))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="message of a in round 1"):
        changed.unpack()


def halves(**settings: object) -> tuple[object, object, SharedTable]:
    options = GnnOptions(algorithm="cefgl", settings={"bits": 4, "rounding": "nearest"} | settings)
    shared = SharedTable("parameters", ["client/a"])
    holding = Holding(NAMES, len(NAMES), 3)
    codec = CODECS["quantised"]
    server = codec.server(shared, options, "rows")
    shared.names, shared.holdings = list(NAMES), {"client/a": torch.arange(5)}
    shared.num_uploaded, shared.weights = {"client/a": 5}, {"client/a": 3}
    return codec.client(holding, options, "rows"), server, shared


@pytest.mark.parametrize("settings", [{}, {"scale": "l2", "bits": 8}, {"rounding": "stochastic"}, {"bits": 32}])
def test_both_sides_read_the_same(settings: dict[str, object], rows: torch.Tensor) -> None:
    client, server, shared = halves(**settings)
    shared.rows = torch.zeros(5, 6)
    message = decode(encode(client.pack(1, "client/a", "parameters", contribution := client.encode(1, rows))))  # type: ignore[attr-defined]
    upload = server.accept(1, message)  # type: ignore[attr-defined]
    assert torch.equal(upload.rows, contribution.rows)
    assert upload.weight == 3
    assert isinstance(message, Rows if settings.get("bits") == 32 else QuantisedRows)
    server.publish(rows * 0.3, Delivered((5, 6)))  # type: ignore[attr-defined]
    sent = decode(encode(server.pack(1, "client/a", server.content(1, shared.rows, torch.arange(5)))))  # type: ignore[attr-defined]
    assert torch.equal(client.read(sent).values, shared.rows)  # type: ignore[attr-defined]
    assert client.shape(sent) == (5, 6)  # type: ignore[attr-defined]


def test_round_zero_has_whole_rows_and_tampering_fits_the_message(rows: torch.Tensor) -> None:
    client, server, shared = halves()
    shared.rows = rows
    assert isinstance(server.pack(0, "client/a", rows), Rows)  # type: ignore[attr-defined]
    server.publish(rows, Delivered((5, 6)))  # type: ignore[attr-defined]
    tampered = rows.flip(0) * 50
    read = client.read(server.pack(1, "client/a", tampered)).values  # type: ignore[attr-defined]
    assert torch.equal(read, quantise(tampered, PLACES, bits=4).values())


def test_an_upload_of_another_kind_is_refused(rows: torch.Tensor) -> None:
    _, server, shared = halves()
    shared.rows = rows
    with pytest.raises(RunError, match="uploaded rows of parameters"):
        server.accept(1, Rows.pack(1, "client/a", "server", "parameters", rows))  # type: ignore[attr-defined]
    other = Quantised(torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5))
    with pytest.raises(RunError, match="width 2"):
        server.accept(1, QuantisedRows.pack(1, "client/a", "server", "parameters", *other, 4))  # type: ignore[attr-defined]
