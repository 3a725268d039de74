"""For all tests: fkgsec comes before torch, since it says how long torch's threads spin."""

from collections.abc import Callable, Iterator

import fkgsec  # noqa: F401

import functools  # isort: skip
import gc  # isort: skip
import importlib.util  # isort: skip
import os  # isort: skip

import pytest  # isort: skip
import torch  # isort: skip

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which torch_geometric, too, does

gc.set_threshold(50_000, 20, 20)  # with all modules of a session loaded, the usual collections take a tenth of the time


def pytest_configure() -> None:
    """Give each worker of pytest-xdist one thread: workers share the cores, and small arrays gain nothing from more."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        if importlib.util.find_spec("numba"):  # which a lent machine has not
            import numba

            numba.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave what was imported until now out of all collections."""
    gc.freeze()


if importlib.util.find_spec("typer"):  # which a lent machine, where the kernels of a GPU are tested, has not
    import typer.testing

    # Each `invoke` would build all options of all commands anew, which takes longer than most commands.
    typer.testing._get_command = functools.cache(typer.testing._get_command)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads of numba and torch; both are put back."""
    import numba  # which a lent machine has not

    before = numba.get_num_threads(), torch.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
        pytest.skip("numba was started with one thread")

    def use(count: int) -> None:
        numba.set_num_threads(count)
        torch.set_num_threads(count)

    yield use
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])
