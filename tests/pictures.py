"""Fixtures for tests that run commands: pictures are rendered only where a test is about them.

from tests.pictures import rendered, sketched  # noqa: F401  (in the conftest.py of a folder)
"""

import contextlib
from collections.abc import Iterator
from html import escape

import pytest
from matplotlib.figure import Figure

from fkgsec.experiments.reporting import pictures

_render = pictures.saved


def _sketch(figure: Figure, form: str = "png", *, salt: str = "fkgsec") -> bytes:
    """Write titles and labels without a drawing, whose ticks and layout take longer than a small run."""
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        texts += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    if form == "png":
        return b"\x89PNG" + repr(texts).encode()
    shown = "".join(f"<text>{escape(text)}</text>" for text in texts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><g>{shown}</g></svg>'.encode()


@pytest.fixture(scope="session", autouse=True)
def sketched() -> Iterator[None]:
    """Every picture that a command writes is the list of its titles and labels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "saved", _sketch)
        yield


@contextlib.contextmanager
def rendering() -> Iterator[None]:
    """Pictures as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "saved", _render)
        yield


@pytest.fixture
def rendered() -> Iterator[None]:
    """Pictures as users get them."""
    with rendering():
        yield
