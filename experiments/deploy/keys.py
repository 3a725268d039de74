"""A party's keys, drawn on its machine; only their public halves leave it.

    public = draw_keys(PartyFolder(Path("parties/berlin")))                          # at the party
    agreement = admit(ServerFolder(Path("server")), public)                          # at the server
    agree(PartyFolder(Path("parties/berlin")), agreement)                            # at every party

A SuperNode's key may change at any time. The secret of a party's protocols may change only before the run, and changes the
agreement."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy.agreement import SECRET, Agreement, new_identity
from fkgsec.experiments.deploy.certificates import public_pem
from fkgsec.experiments.deploy.consortium import write_file, write_node_key
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder, encode_settings, read_settings
from fkgsec.experiments.deploy.party import STATE
from fkgsec.experiments.deploy.policy import PartySettings
from fkgsec.federation.loop import CHECKPOINT

PUBLIC = "public.json"


class PublicKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party's name, the run, its SuperNode's public key in OpenSSH's format, and its public signing key."""

    party: str
    run: str
    node: str
    identity: str


def draw_keys(folder: PartyFolder, *, node_only: bool = False) -> PublicKeys:
    """Draw a party's keys anew, and write their public halves to `public.json`.

    Args:
        node_only: do not change its secret.

    Raises:
        RunError: no party's folder; a run has begun with its secret.
    """
    settings = read_settings(folder.settings, PartySettings, "party")
    run = Agreement.read(folder.agreement).run
    if not node_only:
        # The run's sessions are bound to the old key; with a new one the party could not continue.
        if (folder.state / STATE).exists():
            raise RunError(f"{folder.path}: its run has begun with its secret; use --node for its SuperNode's key")
        # `new_identity` draws a secret only if there is none.
        (folder.state / SECRET).unlink(missing_ok=True)
    write_node_key(folder, settings.name)
    node = folder.public_key.read_text().strip()
    public = PublicKeys(party=settings.name, run=run, node=node, identity=new_identity(folder.state, run))
    write_file(folder.path / PUBLIC, encode_settings(public))
    return public


def admit(folder: ServerFolder, public: PublicKeys) -> Agreement:
    """Admit a party's public keys at the server.

    Args:
        folder: the server's. public: from the party.

    Returns:
        The agreement, which changes with the party's key.

    Raises:
        SpecError: it is no party of this run. RunError: the run has begun with another secret of the party.
    """
    agreement = Agreement.read(folder.agreement)
    if public.party not in agreement.parties:
        raise SpecError(f"party: {public.party!r} is not among the parties {', '.join(agreement.parties)}")
    # Keys are drawn for one run; keys of an earlier run must not enter.
    if public.run != agreement.run:
        raise SpecError(f"run: the keys of {public.party} are for {public.run}; this is {agreement.run}")
    public_pem(public.node.encode())
    if agreement.identities.get(public.party) != public.identity:
        # A key that changes during the run would end every session.
        if (folder.run / CHECKPOINT).exists():
            raise RunError(f"{folder.path}: the run has begun with another secret of {public.party}")
        identities = agreement.identities | {public.party: public.identity}
        agreement = msgspec.structs.replace(agreement, identities=identities)
        agreement.write(folder.agreement)
    write_file(folder.nodes / f"{public.party}.pub", f"{public.node}\n".encode())
    return agreement


def agree(folder: PartyFolder, agreement: Agreement, accept: Collection[str] = ()) -> None:
    """Accept an agreement at a party, and pin it in the party's policy.

    Args:
        folder: the party's.
        agreement: from the server.
        accept: names of refused terms whose new value becomes the bound.

    Raises:
        SpecError: a term that the policy refuses and `accept` does not name; a name in `accept` that is not refused; a wrong key
            of this party.
    """
    settings = read_settings(folder.settings, PartySettings, "party")
    # A server could put its own key in the place of this party's, and speak for it.
    if agreement.identities.get(settings.name) != new_identity(folder.state, agreement.run):
        raise SpecError(
            f"identities: the agreement has another key of {settings.name} than {folder.state}; admit its key"
        )
    refused = settings.policy.refused(agreement)
    accepted = {*accept, f"identities.{settings.name}"}
    # A mistyped term must not look accepted.
    if unknown := sorted(set(accept) - refused.keys()):
        names = ", ".join(refused) or "none"
        raise SpecError(f"accept: {', '.join(unknown)}: the policy refuses no such term; it refuses {names}")
    if left := {name: why for name, why in refused.items() if name not in accepted}:
        reasons = "; ".join(f"{name}: {why}" for name, why in left.items())
        raise SpecError(f"policy: {reasons}. To accept a term, give --accept TERM")
    agreement.write(folder.agreement)
    # Pin the fingerprint: from now on the party accepts this agreement alone.
    policy = settings.policy.accepting(agreement, accepted & refused.keys())
    write_file(folder.settings, encode_settings(msgspec.structs.replace(settings, policy=policy)))
