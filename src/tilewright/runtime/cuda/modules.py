"""PTX on the device: the driver assembles each kernel as a program of its own and keeps the machine code in its cache on disk.

The driver's linker would hand us the machine code for a cache of ours, but it assembles for linking: `setmaxnreg` is then ignored,
registers spill, products on the tensor cores run one after another, and attention's backward pass gave wrong sums (measured on an H200).
"""

from __future__ import annotations

from typing import Any

from ...core.errors import CompileError
from . import driver as gpu

_SMEM_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LOG_BYTES = 16 << 10


def load_function(text: str, name: str, dynamic_shared: int) -> tuple[Any, Any]:
    """(module, function); the module must be kept. What the assembler says is in the error."""
    cu = gpu.driver()
    log, option, data = bytes(LOG_BYTES), cu.CUjit_option, text.encode() + b"\0"  # the bindings write into the log
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    status, module = cu.cuModuleLoadDataEx(data, 2, options, [log, LOG_BYTES])
    if status != cu.CUresult.CUDA_SUCCESS:
        said = log.rstrip(bytes(1)).decode(errors="replace").strip()
        raise CompileError(f"cuda: the driver does not accept kernel {name} ({status.name}): {said}")
    function = gpu.call("cuModuleGetFunction", module, name.encode(), what=name)
    if dynamic_shared:  # without, 48 KB less what the kernel itself declares would be the most
        gpu.call("cuFuncSetAttribute", function, cu.CUfunction_attribute(_SMEM_LIMIT), dynamic_shared, what=name)
    return module, function
