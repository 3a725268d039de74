"""torch_geometric, imported when a network is first built: the import takes seconds, which other commands need not wait
for.
"""

import functools
import warnings
from types import ModuleType


@functools.cache
def layers() -> ModuleType:
    """Return `torch_geometric.nn`, without its warnings about deprecated parts of torch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from torch_geometric import nn
    return nn
