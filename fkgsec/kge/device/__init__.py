"""Local training and ranking on a GPU, in kernels of Triton that run without a GPU, too, in Triton's interpreter.

`fkgsec.kge.device.epoch` drives them; `fkgsec.kge.device.fused` says which recipes have them.
"""

import os

# Multiply and add in one, as ever: Triton 3.9 warns where it is not said, and 3.10 does not by itself.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
