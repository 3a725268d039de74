"""For all tests: fkgsec comes before torch, since it says how long torch's threads spin."""

from collections.abc import Callable, Iterator

import fkgsec  # noqa: F401

import os  # isort: skip

import pytest  # isort: skip
import torch  # isort: skip

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which torch_geometric, too, does


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads of numba and torch; both are put back."""
    import numba  # which a lent machine, where the kernels of a GPU are tested, has not

    before = numba.get_num_threads(), torch.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
        pytest.skip("numba was started with one thread")

    def use(count: int) -> None:
        numba.set_num_threads(count)
        torch.set_num_threads(count)

    yield use
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])
