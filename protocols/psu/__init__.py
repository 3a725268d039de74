"""Private set union: the server learns the union U of the clients' identifiers, and nothing of who holds which.

    clients = {name: client_round(join(plan, name, sets[name]), keys[name], sources[name]) for name in plan.parties}
    union = run(server_round(plan, sources["server"]), clients).result
    union.identifiers, union.attempts

`server_round` and `client_round` are one party each; `fkgsec.protocols.core.rounds.run` drives them in one process.

Each client adds its identifiers to a randomised invertible Bloom lookup table (`fkgsec.protocols.psu.table`). Secure aggregation
(`fkgsec.protocols.secagg`) opens the sum of the tables and nothing else, from which the server peels U. When the table was too
small, the same cohort runs again with a fresh salt, fresh multipliers and four times the cells; when few cells were damaged,
once more with the same number of cells. Finally every client receives U and checks that it contains the client's own identifiers.

What each party sees, when all follow the protocol:

- The server: U, in plaintext. Not who holds an identifier, nor how many do, nor the size of any set: an upload's length depends
  on the announced number of cells alone. It knows who takes part. With a clock it sees how long a client takes to answer,
  which grows with the client's set: answer after a fixed time.
- The server with colluding clients: the union U' of the *other* clients' sets, hence which of the colluders' identifiers
  some honest client holds too. Among two or more honest clients it does not learn which one, nor how many. With a single
  honest client, U' is that client's whole set.
- A client, or several without the server: U and the number of cells of each attempt, which depends on U alone (below). It
  learns what others hold and it does not, but not whether another holds what it holds itself (a malicious client does, by
  leaving its own set out).
- Whoever reads the channel: U, in the final list. Encrypt it.
- Anybody who sees U: identifiers as they are. Names hashed or encoded before the union stay as guessable as they were.
- Successive unions can be subtracted: what appears when a client joins, or disappears when one leaves, is that client's.
  That is why all attempts need the whole cohort, and a client that leaves ends the union (`CohortChanged`). Only where nothing
  was opened may the others begin anew without it.

What is assumed: a server that follows the protocol and may collude with clients, fewer of them than the threshold of secure
aggregation. Against parties that deviate:

- A malicious client can add identifiers that nobody holds, or make every attempt fail. It cannot remove what another client
  holds without knowing that client's multiplier. The union ends early in these cases:
  - Wrong values in a few cells: the same cohort tries once more at the same size, then `DamagedTable`.
  - Random values in many cells: `DamagedTable` after one table. Every item adds the same to one cell of each segment, so that
    a sum of items has segments of equal sums, whatever its size. Random values do not.
  - As many items as overflow the table, or values that imitate them: `UnionTooLarge`. They look like a large union. A stated
    `cap` lets the table grow once, so that all tables together have at most nine times the cells of the first. Without a `cap`
    they cost as much as the largest union that `max_attempts` allows (115 MB for each client): state a cap.
- Sums do not tell which client did it. Another union may be started without a group of at least two clients. The server can
  read a table with a few wrong cells, and any damaged table once a malicious client tells it what it added. The
  server then subtracts the two unions and learns what the group alone holds, but not who in the group holds it. A group of one
  honest and one malicious client hides nothing of the honest one. Clients decide whether they agree to a retry: none runs by
  itself.
- A lying server: the salt and the number of cells are part of the session of secure aggregation, so clients that were told
  different ones open nothing together; whoever was told another one than the server's own is left out. A server that omits
  an identifier from U meets the objection of whoever holds it, and learns from the objection who does
  (`MissingIdentifiers`). One that adds to U, or sends clients different lists, is not noticed here: clients that place rows
  by U have to compare it.

The construction is our own, without a published proof. The simulation argument, for a server and colluders against the honest
clients H:

1. All that secure aggregation shows of H can be simulated from the sum of H's tables mod p, as far as its ciphers hold
   (Bonawitz et al. 2017, Theorem 6.3).
2. That sum is the sum over the items x of U' of R_x v(x), where v(x) depends on the item, the salt and m. R_x is a sum of
   independent uniform elements of F_p, at least one, so the R_x are independent and uniform whoever holds what: the sum has
   the distribution of `encode(parameters, U', randomness)`. `tests/protocols/psu/test_hiding.py` would notice an error here.
3. The multipliers are fresh and the cohort and its sets stay the same, so given the salts the attempts are independent. Whether
   another attempt follows is computed from the opened sums, and its number of cells is a public function of the attempts.
4. The announcements and the final list are functions of the server's coins and the union.

So U' and the colluders' own inputs simulate the whole view. No client decides anything by its own set: one that holds more than
the cap takes part like any other, and the peeling fails.

Differs: FedR cites the two-party union of Kolesnikov et al. 2019 (KRTW19). A server that ran that one with each client in turn
would learn who brought each identifier; this one is of all clients at once.
"""

from fkgsec.protocols import MAX_ATTEMPTS
from fkgsec.protocols.psu.client import Client, MissingIdentifiers, accept, contribute, join
from fkgsec.protocols.psu.messages import Announcement, UnionList, decode_message
from fkgsec.protocols.psu.plan import NothingToHideBehind, Plan
from fkgsec.protocols.psu.rounds import Union, client_round, server_round
from fkgsec.protocols.psu.server import CohortChanged, DamagedTable, UnionTooLarge, announce, open_union

__all__ = [
    "MAX_ATTEMPTS",
    "Announcement",
    "Client",
    "CohortChanged",
    "DamagedTable",
    "MissingIdentifiers",
    "NothingToHideBehind",
    "Plan",
    "Union",
    "UnionList",
    "UnionTooLarge",
    "accept",
    "announce",
    "client_round",
    "contribute",
    "decode_message",
    "join",
    "open_union",
    "server_round",
]
