"""Compile every kernel for an H100, where there is none: `python -m tests.kge.device.compile_kernels`, without the interpreter.

Prints a line for each: name, constants, registers of a thread, and the stack that it needs where these do not suffice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fkgsec.kge.device import adam, draws, losses, ranking, scoring, tables

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "*i64": "state keys order start row_start true steps",
    "*i32": "slot_client clients triples groups members pool candidates relation_of row_client moving bad",
    "*fp64": "totals ranks out",
    "*fp32": "relations weights entities queries scores highest normaliser losses to_anchors to_relations slopes gradients "
    "contributions rows first second divisors received previous factors own shared",
    "fp32": "margin temperature phase learning_rate tau mu SCALE",
}
TYPES = {name: kind for kind, names in POINTERS.items() for name in names.split()}  # what is not named here is an int

WIDE = {"TILE": 16, "BLOCK_D": 256}
CASES: list[tuple[Any, dict[str, int], dict[str, str]]] = [
    *((draws.draw_candidates, {"SIDES": sides, "SEARCH": 5, "BLOCK": 256}, {"relations": "*i32"}) for sides in range(3)),
    *((scoring.candidate_pass, {"SIDES": 1, "MODEL": model, **WIDE}, {}) for model in range(4)),
    (scoring.coefficients, {"BLOCK": 512}, {}),
    *((scoring.score_pass, {"SIDES": 2, "MODEL": model, **WIDE}, {}) for model in range(4)),
    *((scoring.query_pass, {"SIDES": 0, "MODEL": model, **WIDE}, {}) for model in range(4)),
    *((tables.sum_candidates, {"MODEL": model, **WIDE}, {}) for model in range(4)),
    *((tables.scatter_candidates, {"MODEL": model, **WIDE}, {}) for model in range(4)),
    (tables.sum_rows, {"TILE": 16, "BLOCK": 256}, {}),
    (adam.count_steps, {"BLOCK": 16}, {}),
    (losses.settle, {"SIDES": 2, "BLOCK": 16}, {}),
    (adam.adam_step, {"BLOCK": 1024}, {}),
    (adam.adam_step, {"BLOCK": 1024, "CLIENTS": 1}, {}),
    *((losses.row_losses, {"KIND": kind, "BLOCK": 256}, {}) for kind in range(3)),
    *((losses.reduce_rows, {"KIND": kind, "BLOCK": 1024}, {}) for kind in range(3)),
    *((losses.pull_rows, {"KIND": kind, "BLOCK": 256}, {}) for kind in range(3)),
    (losses.client_losses, {"BLOCK": 1024}, {}),
    *((losses.distil, {"KIND": kind, "BLOCK": 512}, {"mu": "*fp32"}) for kind in range(3)),
    *((ranking.rank_queries, {"MODEL": model, **WIDE}, {"groups": "*i64"}) for model in range(3)),
]  # fmt: skip


def compile_kernel(kernel: Any, constants: dict[str, int], types: dict[str, str]) -> str:
    """Compile one down to machine code; returns what it needs of the machine."""
    signature = {
        name: "constexpr" if name in constants else types.get(name, TYPES.get(name, "i32")) for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(ASTSource(kernel, signature, places), target=HOPPER, options={"num_warps": 4})
    assert made.asm["cubin"]
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [str(cuobjdump), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said))
    return f"{found['REG']} registers, {found['STACK']} bytes of stack, {found['SHARED']} shared"


def main(wanted: list[str]) -> None:
    """Compile those whose name has one of these words; all without any."""
    for kernel, constants, types in CASES:
        if not wanted or any(word in kernel.__name__ for word in wanted):
            print(kernel.__name__, constants, compile_kernel(kernel, constants, types), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
