"""Exchange between clients and server: codec, aggregation and transport, each replaceable alone.

    transport = Transport(channel, options, parties, ("entities",), run)   # plaintext; `fkgsec.defenses.make_transport` resists
    transport.align("entities", {party: Holding(names, num_uploaded)})     # round 0
    transport.initialise("entities", rows)
    received = transport.broadcast(0, "entities", parties)                 # by party: what it takes over
    transport.upload(1, "entities", {party: rows})                         # the table is aggregated

- A **codec** (`fkgsec.exchange.codec`) makes messages of a client's rows and rows of messages. It has a half for the client, with
  its own memory of what it sent and received, and one for the server.
- An **aggregation** (`fkgsec.exchange.aggregation`) makes a table of uploads. It `needs` their sum or each single one.
- A **transport** (`fkgsec.exchange.transport`) carries messages. It `delivers` single uploads, or their sum alone.

What an aggregation needs and a transport does not deliver is refused before anything is trained, by comparing the two.
"""

from fkgsec.exchange import affinity, low_rank, top_k
from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation
from fkgsec.exchange.codec import CODECS, Codec
from fkgsec.exchange.parts import (
    Delivered,
    Delivery,
    Holding,
    Observed,
    Received,
    Screened,
    SharedTable,
    Upload,
    Uploaded,
    all_cut,
    all_excluded,
)
from fkgsec.exchange.tensors import clusters, peers, quantised, truncated_svd
from fkgsec.exchange.transport import MakeTransport, Transport, check_fit

__all__ = [
    "AGGREGATIONS",
    "CODECS",
    "Aggregation",
    "Codec",
    "Delivered",
    "Delivery",
    "Holding",
    "MakeTransport",
    "Observed",
    "Received",
    "Screened",
    "SharedTable",
    "Transport",
    "Upload",
    "Uploaded",
    "affinity",
    "all_cut",
    "all_excluded",
    "check_fit",
    "clusters",
    "low_rank",
    "peers",
    "quantised",
    "top_k",
    "truncated_svd",
]
