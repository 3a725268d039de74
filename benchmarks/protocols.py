"""Protocols in `make bench`: masks compared to their keystream, unions, noise, defenses.

The lower bound ("floor") of masking is the bare keystream: as many bytes of the same cipher, written into one buffer
that stays in the caches. Each element needs one keystream word per mask; the addition overlaps with the cipher.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.rounds import bench_graph, best_of, print_table, time_round
from fkgsec.defenses.transport import make_transport
from fkgsec.federation.loop import Federation
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols import CipherName, psu
from fkgsec.protocols.core.masking import mask_vector
from fkgsec.protocols.core.prg import Ring, keystream, seeded
from fkgsec.protocols.core.rounds import SERVER, run
from fkgsec.protocols.noise.sampling import DiscreteGaussian, Skellam, gaussian
from fkgsec.protocols.secagg import safe_threshold

ELEMENTS, PEERS = 10**7, 10
BUFFER_BYTES = 2**18
MASKS: tuple[tuple[Ring, CipherName], ...] = (
    (Ring.UINT32, "aes-256-ctr"),
    (Ring.UINT32, "chacha20"),
    (Ring.UINT64, "aes-256-ctr"),
    (Ring.MERSENNE61, "aes-256-ctr"),
)


DEFENSES = ("", "secagg", "psu,secagg", "psu,secagg,suppress:t=2", "psu,secagg,dp:unit=row,clip=0.1,epsilon=10")


def print_masking(repeats: int) -> None:
    """Print the seconds of masking 1e7 elements for 10 peers and oneself, and of the bare keystreams.

    Args:
        repeats: runs, of which the fastest counts.
    """
    rows = []
    for ring, cipher in MASKS:
        values = ring.zeros(ELEMENTS)
        # One seed per peer, and one of the client's own mask.
        seeds = [bytes([number]) * 32 for number in range(PEERS + 1)]
        plus, minus = seeds[: PEERS // 2 + 1], seeds[PEERS // 2 + 1 :]

        def bare(cipher: CipherName = cipher, num_bytes: int = values.nbytes, seeds: list[bytes] = seeds) -> None:
            """Generate the keystreams only."""
            zeros, buffer = bytes(BUFFER_BYTES), bytearray(BUFFER_BYTES)
            for seed in seeds:
                stream = keystream(seed, cipher)
                for _ in range(-(-num_bytes // BUFFER_BYTES)):
                    # Into the same buffer: the keystream never leaves the caches.
                    stream.update_into(zeros, buffer)

        floor = best_of(repeats, bare).wall
        masks = functools.partial(mask_vector, values, plus, minus, ring, cipher, in_place=True)
        seconds = best_of(repeats, masks).wall
        rows.append((ring.value, cipher, f"{seconds:.3f}", f"{floor:.3f}", f"{seconds / floor:.2f}"))
    title = f"Masking {ELEMENTS:,} elements for {PEERS} peers and oneself, one thread"
    print_table(title, ("ring", "cipher", "s", "floor s", "ratio"), rows)


def time_union(num_identifiers: int, num_clients: int) -> tuple[float, dict[str, Counter[str]], psu.Union]:
    """Measure a union of names that three clients hold each.

    Args:
        num_identifiers: number of distinct names.
        num_clients: number of clients.

    Returns:
        Seconds of all parties, bytes by direction and client, and the union.
    """
    names = tuple(f"client-{place}" for place in range(num_clients))
    sets = {
        # Each name is held by three consecutive clients.
        name: [f"/m/{i:08d}" for i in range(num_identifiers) if (place - i) % num_clients < 3]
        for place, name in enumerate(names)
    }
    # Seeded, so that every run does the same work.
    randomness = {name: seeded(b"measure " + name.encode()) for name in (*names, SERVER)}
    identities = {name: Ed25519PrivateKey.from_private_bytes(randomness[name](32)) for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    sent: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}

    def deliver(stage: str, sender: str, receiver: str, frame: bytes) -> tuple[bytes]:
        """Count a message and deliver it."""
        sent["down" if sender == SERVER else "up"][receiver if sender == SERVER else sender] += len(frame)
        return (frame,)

    began = time.perf_counter()
    # Parties run one after the other, so the time is the sum over all of them.
    plan = psu.Plan(b"measure", names, safe_threshold(num_clients), public, num_identifiers)
    clients = {
        name: psu.client_round(psu.join(plan, name, sets[name]), identities[name], randomness[name]) for name in names
    }
    union = run(psu.server_round(plan, randomness[SERVER]), clients, deliver).result
    return time.perf_counter() - began, sent, union


def print_unions() -> None:
    """Print the seconds of whole unions, all parties one after the other, and the bytes of the busiest client."""
    rows = []
    for num_identifiers, num_clients in ((237, 3), (15_000, 10), (100_000, 20)):
        seconds, sent, union = time_union(num_identifiers, num_clients)
        exact = "yes" if len(union.identifiers) == num_identifiers else "NO"
        up, down = (f"{max(sent[way].values()) / 1e6:.2f}" for way in ("up", "down"))
        rows.append((f"{num_identifiers:,}", str(num_clients), f"{seconds:.2f}", up, down, exact))
    heads = ("identifiers", "clients", "s", "MB up a client", "MB down", "exact")
    print_table("Private set union, each identifier held by 3 clients", heads, rows)


def print_noise(repeats: int) -> None:
    """Print the nanoseconds per noise sample.

    Args:
        repeats: runs, of which the fastest counts.
    """
    samplers = {
        "Gaussian (float64)": lambda: gaussian(10**6, 1.0, seeded(b"bench")),
        "discrete Gaussian, sigma 4": lambda: DiscreteGaussian(4.0).sample(10**6, seeded(b"bench")),
        "discrete Gaussian, sigma 2^22": lambda: DiscreteGaussian(2.0**22).sample(10**6, seeded(b"bench")),
        "Skellam, variance 2^44": lambda: Skellam(2.0**44).sample(10**6, seeded(b"bench")),
    }
    rows = [(name, f"{best_of(repeats, sample).wall * 1e3:.1f}") for name, sample in samplers.items()]
    print_table("Noise, one thread", ("distribution", "ns a sample"), rows)


def print_defenses(repeats: int) -> None:
    """Print the seconds of one round of FedE under each defense.

    Args:
        repeats: runs, of which the fastest counts.
    """
    graph = bench_graph()
    seconds = {
        defense or "none": time_round(
            Federation(graph, KgeOptions(defense=defense, device="cpu"), make_transport), repeats
        ).wall
        for defense in DEFENSES
    }
    rows = [(name, f"{value:.2f}", f"{value - seconds['none']:+.2f} s") for name, value in seconds.items()]
    title = f"One round of FedE, TransE, on {graph.name}, {len(graph.clients)} clients"
    print_table(title, ("defense", "s/round", "more"), rows)


def main(repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3) -> None:
    """Print the tables of protocols and defenses."""
    print_masking(repeats)
    print_unions()
    print_noise(repeats)
    print_defenses(repeats)


if __name__ == "__main__":
    typer.run(main)
