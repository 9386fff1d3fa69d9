"""CUDA C++ that is compiled when it is first needed, by the compiler that comes with PyTorch."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.cuda import _utils as driver  # nothing public loads these libraries

_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """A kernel with so many threads and so much shared memory for each block."""

    def __init__(self, function: ctypes.c_void_p, threads: int, shared: int) -> None:
        self.function, self.threads, self.shared = function, threads, shared
        driver._check_cuda(driver._get_gpu_runtime_library().cuFuncSetAttribute(function, _SHARED_MEMORY, shared))

    def __call__(self, blocks: int, *arguments: Tensor | int | None) -> None:
        """Starts so many blocks on the current stream, with pointers to tensors, or to nothing, and whole numbers."""
        values: list[ctypes.c_int | ctypes.c_void_p] = []
        for each in arguments:
            if isinstance(each, int):
                values.append(ctypes.c_int(each))
            else:
                values.append(ctypes.c_void_p(None if each is None else each.data_ptr()))
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        size = (blocks, 1, 1, self.threads, 1, 1, self.shared)
        launch = driver._get_gpu_runtime_library().cuLaunchKernel
        driver._check_cuda(launch(self.function, *size, stream, places, None))


def compiled(source: str, name: str, options: Sequence[str]) -> ctypes.c_void_p:
    """The function of this name."""
    compiler = driver._get_gpu_rtc_library()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if compiler.nvrtcCompileProgram(program, len(options), given):
            compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            compiler.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"kernels do not compile: {log.value.decode()}")
        compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetCUBIN(program, binary)
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))
    library, module, function = driver._get_gpu_runtime_library(), ctypes.c_void_p(), ctypes.c_void_p()
    driver._check_cuda(library.cuModuleLoadData(ctypes.byref(module), binary.raw))
    driver._check_cuda(library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return function
