"""What a consortium's folder says of itself: the commands to start it, and services for a container engine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import yaml

from fkgsec.experiments.deploy.flower.installed import VERSION


def files(parties: Sequence[str], server: str) -> dict[str, str]:
    """By name the files that stand at the top of the folder."""
    return {
        "README.md": _readme(parties, server),
        "compose.yaml": yaml.safe_dump(compose(parties, server), sort_keys=False),
        "Dockerfile": DOCKERFILE.format(flower=VERSION),
    }


def commands(parties: Sequence[str]) -> list[str]:
    """The commands of a consortium, each in a terminal of its own, in its folder."""
    quoted = [shlex.quote(f"parties/{name}") for name in parties]
    return [
        "fkgsec deploy superlink server",
        *(f"fkgsec deploy supernode {place}" for place in quoted),
        *(f"fkgsec deploy party {place}" for place in quoted),
        "fkgsec deploy server server",
    ]


def _readme(parties: Sequence[str], server: str) -> str:
    lines = "\n".join(f"    {line}" for line in commands(parties))
    secret = "\n".join(f"- parties/{name}: to {name}, over a channel that only {name} reads" for name in parties)
    return README.format(commands=lines, secret=secret, server=server)


def compose(parties: Sequence[str], server: str) -> dict[str, object]:
    """Services: the SuperLink and the server's process share a loopback interface; a party's process has no network, and its
    SuperNode neither its data nor its state."""
    port = server.rpartition(":")[2]
    base = {"build": ".", "restart": "unless-stopped"}
    services: dict[str, object] = {
        "superlink": {
            **base,
            "command": ["deploy", "superlink", "/server", "--listen", "0.0.0.0"],
            "volumes": ["./server:/server"],
            "ports": [f"{port}:{port}"],
        },
        "server": {
            "build": ".",
            "command": ["deploy", "server", "/server"],
            "volumes": ["./server:/server"],
            "network_mode": "service:superlink",
            "depends_on": ["superlink"],
        },
    }
    for place, name in enumerate(parties, 1):
        folder = f"./parties/{name}"
        services[f"party-{place}"] = {
            **base,
            "command": ["deploy", "party", "/party"],
            "volumes": [f"{folder}:/party"],
            "network_mode": "none",
        }
        services[f"supernode-{place}"] = {
            **base,
            "command": ["deploy", "supernode", "/party", "--server", f"superlink:{port}"],
            "volumes": [f"{folder}/node:/party/node", f"{folder}/door:/party/door:ro"],
            "depends_on": ["superlink"],
        }
    return {"services": services}


DOCKERFILE = """\
# docker build --build-arg FKGSEC=<what pip installs fkgsec from> .
FROM python:3.11-slim
ARG FKGSEC=fkgsec
RUN pip install --no-cache-dir "${{FKGSEC}}" && python -m venv /flower && /flower/bin/pip install --no-cache-dir flwr=={flower}
ENV FKGSEC_FLOWER=/flower/bin
ENTRYPOINT ["fkgsec"]
"""

README = """\
# A consortium

All on one machine, for a trial: `fkgsec deploy up .`

Apart, each in a terminal (or service) of its own:

{commands}

SuperNodes connect to {server}. Who gets what:

- server: stays with the server's operator
{secret}
- authority: nobody; keep it offline, it signs the server's next certificate

Whoever made this folder has drawn every secret in it. Where that must not be, each party draws its own with `fkgsec deploy key`.
`fkgsec deploy --help` tells the rest.
"""
