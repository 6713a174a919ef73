"""Devices, and the buffers and graphs that live on them."""

import ctypes as C
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from clover_local.errors import CardFullError, CloverError, LockedMemoryError
from clover_local.ggml import lib
from clover_local.ggml.lib import FOLDER, InitParams, Node, functions
from clover_local.ggml.types import tensor_type

CPU, GPU, INTEGRATED_GPU = 0, 1, 2
_USAGE_WEIGHTS, _USAGE_COMPUTE = 1, 2
GRAPH_SLACK = 4096  # bytes of a context beyond its tensors


@dataclass(frozen=True)
class Device:
    """A device ggml offers. `handle` is its pointer; memory is in bytes at the time of the listing."""

    handle: int
    name: str
    description: str
    kind: int
    free: int
    total: int

    @property
    def is_gpu(self) -> bool:
        return self.kind in (GPU, INTEGRATED_GPU)


@cache
def _load_backends() -> None:
    functions["ggml_backend_load_all_from_path"](str(FOLDER).encode())


def devices() -> list[Device]:
    """Every device of the installed build, in ggml's order."""
    _load_backends()
    found = []
    for index in range(functions["ggml_backend_dev_count"]()):
        handle = functions["ggml_backend_dev_get"](index)
        free, total = C.c_size_t(), C.c_size_t()
        functions["ggml_backend_dev_memory"](handle, C.byref(free), C.byref(total))
        found.append(
            Device(
                handle,
                functions["ggml_backend_dev_name"](handle).decode(),
                functions["ggml_backend_dev_description"](handle).decode(),
                functions["ggml_backend_dev_type"](handle),
                free.value,
                total.value,
            )
        )
    return found


def choose_device(wanted: str | None = None) -> Device:
    """The device called `wanted` ("cpu", "gpu" or ggml's name); by default the first GPU, else the CPU."""
    found = devices()
    names = ", ".join(device.name for device in found)
    if wanted is None:
        return next((d for d in found if d.is_gpu), next(d for d in found if d.kind == CPU))
    key = wanted.lower()
    for device in found:
        if (
            device.name.lower() == key
            or (key == "gpu" and device.is_gpu)
            or (key == "cpu" and device.kind == CPU)
        ):
            return device
    raise CloverError(f"there is no device {wanted!r} here", f"devices found: {names}")


class Backend:
    """A device opened for computing; the buffers and graphs on it must be freed before it is closed."""

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self.device = device
        self.handle = functions["ggml_backend_dev_init"](device.handle, None)
        if not self.handle:
            raise CloverError(f"the device {device.name} could not be opened: {lib.last_error()}")
        self.is_cpu = device.kind == CPU
        self.mixed = (
            False  # part of the graphs lies in the CPU's memory: copies cannot be queued on one device
        )
        self._in_flight: list[np.ndarray] = []  # arrays that queued copies still read or write
        if self.is_cpu and threads:
            functions["ggml_backend_cpu_set_n_threads"](self.handle, threads)

    def send(self, node: Node, values: np.ndarray) -> None:
        """Queue a copy into a tensor, in order with the graphs computed on this backend."""
        values = np.ascontiguousarray(values)
        if self.mixed:
            upload(node, values)
            return
        self._in_flight.append(values)
        functions["ggml_backend_tensor_set_async"](self.handle, node, values.ctypes.data, 0, values.nbytes)

    def fetch(self, node: Node, dtype: type[np.generic]) -> np.ndarray:
        """Queue a copy out of a tensor; the array returned is filled once `synchronize` has returned."""
        if self.mixed:
            return download(node, dtype)
        out = np.empty(functions["ggml_nbytes"](node) // np.dtype(dtype).itemsize, dtype)
        self._in_flight.append(out)
        functions["ggml_backend_tensor_get_async"](self.handle, node, out.ctypes.data, 0, out.nbytes)
        return out

    def synchronize(self) -> None:
        """Wait for everything queued on this backend."""
        functions["ggml_backend_synchronize"](self.handle)
        self._in_flight.clear()

    def close(self) -> None:
        if self.handle:
            functions["ggml_backend_free"](self.handle)
            self.handle = None


class Context:
    """A ggml context: descriptions of tensors and graphs, no data."""

    def __init__(self, tensors: int, graph_nodes: int = 0) -> None:
        size = tensors * functions["ggml_tensor_overhead"]() + GRAPH_SLACK
        if graph_nodes:
            size += functions["ggml_graph_overhead_custom"](graph_nodes, False)
        self.handle = functions["ggml_init"](InitParams(size, None, True))
        if not self.handle:
            raise CloverError("ggml could not make a context: out of memory")

    def tensor(self, type_name: str, *shape: int, name: str = "") -> Node:
        """A new tensor; `shape` in ggml order, ne0 first."""
        extents = [*shape, *[1] * (4 - len(shape))]
        node = functions["ggml_new_tensor_4d"](self.handle, tensor_type(type_name).id, *extents)
        if name:
            functions["ggml_set_name"](node, name.encode()[:63])
        return node

    def free(self) -> None:
        if self.handle:
            functions["ggml_free"](self.handle)
            self.handle = None


class Buffer:
    """Memory of a device that holds every tensor of a context."""

    def __init__(self, context: Context, backend: Backend, *, weights: bool = False) -> None:
        self.handle = functions["ggml_backend_alloc_ctx_tensors"](context.handle, backend.handle)
        if not self.handle:
            raise CardFullError(
                f"{backend.device.name} lacks free memory: {lib.last_error() or 'allocation failed'}",
                "use a smaller context (-c) or a smaller quantization",
            )
        functions["ggml_backend_buffer_set_usage"](self.handle, _USAGE_WEIGHTS if weights else _USAGE_COMPUTE)

    @property
    def size(self) -> int:
        """Bytes."""
        return functions["ggml_backend_buffer_get_size"](self.handle)

    def clear(self) -> None:
        functions["ggml_backend_buffer_clear"](self.handle, 0)

    def free(self) -> None:
        if self.handle:
            functions["ggml_backend_buffer_free"](self.handle)
            self.handle = None


class PinnedBuffer(Buffer):
    """Memory of the computer that holds every tensor of a context, locked so that a device reads it by itself."""

    def __init__(self, context: Context, backend: Backend) -> None:
        kind = functions["ggml_backend_dev_host_buffer_type"](backend.device.handle)
        self.handle = kind and functions["ggml_backend_alloc_ctx_tensors_from_buft"](context.handle, kind)
        if not self.handle or functions["ggml_backend_buffer_get_type"](self.handle) != kind:
            self.free()  # what ggml gives when it could not lock any
            raise LockedMemoryError(
                f"the system did not let {backend.device.name} lock memory for the experts that stay with the computer",
                "close other programs, or raise the limit of locked memory (ulimit -l)",
            )
        functions["ggml_backend_buffer_set_usage"](self.handle, _USAGE_WEIGHTS)


class MappedBuffer(Buffer):
    """CPU memory that somebody else owns (a mapped file), in which tensors are placed one by one."""

    def __init__(self, address: int, size: int) -> None:
        self.handle = functions["ggml_backend_cpu_buffer_from_ptr"](address, size)
        functions["ggml_backend_buffer_set_usage"](self.handle, _USAGE_WEIGHTS)

    def place(self, node: Node, address: int) -> None:
        if functions["ggml_backend_tensor_alloc"](self.handle, node, address) != 0:
            raise CloverError("ggml refused a tensor of the mapped file")


def nodes(graph: Node) -> Iterator[Node]:
    """The nodes of a graph in the order they are computed."""
    for index in range(graph.contents.n_nodes):
        yield graph.contents.nodes[index]


def upload(node: Node, values: np.ndarray, offset: int = 0) -> None:
    """Copy an array into a tensor, `offset` bytes from its start; returns when the copy is done."""
    values = np.ascontiguousarray(values)
    functions["ggml_backend_tensor_set"](node, values.ctypes.data, offset, values.nbytes)


def clear(node: Node) -> None:
    """Set all bytes of a tensor to zero."""
    functions["ggml_backend_tensor_memset"](node, 0, 0, functions["ggml_nbytes"](node))


def download(node: Node, dtype: type[np.generic], count: int | None = None, offset: int = 0) -> np.ndarray:
    """Copy a tensor (or `count` values from byte `offset`) to a new flat array."""
    if count is None:
        count = functions["ggml_nbytes"](node) // np.dtype(dtype).itemsize
    out = np.empty(count, dtype)
    functions["ggml_backend_tensor_get"](node, out.ctypes.data, offset, out.nbytes)
    return out
