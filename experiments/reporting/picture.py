"""Colors and files of pictures: what every picture shares.

Path("picture.png").write_bytes(png(figure))
"""

from __future__ import annotations

import io

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from fkgsec.text import printable

# Okabe and Ito's colors: told apart by color-blind readers, and by gray level in print.
MOST_LETTERS = 40  # of a name in a picture; longer ones would leave no room for what is drawn
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#5c5c5c"


def png(figure: Figure) -> bytes:
    """The figure as a PNG."""
    return saved(figure, "png")


def saved(figure: Figure, form: str) -> bytes:
    """The file in one of the formats of `fkgsec plot`; the same figure gives the same bytes.

    Texts stand as they are: names come from somebody's data, and a `$` in them would be read as a formula.
    """
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)
            text.set_text(printable(text.get_text(), lines=True))
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "fkgsec"}):
        figure.savefig(buffer, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()
