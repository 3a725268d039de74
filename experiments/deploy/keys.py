"""Keys of a party's own: drawn where the party is, and made known by their public halves.

    public = draw_keys(PartyFolder(Path("parties/berlin")))                          # at the party
    agreement = admit(ServerFolder(Path("server")), public)                          # at the server
    agree(PartyFolder(Path("parties/berlin")), agreement)                            # at every party

A SuperNode's key may change at any time. The secret that a party's protocols build on is of one run: it changes before the run
begins, and with it the agreement."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy.agreement import SECRET, Agreement, new_identity
from fkgsec.experiments.deploy.certificates import public_pem
from fkgsec.experiments.deploy.consortium import write_file, write_node_key
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder, encode_settings, read_settings
from fkgsec.experiments.deploy.party import STATE
from fkgsec.experiments.deploy.policy import PartySettings, changed_terms
from fkgsec.federation.loop import CHECKPOINT

PUBLIC = "public.json"


class PublicKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a party makes known: its name, the run, its SuperNode's key in OpenSSH's format, and the key that it signs with."""

    party: str
    run: str
    node: str
    identity: str


def draw_keys(folder: PartyFolder, *, node_only: bool = False) -> PublicKeys:
    """Draw a party's keys anew, and write their public halves to `public.json`.

    Args:
        node_only: leave its secret as it is.

    Raises:
        RunError: no party's folder; a run has begun with its secret.
    """
    settings = read_settings(folder.settings, PartySettings, "party")
    run = Agreement.read(folder.agreement).run
    if not node_only:
        if (folder.state / STATE).exists():
            raise RunError(
                f"{folder.path}: its run has begun, and its secret stays until the end; give --node for its SuperNode"
            )
        (folder.state / SECRET).unlink(missing_ok=True)
    write_node_key(folder, settings.name)
    node = folder.public_key.read_text().strip()
    public = PublicKeys(party=settings.name, run=run, node=node, identity=new_identity(folder.state, run))
    write_file(folder.path / PUBLIC, encode_settings(public))
    return public


def admit(folder: ServerFolder, public: PublicKeys) -> Agreement:
    """Take a party's public keys in; returns the agreement, which is another one where the party's secret is.

    Raises:
        SpecError: it is no party of this run. RunError: the run has begun with another secret of the party.
    """
    agreement = Agreement.read(folder.agreement)
    if public.party not in agreement.parties:
        raise SpecError(f"party: {public.party!r} is not among the parties {', '.join(agreement.parties)}")
    if public.run != agreement.run:
        raise SpecError(f"run: the keys of {public.party} are for {public.run}; this is {agreement.run}")
    public_pem(public.node.encode())
    if agreement.identities.get(public.party) != public.identity:
        if (folder.run / CHECKPOINT).exists():
            raise RunError(f"{folder.path}: the run has begun, and the secret of {public.party} stays until the end")
        identities = agreement.identities | {public.party: public.identity}
        agreement = msgspec.structs.replace(agreement, identities=identities)
        agreement.write(folder.agreement)
    write_file(folder.nodes / f"{public.party}.pub", f"{public.node}\n".encode())
    return agreement


def changed(folder: PartyFolder, agreement: Agreement) -> dict[str, str]:
    """By term, how an agreement differs from the one that the party accepted last. Raises `RunError`, `SpecError`."""
    return changed_terms(Agreement.read(folder.agreement), agreement)


def agree(folder: PartyFolder, agreement: Agreement, accept: Collection[str] = ()) -> None:
    """Accept an agreement at a party, and pin it in the party's policy.

    The policy keeps its bounds, except for the terms in `accept`, which it then accepts at the agreement's value. The party's own
    key needs no acceptance.

    Raises:
        SpecError: a term that the policy refuses and `accept` does not name; a name in `accept` that is not refused; another key
            of this party than it has.
    """
    settings = read_settings(folder.settings, PartySettings, "party")
    if agreement.identities.get(settings.name) != new_identity(folder.state, agreement.run):
        raise SpecError(
            f"identities: the agreement has another key of {settings.name} than {folder.state}; admit this one's"
        )
    refused = settings.policy.refused(agreement)
    accepted = {*accept, f"identities.{settings.name}"}
    if unknown := sorted(set(accept) - refused.keys()):
        raise SpecError(f"accept: {', '.join(unknown)}: the policy refuses no such term; it refuses {_names(refused)}")
    if left := {name: why for name, why in refused.items() if name not in accepted}:
        told = "; ".join(f"{name}: {why}" for name, why in left.items())
        raise SpecError(f"policy: {told}. To accept a term, give --accept TERM")
    agreement.write(folder.agreement)
    policy = settings.policy.accepting(agreement, accepted & refused.keys())
    write_file(folder.settings, encode_settings(msgspec.structs.replace(settings, policy=policy)))


def _names(terms: Collection[str]) -> str:
    return ", ".join(terms) or "none"
