"""The part of `make bench` for protocols: masks beside their keystream floor, whole sessions, unions, noise.

The floor of masking is the bare keystream: as many bytes of the same cipher, written into one buffer that stays in the
caches. Each element needs one keystream word for each mask, and adding it hides behind making it.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from benchmarks.rounds import bench_graph, best_of, time_round
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import Federation
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols import CipherName, psu, secagg
from fkgsec.protocols.core.masking import mask_vector
from fkgsec.protocols.core.prg import Ring, keystream, seeded
from fkgsec.protocols.noise import DiscreteGaussian, Skellam, gaussian
from fkgsec.protocols.secagg import Setting, Stage, Vector

ELEMENTS, PEERS = 10**7, 10
BUFFER_BYTES = 2**18
MASKS: tuple[tuple[Ring, CipherName], ...] = (
    (Ring.UINT32, "aes-256-ctr"),
    (Ring.UINT32, "chacha20"),
    (Ring.UINT64, "aes-256-ctr"),
    (Ring.MERSENNE61, "aes-256-ctr"),
)


def masking_table(repeats: int) -> Table:
    """Seconds of masking 1e7 elements for 10 peers and oneself, and of the bare keystreams."""
    table = _table(
        f"Masking {ELEMENTS:,} elements for {PEERS} peers and oneself, one thread",
        "ring", "cipher", "s", "floor s", "ratio",
    )  # fmt: skip
    for ring, cipher in MASKS:
        values = ring.zeros(ELEMENTS)
        seeds = [bytes([number]) * 32 for number in range(PEERS + 1)]
        plus, minus = seeds[: PEERS // 2 + 1], seeds[PEERS // 2 + 1 :]

        def bare(cipher: CipherName = cipher, num_bytes: int = values.nbytes, seeds: list[bytes] = seeds) -> None:
            zeros, buffer = bytes(BUFFER_BYTES), bytearray(BUFFER_BYTES)
            for seed in seeds:
                stream = keystream(seed, cipher)
                for _ in range(-(-num_bytes // BUFFER_BYTES)):
                    stream.update_into(zeros, buffer)

        def masks(
            values: np.ndarray = values, plus: list[bytes] = plus, minus: list[bytes] = minus,
            ring: Ring = ring, cipher: CipherName = cipher,
        ) -> None:  # fmt: skip
            mask_vector(values, plus, minus, ring, cipher, in_place=True)

        floor, seconds = best_of(repeats, bare), best_of(repeats, masks)
        table.add_row(ring.value, cipher, f"{seconds:.3f}", f"{floor:.3f}", f"{seconds / floor:.2f}")
    return table


def session_table() -> Table:
    """Seconds of whole sessions of secure aggregation, all parties one after the other, and bytes of a client."""
    table = _table(
        "Secure aggregation of 1,000,000 elements", "clients", "neighbours", "drop out", "s", "MB up a client"
    )
    for num_clients, neighbours, num_drops in ((3, None, 0), (10, None, 0), (20, None, 6), (50, None, 0), (50, 12, 0)):
        names = tuple(f"client {number}" for number in range(num_clients))
        keys = {
            name: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number, name in enumerate(names, 1)
        }
        setting = Setting(
            session=bytes(16),
            round=1,
            parties=names,
            threshold=secagg.safe_threshold(num_clients if neighbours is None else neighbours + 1),
            vectors=(Vector("values", 10**6, Ring.UINT32),),
            identities={name: key.public_key().public_bytes_raw() for name, key in keys.items()},
            neighbours=neighbours,
        )
        inputs = {name: {"values": np.ones(10**6, dtype=np.uint32)} for name in names}
        up = dict.fromkeys(names, 0)

        def deliver(sender: str, receiver: str, message: secagg.Message, up: dict[str, int] = up) -> secagg.Message:
            frame = secagg.encode(message)
            if sender in up:
                up[sender] += len(frame)
            return secagg.decode(frame)

        start = time.perf_counter()
        total = secagg.aggregate(
            setting,
            inputs,
            keys,
            randomness={name: seeded(name.encode()) for name in names},
            deliver=deliver,
            dropouts=dict.fromkeys(names[:num_drops], Stage.MASK),
        )
        seconds = time.perf_counter() - start
        assert total.vectors["values"][0] == num_clients - num_drops
        table.add_row(
            str(num_clients),
            str(neighbours or "all"),
            str(num_drops),
            f"{seconds:.2f}",
            f"{max(up.values()) / 1e6:.2f}",
        )
    return table


def union_table() -> Table:
    """Seconds of whole unions, all parties one after the other, and bytes of the busiest client."""
    table = _table(
        "Private set union, each identifier held by 3 clients",
        "identifiers", "clients", "s", "MB up a client", "MB down", "exact",
    )  # fmt: skip
    for num_identifiers, num_clients in ((237, 3), (15_000, 10), (100_000, 20)):
        cost = psu.measure(num_identifiers, num_clients)
        exact = len(cost.union.identifiers) == num_identifiers
        table.add_row(
            f"{num_identifiers:,}", str(num_clients), f"{cost.seconds:.2f}", f"{cost.upload_bytes / 1e6:.2f}",
            f"{cost.download_bytes / 1e6:.2f}", "yes" if exact else "NO",
        )  # fmt: skip
    return table


def noise_table(repeats: int) -> Table:
    """Nanoseconds for each sample of noise."""
    table = _table("Noise, one thread", "distribution", "ns a sample")
    samplers = {
        "Gaussian (float64)": lambda: gaussian(10**6, 1.0, seeded(b"bench")),
        "discrete Gaussian, sigma 4": lambda: DiscreteGaussian(4.0).sample(10**6, seeded(b"bench")),
        "discrete Gaussian, sigma 2^22": lambda: DiscreteGaussian(2.0**22).sample(10**6, seeded(b"bench")),
        "Skellam, variance 2^44": lambda: Skellam(2.0**44).sample(10**6, seeded(b"bench")),
    }
    for name, sample in samplers.items():
        table.add_row(name, f"{best_of(repeats, sample) * 1e3:.1f}")
    return table


def defense_table(repeats: int) -> Table:
    """Seconds of one round of FedE under each defense."""
    graph = bench_graph()
    table = _table(
        f"One round of FedE, TransE, on {graph.name}, {len(graph.clients)} clients", "defense", "s/round", "more"
    )
    clear = 0.0
    for defense in (
        "",
        "secagg",
        "psu,secagg",
        "psu,secagg,suppress:t=2",
        "psu,secagg,dp:unit=row,clip=0.1,epsilon=10",
    ):
        options = KgeOptions(defense=defense, device="cpu")
        seconds = time_round(Federation(graph, options, make_transport), repeats)
        clear = clear or seconds
        table.add_row(defense or "none", f"{seconds:.2f}", f"{seconds - clear:+.2f} s")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def main(repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3) -> None:
    """Print the tables of protocols and defenses."""
    console = Console(width=None if Console().is_terminal else 120)
    for table in (masking_table(repeats), session_table(), union_table(), noise_table(repeats), defense_table(repeats)):
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
