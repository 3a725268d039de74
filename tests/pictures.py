"""Fixtures for tests that run commands: pictures are rendered only where a test is about them.

from tests.pictures import rendered, sketched  # noqa: F401  (in the conftest.py of a folder)
"""

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fkgsec.experiments.reporting import picture
from fkgsec.experiments.reporting.picture import saved


def sketch(figure: Figure, form: str) -> bytes:
    """The texts of a picture in place of its pixels, which take half the time of a small run."""
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    return b"\x89PNG" + f"{form} {texts}".encode()


@pytest.fixture(scope="session", autouse=True)
def sketched() -> Iterator[None]:
    """Every picture is the list of its texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "saved", sketch)
        yield


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """Pictures as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "saved", saved)
        yield
