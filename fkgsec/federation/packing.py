"""Named tensors: nested mappings under dotted names, as checkpoints, run folders and unlearned runs store them.

    pack({"now": {"entities": rows}, "best": {}})     # {"now.entities": rows}
    below("now.", tensors)                            # {"entities": rows}

Parties are stored by index, since their names may contain any character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

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


def _filled(tensors: Mapping[str, Tensor], name: str) -> FilledRows:
    """Return one tensor by its filled rows, without building the whole tensor if possible."""
    leaf = tensors.leaf(name) if isinstance(tensors, LazyTensors) else tensors[name]
    return leaf if isinstance(leaf, FilledRows) else FilledRows.of(leaf)


def by_place(tensors: Mapping[Table, Mapping[str, Tensor]], parties: Sequence[str]) -> Tree:
    """Replace party names by indices.

    Args:
        tensors: by table and party.
        parties: all party names.
    """
    return {
        table: {
            str(parties.index(party)): rows.leaf(party) if isinstance(rows, LazyTensors) else rows[party]
            for party in rows
        }
        for table, rows in tensors.items()
    }


def by_party(tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> ByParty:
    """Undo `by_place` for its packed tensors.

    Args:
        tensors: packed, by name.
        tables: shared tables.
        parties: all party names.
    """
    return {
        table: {
            party: tensors[f"{table}.{place}"] for place, party in enumerate(parties) if f"{table}.{place}" in tensors
        }
        for table in tables
    }


def filled_by_party(tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> Inputs:
    """Undo `by_place` for its packed tensors, with filled rows in memory instead of whole tables.

    Args:
        tensors: packed, by name.
        tables: shared tables.
        parties: all party names.
    """
    return {
        table: LazyTensors(
            {
                party: _filled(tensors, f"{table}.{place}")
                for place, party in enumerate(parties)
                if f"{table}.{place}" in tensors
            }
        )
        for table in tables
    }


def seen_by_place(observed: Mapping[Table, Mapping[str, Observed]], parties: Sequence[str]) -> Tree:
    """Return the server's assembled rows by table and party index.

    Args:
        observed: by table and party.
        parties: all party names.
    """
    return {
        table: {str(parties.index(party)): part._asdict() for party, part in seen.items()}
        for table, seen in observed.items()
    }


def seen_by_party(tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> Seen:
    """Undo `seen_by_place` for its packed tensors.

    Args:
        tensors: packed, by name.
        tables: shared tables.
        parties: all party names.
    """
    return {
        table: {
            party: Observed(*(tensors[f"{table}.{place}.{name}"] for name in Observed._fields))
            for place, party in enumerate(parties)
            if f"{table}.{place}.rows" in tensors
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
