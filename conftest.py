"""Where triton is missing, as on systems for which it has no builds, nobody looks for tests among its kernels."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["fkgsec/kge/device/*", "tests/kge/device/*"]
