"""Compiles the kernels for the card that is there, once: NVRTC, then a cache keyed by source and architecture."""

import hashlib
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs

from clover_local.errors import CloverError
from clover_local.ggml.lib import BINDING
from clover_local.runtime.cuda import grids
from clover_local.runtime.cuda.arguments import sizes

SOURCES = ("rows", "dense", "gdn", "attention", "moe", "head", "stage")
OLDEST = (8, 0)
"""The first compute capability with 8-bit tensor-core tiles of this form and asynchronous copies."""


def source_files() -> dict[str, str]:
    """Every kernel source and header of the package by file name, and the header made of ggml's tables."""
    folder = resources.files("clover_local.runtime.cuda") / "kernels"
    files = {
        entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith((".cu", ".cuh"))
    }
    return {**files, "grids.cuh": grids.header()}


def kernel_names() -> list[str]:
    """The kernels by the names that profilers show."""
    text = "\n".join(text for name, text in source_files().items() if name.endswith(".cu"))
    return sorted(re.findall(r"^(?:RESIDENT_)?KERNEL\((\w+),", text, re.MULTILINE))


def definitions(values: Mapping[str, int]) -> list[str]:
    """Compiler options that define the given numbers and the sizes of all argument structures."""
    return [f"-D{name}={value}" for name, value in sorted({**sizes(), **values}.items())]


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    return Path(platformdirs.user_cache_dir("clover-local")) / "kernels"


def fingerprint() -> str:
    """Changes with anything that decides what the kernels compute: their sources, their host code, the versions."""
    folder = resources.files("clover_local.runtime")
    host = [
        entry.read_text() for place in (folder, folder / "cuda") for entry in sorted(place.iterdir(), key=str)
        if entry.name.endswith(".py")
    ]  # fmt: skip
    return hashlib.sha256(
        repr((sorted(source_files().items()), host, nvrtc_version(), BINDING)).encode()
    ).hexdigest()


def kernel_binary(name: str, capability: tuple[int, int], values: Mapping[str, int]) -> bytes:
    """Machine code of kernels/<name>.cu for one compute capability, from the cache or compiled now.

    `values` are the numbers defined while compiling (NT, HEAD). Raises CloverError when NVRTC is missing or
    the source does not compile.
    """
    files = source_files()
    options = [
        f"--gpu-architecture=sm_{capability[0]}{capability[1]}",
        "--std=c++17",
        "-default-device",
        *definitions(values),
    ]
    key = hashlib.sha256(repr((sorted(files.items()), options, nvrtc_version())).encode()).hexdigest()
    path = cache_folder() / f"{name}-{key[:32]}.cubin"
    if path.is_file():
        return path.read_bytes()
    binary = compile_source(f"{name}.cu", files, options)
    _store(path, binary)
    return binary


def _store(path: Path, binary: bytes) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(binary)
        partial.replace(path)
    except OSError:
        pass  # an unwritable cache costs seconds at the next start, nothing else


def compile_source(name: str, files: Mapping[str, str], options: list[str]) -> bytes:
    """Compile one of `files`, the headers among them at hand, to machine code."""
    nvrtc = _nvrtc()
    headers = [file for file in files if file.endswith(".cuh")]
    program = _check(
        nvrtc.nvrtcCreateProgram(
            files[name].encode(),
            name.encode(),
            len(headers),
            [files[file].encode() for file in headers],
            [file.encode() for file in headers],
        )
    )
    try:
        encoded = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program))
            _check(nvrtc.nvrtcGetProgramLog(program, log))
            raise CloverError(f"the kernels in {name} do not compile for this card: {log.decode().strip()}")
        binary = b" " * _check(nvrtc.nvrtcGetCUBINSize(program))
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise CloverError("the CUDA bindings are not installed", "pip install 'clover-local[cuda]'") from None
    return nvrtc


def nvrtc_version() -> tuple[int, int]:
    """NVRTC's version; raises CloverError where it is missing."""
    try:
        major, minor = _check_all(_nvrtc().nvrtcVersion())
    except RuntimeError as problem:  # what the bindings raise when the library itself is missing
        raise CloverError(f"NVRTC is not there: {problem}", "pip install 'clover-local[cuda]'") from None
    return major, minor


def _check_all(result: tuple[Any, ...]) -> tuple[Any, ...]:
    code, *values = result
    if int(code) != 0:
        raise CloverError(f"NVRTC failed: {code.name}")
    return tuple(values)


def _check(result: tuple[Any, ...]) -> Any:
    values = _check_all(result)
    return values[0] if values else None
