"""Fixtures for tests that run commands: pictures are rendered only where a test is about them.

from tests.pictures import rendered, sketched  # noqa: F401  (in the conftest.py of a folder)
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

_render = Figure.savefig


def _sketch(figure: Figure, file: BinaryIO, *, format: str, **options: Any) -> None:
    """Write the texts of a PNG in place of its pixels, which take half the time of a small run. Pages parse their SVGs."""
    if format != "png":
        _render(figure, file, format=format, **options)
        return
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    file.write(b"\x89PNG" + repr(texts).encode())


@pytest.fixture(scope="session", autouse=True)
def sketched() -> Iterator[None]:
    """Every PNG is the list of its texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _sketch)
        yield


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """Pictures as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _render)
        yield
