"""What a measurement was made with: model file, device, versions, memory. Enough to repeat it elsewhere."""

import hashlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs

from clover_local.ggml.backend import Device, devices
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.lib import GGML_VERSION
from clover_local.version import __version__

PACKAGES = ("llama-cpp-python", "numpy", "math-verify", "sympy", "latex2sympy2_extended")


def model_identity(path: Path) -> dict[str, Any]:
    """Name, size, hash and main tensor types of a model file."""
    file = GgufFile.open(path)
    by_type: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_type[tensor.type.name] = by_type.get(tensor.type.name, 0) + tensor.nbytes
    main = sorted(by_type, key=lambda name: -by_type[name])
    return {
        "name": str(file.keys.get("general.name") or path.stem),
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
        "types": {name: by_type[name] for name in main},
        "quantized_by": file.keys.get("general.quantized_by"),
    }


def file_sha256(path: Path) -> str:
    """A file's hash; kept by path, size and time, since 18 GB take ten seconds and more."""
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    cache = Path(platformdirs.user_cache_dir("clover-local")) / "hashes.json"
    known = _read_json(cache)
    if not isinstance(known.get(key), str):
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        _write_json(cache, known)
    return str(known[key])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(path)
    except OSError:
        pass  # a cache that cannot be kept costs time only


def versions() -> dict[str, str]:
    """Versions of everything that computes or grades."""
    found = {"clover-local": __version__, "python": platform.python_version(), "ggml": GGML_VERSION}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def host() -> dict[str, Any]:
    """Operating system, processor and cores."""
    return {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def rss_peak() -> int:
    """The process's peak of resident memory in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def vram_used(name: str) -> int:
    """Bytes in use (by everybody) on the GPU of that name or description; 0 for the CPU."""
    return sum(
        used(device) for device in devices() if device.is_gpu and name in (device.name, device.description)
    )


def used(device: Device) -> int:
    """Bytes of a device's memory in use."""
    return max(device.total - device.free, 0)
