"""Fixtures for tests that run commands: pictures are rendered only where a test is about them.

from tests.pictures import rendered, sketched  # noqa: F401  (in the conftest.py of a folder)
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

_render = Figure.savefig


def _sketch(figure: Figure, file: BinaryIO, *, format: str, **_: Any) -> None:
    """Write the texts of a picture in place of its pixels, which take half the time of a small run."""
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    file.write(b"\x89PNG" + f"{format} {texts}".encode())


@pytest.fixture(scope="session", autouse=True)
def sketched() -> Iterator[None]:
    """Every picture is the list of its texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _sketch)
        yield


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """Pictures as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _render)
        yield
