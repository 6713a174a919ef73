"""The kernels on the CPU: compiled as plain C++ with emulator.h, over memory of this process."""

import ctypes as C
import functools
import hashlib
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from clover_local.runtime.cuda.compiler import definitions, source_files
from clover_local.runtime.cuda.passes import Launch

HERE = Path(__file__).parent
GUARD = 256  # bytes around every allocation that no kernel may touch


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="emulated-kernels-"))


@functools.cache
def library(source: str, values: tuple[tuple[str, int], ...]) -> C.CDLL:
    """kernels/<source>.cu as a shared library, built once per process."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the kernel emulator needs g++")
    folder = _folder()
    for name, text in source_files().items():
        (folder / name).write_text(text)
    key = hashlib.sha256(repr(values).encode()).hexdigest()[:8]
    target = folder / f"{source}-{key}.so"
    flags = [
        "-std=c++20",
        "-O2",
        "-w",
        "-shared",
        "-fPIC",
        "-march=x86-64-v3",
        "-DEMULATED",
        "-fno-gnu-unique",
        f"-I{HERE}",
    ]
    command = [compiler, *flags, *definitions(dict(values)), "-x", "c++", str(folder / f"{source}.cu")]
    done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return C.CDLL(str(target))


class Emulator:
    """A Machine whose memory is numpy arrays, each between guard bytes that `check` compares."""

    processors = 3
    shared_memory = 227 << 10

    def __init__(self) -> None:
        self._blocks: dict[int, np.ndarray] = {}
        self._sizes: dict[int, int] = {}

    def alloc(self, nbytes: int) -> int:
        raw = np.full(nbytes + 2 * GUARD + 256, 0xA5, np.uint8)
        start = -(-(raw.ctypes.data + GUARD) // 256) * 256
        offset = start - raw.ctypes.data
        raw[offset : offset + nbytes] = 0
        self._blocks[start] = raw
        self._sizes[start] = nbytes
        return start

    def place(self, array: np.ndarray) -> int:
        """A copy of an array in guarded memory."""
        data = np.ascontiguousarray(array)
        address = self.alloc(data.nbytes)
        self.write(address, data)
        return address

    def write(self, address: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        C.memmove(address, data.ctypes.data, data.nbytes)

    def read(self, address: int, dtype: type, *shape: int) -> np.ndarray:
        """A copy of memory as an array."""
        out = np.empty(shape, dtype)
        C.memmove(out.ctypes.data, address, out.nbytes)
        return out

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels one after another."""
        for one in launches:
            kernel = getattr(library(one.source, one.values), one.kernel)
            kernel(C.byref(one.args), one.grid[0], one.grid[1], one.block, one.shared)

    def check(self) -> None:
        """Nothing was written outside an allocation."""
        for start, raw in self._blocks.items():
            offset = start - raw.ctypes.data
            outside = np.concatenate([raw[:offset], raw[offset + self._sizes[start] :]])
            assert (outside == 0xA5).all()


class EmulatedDevice(Emulator):
    """The emulator in the place of device.Device: queues run at once, and a graph is its list of kernels."""

    capability = (9, 0)

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__()

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def send(self, address: int, data: np.ndarray) -> None:
        self.write(address, data)

    def fetch(self, data: np.ndarray, address: int) -> None:
        data[:] = self.read(address, np.uint8, data.nbytes)

    def prepare(self, launches: Iterable[Launch]) -> None:
        list(launches)

    def capture(self, launches: Sequence[Launch]) -> list[Launch]:
        return list(launches)

    def replay(self, graph: list[Launch]) -> None:
        self.run(graph)

    def finish(self) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None:
        self.check()


class FencedEmulator(Emulator):
    """Every allocation ends where memory does: reading or writing a byte behind it kills the process.

    `short` is taken off each allocation of exactly `of` bytes, to see that it does.
    """

    def __init__(self, short: int = 0, of: int = -1) -> None:
        super().__init__()
        self._short, self._of = short, of
        self._maps: list[mmap.mmap] = []
        self._protect = C.CDLL(None, use_errno=True).mprotect

    def alloc(self, nbytes: int) -> int:
        size = -(-(nbytes - self._short * (nbytes == self._of)) // 16) * 16  # kernels load 16 bytes at a time
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._maps.append(mmap.mmap(-1, room + mmap.PAGESIZE))
        start = C.addressof(C.c_char.from_buffer(self._maps[-1]))
        assert self._protect(C.c_void_p(start + room), C.c_size_t(mmap.PAGESIZE), 0) == 0
        return start + room - size
