"""One NVIDIA card through the CUDA driver: memory, kernels, and passes captured as graphs. It knows no model.

The context is the device's primary one, which ggml's CUDA backend uses too: its buffers' addresses are valid here.
"""

import ctypes as C
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from clover_local.errors import CloverError
from clover_local.runtime.cuda.compiler import OLDEST, kernel_binary
from clover_local.runtime.cuda.passes import Launch

DEPENDENT_LAUNCH = (9, 0)
"""The first compute capability whose kernels may start before the one ahead of them has ended."""
PLAIN_SHARED = 48 << 10  # bytes of shared memory a block gets without asking
SAID = {
    "CUDA_ERROR_OUT_OF_MEMORY": "the card has too little memory left for them",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the NVIDIA driver is too old to load them",
    "CUDA_ERROR_INVALID_IMAGE": "the NVIDIA driver is too old to load them",
}
"""What errors mean to whoever reads why the kernels are off."""


def load_driver() -> Any:
    """The CUDA driver's functions; raises CloverError where the bindings are not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise CloverError("the CUDA bindings are not installed", "pip install 'clover-local[cuda]'") from None
    return driver


class Device:
    """A card opened for our kernels; implements network.Machine. Not thread-safe."""

    def __init__(self, ordinal: int = 0) -> None:
        self._api = api = load_driver()
        try:
            self._check(api.cuInit(0))
        except RuntimeError as problem:  # what the bindings raise when there is no driver library
            raise CloverError(f"there is no CUDA driver here: {problem}") from None
        self._device = self._check(api.cuDeviceGet(ordinal))
        kind = api.CUdevice_attribute
        major = self._attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.capability = (major, minor)
        if self.capability < OLDEST:
            raise CloverError(
                f"this card has compute capability {major}.{minor}; our kernels need {OLDEST[0]}.{OLDEST[1]}"
            )
        self.processors = self._attribute(kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_memory = self._attribute(kind.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self._context = self._check(api.cuDevicePrimaryCtxRetain(self._device))
        self._check(api.cuCtxSetCurrent(self._context))
        self._stream = self._check(api.cuStreamCreate(api.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._modules: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._memory: list[Any] = []
        self._pinned: list[Any] = []
        self._graphs: list[Any] = []

    def _check(self, result: tuple[Any, ...]) -> Any:
        code, *values = result
        if int(code) != 0:
            raise CloverError(SAID.get(code.name, f"the CUDA driver failed: {code.name}"))
        return values[0] if values else None

    def _attribute(self, kind: Any) -> int:
        return int(self._check(self._api.cuDeviceGetAttribute(kind, self._device)))

    # --- memory ------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> int:
        """Reserve zeroed memory."""
        pointer = self._check(self._api.cuMemAlloc(max(nbytes, 1)))
        self._memory.append(pointer)
        self._check(self._api.cuMemsetD8(pointer, 0, max(nbytes, 1)))
        self.synchronize()
        return int(pointer)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Host memory [nbytes] uint8 that copies reach without a detour."""
        pointer = self._check(self._api.cuMemAllocHost(nbytes))
        self._pinned.append(pointer)
        return np.ctypeslib.as_array((C.c_uint8 * nbytes).from_address(int(pointer)))

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy an array to the device."""
        data = np.ascontiguousarray(data)
        self._check(self._api.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))

    def place(self, data: np.ndarray) -> int:
        """A copy of an array on the device."""
        address = self.alloc(data.nbytes)
        self.write(address, data)
        return address

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy inside the device."""
        self._check(self._api.cuMemcpyDtoD(target, source, nbytes))
        self.synchronize()

    def read(self, address: int, dtype: Any, *shape: int) -> np.ndarray:
        """Copy from the device, after everything queued has run."""
        self.synchronize()
        out = np.empty(shape, dtype)
        self._check(self._api.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes))
        return out

    def send(self, address: int, data: np.ndarray) -> None:
        """Queue a copy from pinned memory to the device."""
        self._check(self._api.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))

    def fetch(self, data: np.ndarray, address: int) -> None:
        """Queue a copy from the device to pinned memory."""
        self._check(self._api.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._stream))

    def synchronize(self) -> None:
        """Wait until everything queued has run."""
        self._check(self._api.cuCtxSynchronize())

    def finish(self) -> None:
        """Wait until everything queued on our stream has run."""
        self._check(self._api.cuStreamSynchronize(self._stream))

    # --- kernels -----------------------------------------------------------------------------------------

    def _function(self, one: Launch) -> Any:
        key = (one.source, one.values, one.kernel, one.shared)
        if key not in self._functions:
            self.prepare([one])
            function = self._check(self._api.cuModuleGetFunction(self._modules[key[:2]], one.kernel.encode()))
            if one.shared > PLAIN_SHARED:
                limit = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._check(self._api.cuFuncSetAttribute(function, limit, one.shared))
            self._functions[key] = function
        return self._functions[key]

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compile or fetch everything that these launches need, on all cores."""
        wanted = {(one.source, one.values) for one in launches} - set(self._modules)
        with ThreadPoolExecutor() as pool:
            jobs = {key: pool.submit(kernel_binary, key[0], self.capability, dict(key[1])) for key in wanted}
        for key, job in jobs.items():
            self._modules[key] = self._check(self._api.cuModuleLoadData(job.result()))

    def _launch(self, one: Launch, *, dependent: bool) -> None:
        api = self._api
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *one.grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = one.block, 1, 1
        config.sharedMemBytes = one.shared
        config.hStream = self._stream
        if dependent:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        arguments = (C.c_void_p * 1)(C.addressof(one.args))
        self._check(api.cuLaunchKernelEx(config, self._function(one), C.addressof(arguments), 0))

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels one after another and wait for them."""
        for one in launches:
            self._launch(one, dependent=False)
        self.finish()

    def capture(self, launches: Sequence[Launch]) -> Any:
        """Kernels as one graph, each but the first allowed to start while the one before it ends."""
        api = self._api
        self.prepare(launches)  # modules cannot be loaded while a stream is captured
        for one in launches:
            self._function(one)
        overlap = self.capability >= DEPENDENT_LAUNCH
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check(api.cuStreamBeginCapture(self._stream, mode))
        for index, one in enumerate(launches):
            self._launch(one, dependent=overlap and index > 0)
        graph = self._check(api.cuStreamEndCapture(self._stream))
        ready = self._check(api.cuGraphInstantiate(graph, 0))
        self._check(api.cuGraphDestroy(graph))
        self._graphs.append(ready)
        return ready

    def replay(self, graph: Any) -> None:
        """Queue a captured graph."""
        self._check(self._api.cuGraphLaunch(graph, self._stream))

    def milliseconds(self, graph: Any, repetitions: int) -> list[float]:
        """Device time of each of several replays."""
        api = self._api
        flags = api.CUevent_flags.CU_EVENT_DEFAULT
        start, stop = (self._check(api.cuEventCreate(flags)) for _ in range(2))
        times = []
        for _ in range(repetitions):
            self._check(api.cuEventRecord(start, self._stream))
            self.replay(graph)
            self._check(api.cuEventRecord(stop, self._stream))
            self._check(api.cuEventSynchronize(stop))
            times.append(float(self._check(api.cuEventElapsedTime(start, stop))))
        return times

    def close(self) -> None:
        """Give everything back."""
        api = self._api
        self.synchronize()
        for graph in self._graphs:
            self._check(api.cuGraphExecDestroy(graph))
        for module in self._modules.values():
            self._check(api.cuModuleUnload(module))
        for pointer in self._memory:
            self._check(api.cuMemFree(pointer))
        for pointer in self._pinned:
            self._check(api.cuMemFreeHost(pointer))
        self._check(api.cuStreamDestroy(self._stream))
        self._check(api.cuDevicePrimaryCtxRelease(self._device))
        self._graphs, self._memory, self._pinned = [], [], []
        self._modules, self._functions = {}, {}
