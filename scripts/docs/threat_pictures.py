"""Pictures of the threat models, drawn from `THREAT_MODELS`: which messages the adversary sees, and what it knows in advance.

Path("collusion.svg").write_text(draw(THREAT_MODELS["collusion"]))
"""

from __future__ import annotations

from html import escape

from fkgsec.attacks.options import ThreatModel

WIDTH, HEIGHT = 800, 300
ADVERSARY, HONEST, LINE, TEXT = "#b2182b", "#2166ac", "#555555", "#1a1a1a"  # distinguishable with color blindness
STYLE = "font-family:system-ui,sans-serif;font-size:13px"


def draw(model: ThreatModel) -> str:
    """Draw the federation with its adversary in red: the server above, and two victims and a colluder or third victim
    below.

    Args:
        model: the threat model.

    Returns:
        SVG.
    """
    # An adversary with the final models only has not seen the rounds.
    server = model.server and not model.models
    parts = [
        _box(280, 20, "server", "adversary" if server else "", ADVERSARY if server else HONEST),
        _box(60, 190, "client 1", "adversary" if model.colluder else "victim", ADVERSARY if model.colluder else HONEST),
        _box(280, 190, "client 2", "victim", HONEST),
        _box(500, 190, "client 3", "victim", HONEST),
    ]
    seen = "messages: uploads, or their sums" if server else "broadcasts" if model.colluder else ""
    for place in (140, 360, 580):
        # A colluding client sees its own messages, the server those of all clients.
        watched = server or (model.colluder and place == 140)
        parts += _arrows(place, ADVERSARY if watched else LINE)
    words = f"sees {seen}" if seen else "saw nothing of the rounds"
    parts.append(f'<text x="460" y="50" fill="{ADVERSARY if seen else TEXT}">{escape(words)}</text>')
    parts += [
        f'<text x="460" y="{70 + 18 * place}" fill="{ADVERSARY}">{escape(line)}</text>'
        for place, line in enumerate(knowledge(model))
    ]
    if model.models:
        parts.append(
            f'<rect x="48" y="178" width="624" height="94" rx="10" fill="none" stroke="{ADVERSARY}" stroke-dasharray="6 4"/>'
            f'<text x="48" y="292" fill="{ADVERSARY}">anyone who holds the final models of clients</text>'
        )
    title = f"{model.name}: {model.about}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" style="{STYLE}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def knowledge(model: ThreatModel) -> list[str]:
    """Return the adversary's prior knowledge, one line each.

    Args:
        model: the threat model.
    """
    parts = (
        (model.leaks, "knows pairs that client 1 hands over"),
        (model.colluder and not model.server, "knows client 1's data and model"),
        (model.identifiers, "uses the names that alignment gave it"),
        (model.victim_entities, "has the victims' entity rows, unnamed"),
        (model.auxiliary, "has data beside, see the table"),
        (model.models, "has the victims' models"),
    )
    return [words for has, words in parts if has]


def _box(x: int, y: int, name: str, role: str, colour: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="160" height="70" rx="8" fill="#ffffff" stroke="{colour}" stroke-width="2.5"/>'
        f'<text x="{x + 80}" y="{y + 32}" text-anchor="middle" fill="{TEXT}" font-weight="600">{name}</text>'
        f'<text x="{x + 80}" y="{y + 52}" text-anchor="middle" fill="{colour}">{role}</text>'
    )


def _arrows(place: int, colour: str) -> list[str]:
    """Draw an upload and a broadcast between the server and the client whose box is centered at `place`."""
    # Spread the ends over the server's box, so that arrows do not cross.
    start = 330 + (place - 140) * 60 // 440
    up, down = (place - 12, 190, start, 92), (start + 16, 90, place + 12, 188)
    return [_arrow(*up, colour), _arrow(*down, colour)]


def _arrow(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    # The head is a triangle of length 9 and width 8, perpendicular to the line.
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    left, right = (x2 - 9 * ux - 4 * uy, y2 - 9 * uy + 4 * ux), (x2 - 9 * ux + 4 * uy, y2 - 9 * uy - 4 * ux)
    head = f"{x2},{y2} {left[0]:.1f},{left[1]:.1f} {right[0]:.1f},{right[1]:.1f}"
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.6"/>'
        f'<polygon points="{head}" fill="{colour}"/>'
    )
