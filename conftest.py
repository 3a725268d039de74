"""Skip the Triton kernels and their tests on systems for which Triton has no builds."""

import importlib.util

collect_ignore_glob = (
    [] if importlib.util.find_spec("triton") else ["fkgsec/kge/gpu_kernels.py", "tests/kge/test_gpu_kernels.py"]
)
