"""Files of a deployed consortium.

consortium/authority/{ca.crt,ca.key}           signs servers' certificates, needed for nothing else
consortium/server/                             the server's machine
    server.json                                addresses and ports
    agreement.json                             what is trained (`fkgsec.experiments.deploy.agreement`)
    tls/{ca.crt,server.crt,server.key}
    nodes/<party>.pub                          public key of each party's SuperNode
    app/                                       the bundle that Flower runs
    flower/                                    Flower's own files: its configuration, its database
    door/                                      address of the server's process, for the ServerApp
    run/                                       checkpoint, record, scores
consortium/parties/<party>/                    that party's machine
    party.json                                 its name, data and policy (`fkgsec.experiments.deploy.policy`)
    agreement.json                             the same as the server's
    data/                                      its triples, unless party.json names another folder
    state/                                     its secret, its tables
    node/{node.json,ca.crt,key,key.pub,flower} of its SuperNode, which needs only this folder and the next
    door/                                      address of the party's process, for the ClientApp
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fkgsec.errors import DataError, RunError
from fkgsec.experiments.deploy.certificates import public_pem
from fkgsec.experiments.runs.writing import read_bytes
from fkgsec.text import printable

CONNECTION = "consortium"
"""Name of the SuperLink in Flower's configuration."""
Kind = TypeVar("Kind", bound=msgspec.Struct)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's addresses: `listen`:`port` of the gate for SuperNodes, and the SuperLink's port on the loopback interface."""

    listen: str
    port: int
    superlink_port: int


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's address for a SuperNode, and the SuperNode's own port on the loopback interface."""

    server: str
    port: int


class ServerFolder:
    """The server's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings, self.spec, self.agreement = path / "server.json", path / "spec.json", path / "agreement.json"
        self.tls, self.nodes, self.app, self.flower = path / "tls", path / "nodes", path / "app", path / "flower"
        self.address, self.run = path / "door" / "server.address", path / "run"

    def read_settings(self) -> ServerSettings:
        """Read the server's settings. Raises `RunError` if this is no server's folder."""
        return read_settings(self.settings, ServerSettings, "server")

    def public_keys(self) -> dict[str, str]:
        """Read the public keys of the parties' SuperNodes, as Flower writes them. Raises `RunError`, `DataError`."""
        keys = {}
        for path in sorted(self.nodes.glob("*.pub")):
            try:
                keys[path.stem] = public_pem(read_bytes(path))
            except DataError as error:
                raise DataError(f"{path}: {error}") from error
        # Two parties with one key would be one SuperNode, which could answer for both.
        if len(set(keys.values())) < len(keys):
            raise DataError(f"{self.nodes}: two parties have the same key; each needs its own")
        if not keys:
            raise RunError(f"{self.path}: has no SuperNode's key in {self.nodes.name}; is it a server's folder?")
        return keys


class PartyFolder:
    """A party's files."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings, self.agreement = path, path / "party.json", path / "agreement.json"
        self.state, self.node, self.address = path / "state", path / "node", path / "door" / "party.address"
        self.key, self.public_key, self.authority = self.node / "key", self.node / "key.pub", self.node / "ca.crt"
        self.flower = self.node / "flower"

    def read_node(self) -> NodeSettings:
        """Read the SuperNode's settings. Raises `RunError` if this is no party's folder."""
        return read_settings(self.node / "node.json", NodeSettings, "party")


def read_settings(path: Path, kind: type[Kind], whose: str) -> Kind:
    """Read a settings file.

    Args:
        kind: class of the settings. whose: "server" or "party", for errors.

    Raises:
        RunError: it is missing or invalid.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RunError(f"{path.parent}: is no {whose}'s folder ({path.name}: {error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({printable(str(error), 300)})") from error


def encode_settings(settings: Any) -> bytes:
    """Encode settings for `read_settings`."""
    return msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
