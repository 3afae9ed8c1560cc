"""PTX on the device: the driver's linker makes machine code of it, which is kept in the cache on disk beside the CPU's.

An entry's name is the hash of the text, the architecture and the driver's version. Without a usable cache the driver assembles the text
when it is loaded, every time.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..core.errors import CompileError, ExecutionError
from ..core.hashing import blake2b
from ..target.cpu.cache import CodeCache
from . import cuda_driver as gpu

_SMEM_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LOG_BYTES = 16 << 10


def machine_code(text: str, name: str, cache: CodeCache) -> tuple[bytes, bool]:
    """(machine code of a module, whether it was in the cache)."""
    salt = f"cuda {gpu.call('cuDriverGetVersion')} {gpu.compute_capability()} "
    key = blake2b(salt.encode() + text.encode(), digest_size=20).hexdigest()
    found = cache.get(key)
    if found is not None:
        return found, True
    made = _linked(text, name)
    cache.put(key, made)
    return made, False


def _linked(text: str, name: str) -> bytes:
    """The driver's own assembler and linker; its log is in the error."""
    cu = gpu.driver()
    log, option, data = bytes(LOG_BYTES), cu.CUjit_option, text.encode() + b"\0"
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    state = gpu.call("cuLinkCreate", 2, options, [log, LOG_BYTES], what=name)
    try:
        (status,) = cu.cuLinkAddData(state, cu.CUjitInputType.CU_JIT_INPUT_PTX, data, len(data), name.encode(), 0, [], [])
        if status != cu.CUresult.CUDA_SUCCESS:
            raise CompileError(
                f"cuda: the driver does not accept kernel {name} ({status.name}): {log.rstrip(bytes(1)).decode(errors='replace').strip()}"
            )
        address, size = gpu.call("cuLinkComplete", state, what=name)
        return ctypes.string_at(int(address), int(size))
    finally:
        gpu.call("cuLinkDestroy", state)


def load_function(text: str, name: str, dynamic_shared: int, cache: CodeCache) -> tuple[Any, Any, bool]:
    """(module, function, whether the code was in the cache); the module must be kept."""
    try:
        code, cached = machine_code(text, name, cache)
    except CompileError as problem:  # a driver whose linker does not know what its assembler knows
        try:
            code, cached = text.encode() + b"\0", False
            module = gpu.call("cuModuleLoadData", code, what=name)
        except ExecutionError:
            raise problem from None
        cache.notes.append(f"cache: kernel {name} is assembled at every start, the driver's linker does not take it")
    else:
        module = gpu.call("cuModuleLoadData", code, what=name)
    function = gpu.call("cuModuleGetFunction", module, name.encode(), what=name)
    if dynamic_shared > 48 << 10:
        gpu.call("cuFuncSetAttribute", function, gpu.driver().CUfunction_attribute(_SMEM_LIMIT), dynamic_shared, what=name)
    return module, function, cached
