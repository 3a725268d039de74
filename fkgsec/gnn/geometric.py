"""torch_geometric, imported when a network is first made: it takes seconds, and no other command is to wait for it."""

import functools
import warnings
from types import ModuleType


@functools.cache
def layers() -> ModuleType:
    """`torch_geometric.nn`. That it uses parts of torch which are to go is no concern of users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from torch_geometric import nn
    return nn
