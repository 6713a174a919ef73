"""`clover doctor`: what the program found here, and what to do about what is wrong.

A check is a function that yields findings; it must not fail, so whatever goes wrong becomes a finding. To add
one, append it to CHECKS.
"""

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from clover_local.errors import CloverError
from clover_local.version import __version__


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do; only a `problem` makes the command exit with 1."""

    room: str
    name: str
    value: str
    kind: Literal["fact", "note", "problem"] = "fact"
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of `clover doctor`."""
    parser.add_argument("model", nargs="?", help="also look at this model: a file, `demo` or a hub id")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print every finding; 1 when there is a problem."""
    findings = [finding for check in CHECKS for finding in check()]
    if args.model:
        findings += model(args.model)
    print(json.dumps([asdict(f) for f in findings], indent=1) if args.json else text(findings))
    return int(any(f.kind == "problem" for f in findings))


def program() -> Iterator[Finding]:
    """Versions of the program and of Python."""
    yield Finding("program", "clover-local", f"{__version__} at {Path(__file__).parents[1]}")
    yield Finding("program", "Python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("program", "system", f"{platform.system()} {platform.release()}, {platform.machine()}")


def libraries() -> Iterator[Finding]:
    """llama-cpp-python's build and whether its layout is the one this program reads."""
    room = "llama-cpp-python"
    try:
        from clover_local.ggml import lib
    except CloverError as error:
        yield Finding(room, "binding", str(error), "problem", error.hint or "")
        return
    yield Finding(room, "binding", f"{lib.BINDING}, ggml {lib.GGML_VERSION}, at {lib.FOLDER}")
    from clover_local.ggml.llama import llama

    features = llama.llama_print_system_info().decode()
    on = [
        part.strip().removesuffix("= 1").strip()
        for part in features.split("|")
        if part.strip().endswith("= 1")
    ]
    yield Finding(room, "CPU features", ", ".join(part.split(":")[-1].strip() for part in on) or "none")


def devices() -> Iterator[Finding]:
    """Every device that ggml offers, with its memory, and a GPU that it cannot use."""
    try:
        from clover_local.ggml.backend import devices as offered
    except CloverError:
        return  # `libraries` has said why
    found = offered()
    for device in found:
        memory = f", {device.free / 1e9:.1f} of {device.total / 1e9:.1f} GB free" if device.total else ""
        yield Finding("devices", device.name, f"{device.description}{memory}")
    if any(device.is_gpu for device in found):
        return
    if shutil.which("nvidia-smi"):
        yield Finding(
            "devices",
            "GPU",
            "there is an NVIDIA driver, but this build of llama-cpp-python has no CUDA",
            "problem",
            "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir llama-cpp-python==0.3.36",
        )
    else:
        yield Finding("devices", "GPU", "none; models run on the CPU", "note")


def kernels() -> Iterator[Finding]:
    """The card and driver, what compiles our kernels for it, and how they compare with ggml on it."""
    room = "our own kernels"
    try:
        from clover_local.runtime.cuda import card, compiler
        from clover_local.runtime.kernels import CARD
    except CloverError:
        return  # `libraries` has said why
    files = list(compiler.cache_folder().glob("*.cubin"))
    size = sum(file.stat().st_size for file in files) / 1e6
    try:
        found: card.Card | CloverError = card.card()
    except CloverError as error:
        found = error
    if isinstance(found, card.Card):
        sm = "".join(str(part) for part in found.capability)
        yield Finding(room, "NVIDIA card", f"{found.name} (sm_{sm}), driver {found.driver}")
    else:
        yield Finding(
            room, "NVIDIA card", str(found), "problem" if CARD.exists() else "note", found.hint or ""
        )
    try:
        version = ".".join(map(str, compiler.nvrtc_version()))
        yield Finding(room, "extra `cuda`", f"installed, NVRTC {version}")
    except CloverError as error:
        yield Finding(
            room, "extra `cuda`", str(error), "problem" if CARD.exists() else "note", error.hint or ""
        )
        return
    yield Finding(room, "kernel cache", f"{compiler.cache_folder()} ({len(files)} files, {size:.1f} MB)")
    if isinstance(found, card.Card):
        yield _self_check(room, len(compiler.kernel_names()))


def _self_check(room: str, count: int) -> Finding:
    """Compile the kernels and compare them with ggml's graphs on the built-in model."""
    from clover_local.ggml.backend import devices as offered
    from clover_local.names import DEMO_FILE
    from clover_local.runtime.engine import Engine
    from clover_local.runtime.kernels import SWITCH

    name, remedy = "self-check", "please report it with this output; ggml's graphs run instead"
    if not any(device.name.startswith("CUDA") for device in offered()):
        return Finding(room, name, "off: this build of llama-cpp-python has no CUDA", "note")
    if os.environ.get(SWITCH) == "0":
        return Finding(room, name, f"off: {SWITCH}=0 is set", "note")
    try:
        with Engine.open(DEMO_FILE, n_ctx=256, device="gpu") as engine:
            wrong = engine.note
            said = wrong or engine.check_kernels() or "off: the model is not on the card"
    except (CloverError, RuntimeError) as error:
        return Finding(room, name, str(error), "problem", remedy)
    good = wrong is None and " agree on this card" in said
    return Finding(
        room, name, f"{count} kernels: {said}" if good else said, *(() if good else ("problem", remedy))
    )


def folders() -> Iterator[Finding]:
    """Where models, chats and settings lie, and whether they can be written."""
    import platformdirs

    yield from _folder("model cache", _hub_cache(), need=20e9)
    yield from _folder("chats, settings", Path(platformdirs.user_data_dir("clover-local")))
    yield from _folder("own cache", Path(platformdirs.user_cache_dir("clover-local")))
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    yield Finding("folders", "hub", "offline (HF_HUB_OFFLINE)" if offline else "may be asked")
    yield Finding("folders", "HF_TOKEN", "set" if os.environ.get("HF_TOKEN") else "not set")


def _hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _folder(name: str, path: Path, *, need: float = 0.0) -> Iterator[Finding]:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        yield Finding("folders", name, f"{path} cannot be written", "problem", f"make {there} writable")
        return
    free = shutil.disk_usage(there).free
    state = "" if path.exists() else ", not made yet"
    value = f"{path} ({free / 1e9:.0f} GB free{state})"
    low = free < need
    remedy = "a 35B model takes 20 GB; HF_HOME moves the cache" if low else ""
    yield Finding("folders", name, value, "note" if low else "fact", remedy)


def demo() -> Iterator[Finding]:
    """Whether the built-in model is there and whole."""
    from clover_local.names import DEMO_FILE

    if not DEMO_FILE.is_file():
        remedy = "name a GGUF file with --model, or install the package again"
        yield Finding("demo model", "file", "missing from this installation", "problem", remedy)
        return
    yield from (finding for finding in model("demo") if finding.name in ("file", "error"))


def model(name: str) -> Iterator[Finding]:
    """One model: its file, numbers, tokenizer and template, and whether it fits into memory."""
    room = f"model {name}"
    try:
        from clover_local.ggml.backend import choose_device
        from clover_local.ggml.gguf import GgufFile
        from clover_local.model.spec import Spec
        from clover_local.names import resolve
        from clover_local.text.template import ChatTemplate
        from clover_local.text.tokenizer import Tokenizer

        path = resolve(name)
        file = GgufFile.open(path)
        size = path.stat().st_size
        yield Finding(room, "file", f"{path}, {size / 1e9:.3f} GB, {len(file.tensors)} tensors")
        spec = Spec.from_gguf(file)
        yield Finding(room, "shape", f"{spec.name}: {spec.layers} layers, {spec.experts} experts, "
                      f"context {spec.context_length:,}")  # fmt: skip
        if not spec.can_draft:
            remedy = "convert the checkpoint with clover convert to draft and denoise"
            yield Finding(room, "drafts", "no preview weights: one token at a time", "note", remedy)
        tokenizer = Tokenizer.from_gguf(path)
        yield Finding(room, "tokenizer", f"{tokenizer.size:,} tokens")
        tokenizer.close()
        source = file.keys.get("tokenizer.chat_template")
        if isinstance(source, str):
            ChatTemplate(source)
            yield Finding(room, "chat template", "the file's own")
        else:
            yield Finding(room, "chat template", "none; the ChatML form is used", "note")
        device = choose_device()
        if device.total and size > device.free:
            yield Finding(room, "memory", f"{size / 1e9:.1f} GB do not fit into the {device.free / 1e9:.1f} GB "
                          f"free on {device.name}", "problem", "free memory or take a smaller quant")  # fmt: skip
    except CloverError as error:
        yield Finding(room, "error", str(error), "problem", error.hint or "")


CHECKS: list[Callable[[], Iterator[Finding]]] = [program, libraries, devices, kernels, folders, demo]
MARKS = {"fact": " ", "note": "·", "problem": "✗"}


def text(findings: list[Finding]) -> str:
    """The report for people."""
    lines: list[str] = []
    width = max(len(finding.name) for finding in findings)
    room = None
    for finding in findings:
        if finding.room != room:
            room = finding.room
            lines += ["", room] if lines else [room]
        lines.append(f" {MARKS[finding.kind]} {finding.name:<{width}}  {finding.value}")
        if finding.remedy:
            lines.append(f"   {'':<{width}}  → {finding.remedy}")
    problems = sum(finding.kind == "problem" for finding in findings)
    return "\n".join([*lines, "", "no problems" if not problems else f"{problems} to mend, see → above"])
