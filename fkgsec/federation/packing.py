"""Named tensors: nested mappings under dotted names, as checkpoints, run folders and unlearned runs store them.

    pack({"now": {"entities": rows}, "best": {}})     # {"now.entities": rows}
    below("now.", tensors)                            # {"entities": rows}

Parties are stored by index, since their names may contain any character.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange import Observed
from fkgsec.exchange.parts import FilledRows, LazyTensors, Leaf
from fkgsec.exchange.parts import below as below
from fkgsec.federation.disk.frames import Frames
from fkgsec.federation.messages import SERVER
from fkgsec.federation.recipes import Table

Tree: TypeAlias = "Mapping[str, Leaf | Tree]"
ByParty: TypeAlias = "dict[Table, dict[str, Tensor]]"
Inputs: TypeAlias = "dict[Table, Mapping[str, Tensor]]"
Seen: TypeAlias = "dict[Table, dict[str, Observed]]"
Value = TypeVar("Value")


def leaves(tree: Tree) -> dict[str, Leaf]:
    """Flatten nested mappings to dotted names.

    Args:
        tree: tensors and mappings by name.
    """
    packed: dict[str, Leaf] = {}
    for name, value in tree.items():
        # Leaves are tensors, or filled rows that stand for one.
        if isinstance(value, Tensor | FilledRows):
            packed[name] = value
        else:
            packed |= {f"{name}.{inner}": leaf for inner, leaf in leaves(value).items()}
    return packed


def check_like(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> None:
    """Raise `RunError` unless tensors have the names, types and shapes of others, and all their values are finite."""
    if tensors.keys() != like.keys():
        wrong = sorted(tensors.keys() ^ like.keys())
        raise RunError(f"{what}: {wrong[0]} is {'missing' if wrong[0] in like else 'unknown'}")
    for name, tensor in tensors.items():
        expected = like[name]
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            raise RunError(
                f"{what}.{name}: {tensor.dtype} of shape {list(tensor.shape)}; expected {expected.dtype} of shape "
                f"{list(expected.shape)}"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise RunError(f"{what}.{name}: has a value that is not finite")


def whole(leaf: Leaf) -> Tensor:
    """Return a leaf as a tensor.

    Args:
        leaf: a tensor, or filled rows of one.
    """
    return leaf if isinstance(leaf, Tensor) else leaf.whole()


def pack(tree: Tree) -> dict[str, Tensor]:
    """Flatten nested mappings to dotted names, with whole tensors.

    Args:
        tree: tensors and mappings by name.
    """
    return {name: whole(leaf) for name, leaf in leaves(tree).items()}


def view_below(prefix: str, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Select tensors by prefix and remove it, like `below`, but read each at its first access.

    Args:
        prefix: with its trailing dot.
    """
    source = tensors.parts if isinstance(tensors, LazyTensors) else tensors
    return LazyTensors({name.removeprefix(prefix): source[name] for name in source if name.startswith(prefix)})


def filled(tensors: Mapping[str, Tensor], name: str) -> FilledRows:
    """Return one tensor by its filled rows, without building the whole tensor if possible.

    Args:
        tensors: by name.
    """
    leaf = tensors.leaf(name) if isinstance(tensors, LazyTensors) else tensors[name]
    return leaf if isinstance(leaf, FilledRows) else FilledRows.of(leaf)


def by_place(values: Mapping[Table, Mapping[str, Tensor | Observed]], parties: Sequence[str]) -> Tree:
    """Replace party names by indices.

    Args:
        values: by table and party.
        parties: all party names.
    """

    def leaf(of_table: Mapping[str, Tensor | Observed], party: str) -> Leaf | Tree:
        if isinstance(of_table, LazyTensors):
            return of_table.leaf(party)
        value = of_table[party]
        return value._asdict() if isinstance(value, Observed) else value

    return {
        table: {str(parties.index(party)): leaf(of_table, party) for party in of_table}
        for table, of_table in values.items()
    }


def by_party(
    names: Container[str], tables: Sequence[Table], parties: Sequence[str], read: Callable[[str], Value]
) -> dict[Table, dict[str, Value]]:
    """Undo `by_place` for its packed tensors.

    Args:
        names: of the packed tensors.
        tables: shared tables.
        parties: all party names.
        read: returns the value of a name, or of a prefix of names.
    """
    return {
        table: {
            party: read(name)
            for place, party in enumerate(parties)
            if (name := f"{table}.{place}") in names or f"{name}.rows" in names
        }
        for table in tables
    }


def frames_by_round(frames: Mapping[int, Sequence[bytes]]) -> Tree:
    """Convert serialized messages or notes to tensors of bytes, by round and order.

    Args:
        frames: by round.
    """
    return {
        str(number): {
            f"{place:06d}": torch.from_numpy(np.frombuffer(frame, dtype=np.uint8).copy())
            for place, frame in enumerate(messages)
        }
        for number, messages in frames.items()
    }


def frames_of(tensors: Mapping[str, Tensor]) -> dict[int, Frames]:
    """Undo `frames_by_round` for its packed tensors.

    Args:
        tensors: packed, by name.
    """
    frames: dict[int, Frames] = {}
    # Numeric order: as text, round 10 would come before round 9.
    for number, place in sorted((name.split(".") for name in tensors), key=lambda name: (int(name[0]), int(name[1]))):
        frame = tensors[f"{number}.{place}"].numpy().tobytes()
        # Broadcasts are shared between receivers again.
        frames.setdefault(int(number), Frames()).append(frame, shared=_is_of_server(frame))
    return frames


class _Sent(msgspec.Struct):
    """Part of a message that this module reads."""

    sender: str


_sent_decoder = msgspec.msgpack.Decoder(_Sent)


def _is_of_server(frame: bytes) -> bool:
    """Return whether the server sent the message, so that others may have equal content; False for other bytes."""
    try:
        return _sent_decoder.decode(frame).sender == SERVER
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
