"""Fixtures for tests that run commands: pictures are rendered only where a test is about them.

from tests.pictures import rendered, sketched  # noqa: F401  (in the conftest.py of a folder)
"""

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.pictures import saved


def sketch(figure: Figure, form: str = "png", *, salt: str = "fkgsec") -> bytes:
    """Write the texts of a picture in place of its pixels, which take half the time of a small run; leave SVG, which pages read."""
    if form == "svg":
        return saved(figure, form, salt=salt)
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    return b"\x89PNG" + f"{form} {texts}".encode()


@pytest.fixture(scope="session", autouse=True)
def sketched() -> Iterator[None]:
    """Every picture is the list of its texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "saved", sketch)
        yield


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """Pictures as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "saved", saved)
        yield
