"""Secure aggregation: the server learns the sum of the clients' vectors and who is in it, and nothing else about them.

    setting = Setting(b"session", 0, tuple(keys), safe_threshold(len(keys)), (Vector("rows", 8, Ring.UINT32),), public)
    clients = {party: client_round(setting, party, keys[party], sources[party], values[party]) for party in keys}
    total = run(server_round(setting), clients).result
    total.vectors["rows"], total.survivors, total.excluded

`server_round` and `client_round` are one party each; `fkgsec.protocols.core.rounds.run` drives them in one process.

The protocol is Figure 4 of Bonawitz et al. 2017 ("Practical Secure Aggregation") with all its rounds, the consistency check
included, optionally over the k-regular graph of Bell et al. 2020. Each client adds to its vector one mask per neighbour, which
that neighbour subtracts, and a mask of its own (the self mask). Through Shamir shares the others can open either the self mask of
a client whose upload arrived or the pair masks of one whose upload did not, never both.

What each party sees
    The server: public keys, commitments, sealed shares, uploads that look uniform to it, and who drops out and when. It also
    sees the seed of each survivor's self mask, the private mask key of each client that dropped out after sharing it, and the
    sum. An upload that arrives after its client was dropped stays under that client's self mask, which nobody opens.
    A client: its neighbors' public keys, shares and survival, and the number of survivors. Not the sum, unless told.
    The server with colluding clients: also the colluders' inputs, and so the sum over the honest survivors. With one honest
    survivor, that is its input. On a regular graph, this holds for any client whose surviving neighbors all collude.
    A reader of the channel: all that the server sees, the sum included. Encrypt the channel (TLS).

What it does not hide
    Contents of the sum: a row that only one client holds appears in it unchanged. The sum of existence vectors shows how
    many clients hold each row. Sums of successive rounds over different survivors can be subtracted.

What it assumes
    Pinned identities, no session and round used twice, good randomness. Confidentiality holds against a semi-honest server with
    fewer colluders than the threshold among the holders of each secret and, on the complete graph, against an active one as far
    as `Setting.threshold` says. A regular graph is for a semi-honest server only: an active one that withholds shares, or
    claims that clients left, can cut a group of clients out of the graph and open the group's sum. It also holds only while the
    honest survivors are connected. No client can check this, since none knows the colluders or more than its neighbors;
    `bounds` computes its probability for random colluders and dropouts. Uploads are not signed; the channel identifies the
    sender of an unsigned message. Forging one can drop a client or change the sum unnoticed, but opens no upload. A client can
    corrupt the sum with any input in the ring; no range is proven. Private keys are Python bytes, and are not wiped from
    memory.

What a malicious client can do
    Drop out: a message that is malformed, late, badly signed or of another session is left out, with the reason in
    `Sum.excluded`. So is a client whose sealed shares do not open, or that reports this of many others (one of each such pair
    is dropped before anything is masked). Wrong shares at the end are decoded around, as far as the others exceed the
    threshold. Nobody can tell whether the holder altered a wrong share or its owner dealt it so, since shares are not
    verifiable when dealt; the reason names both. By dealing enough wrong shares, properly sealed, a client can end a session:
    its secret then stays closed, and the receivers of these shares are named beside it. Evidence against the server ends the
    session: keys that their owner did not sign, two views of the survivors, a request for both kinds of share. A client takes
    each step once (`fkgsec.protocols.core.one_shot`).

Differs: a commitment to the self mask's seed is signed with the keys; shares are opened before the upload, and clients say which
do not open; clients sign the key list and the setting together with the survivors; the server states which shares it asks for.
Over a regular graph, a client gets the keys, the survival and the confirmations of its neighbors alone, O(k) in all, and compares
with each of them what both received; in Bell et al. neighbors confirm each other's survival one by one.
"""

from fkgsec.protocols.core.prg import Ring
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.secagg.messages import AnyMessage, Failure, Message, decode, encode
from fkgsec.protocols.secagg.rounds import client_round, server_round
from fkgsec.protocols.secagg.server import Sum
from fkgsec.protocols.secagg.setting import STAGES, Setting, Stage, Vector, safe_threshold

__all__ = [
    "SERVER",
    "STAGES",
    "AnyMessage",
    "Failure",
    "Message",
    "Ring",
    "Setting",
    "Stage",
    "Sum",
    "Vector",
    "client_round",
    "decode",
    "encode",
    "safe_threshold",
    "server_round",
]
