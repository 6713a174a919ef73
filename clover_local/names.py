"""What a model's name means: a file, the built-in demo, or a GGUF on the Hugging Face hub.

Hub files land in the Hugging Face cache; HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are respected.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from clover_local.errors import ModelError
from clover_local.hub import ask

DEMO = "demo"
DEMO_FILE = Path(__file__).parent / "data" / "demo.gguf"
PREFERRED = ("int4", "q4_k_m", "q4_k", "q4", "q8_0", "q8", "f16")  # what to take where no quant is named
_HUB_ID = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(:(?P<quant>[\w.-]+))?")
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def resolve(name: str, *, offline: bool = False, quiet: bool = False) -> Path:
    """The file of a model named by a path, `demo`, or a hub id `owner/name[:QUANT]`, fetched if need be.

    A file of that name wins over the hub; `quiet` hides the download's progress bar. Raises ModelError when
    there is none, CloverError when the hub does not give it.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name == DEMO:
        if not DEMO_FILE.is_file():
            raise ModelError("this installation holds no demo model", "name a GGUF file with --model")
        return DEMO_FILE
    if path.is_dir():
        raise ModelError(
            f"{name} is a folder, not a GGUF file", f"if it is a checkpoint, run: clover convert {name}"
        )
    hub = _HUB_ID.fullmatch(name)
    if hub is None or name.endswith(".gguf"):
        raise ModelError(
            f"there is no file {name}", f"a model is a path, {DEMO!r} or a hub id owner/name[:QUANT]"
        )
    if quiet:
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    return from_hub(hub["repo"], hub["quant"], offline=offline)


def from_hub(repo: str, quant: str | None = None, *, offline: bool = False) -> Path:
    """The local copy of a GGUF in a hub repository; `offline` and HF_HUB_OFFLINE forbid downloading it."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if offline or HF_HUB_OFFLINE:
        folder = Path(ask(repo, lambda: snapshot_download(repo, local_files_only=True)))
        names = [str(file.relative_to(folder)) for file in folder.rglob("*.gguf")]
        return folder / choose(names, repo, quant)
    names = [file.rfilename for file in ask(repo, lambda: HfApi().model_info(repo)).siblings or []]
    wanted = choose(names, repo, quant)
    sidecar = wanted.removesuffix(".gguf") + ".preview.gguf"
    if sidecar in names:
        ask(repo, lambda: hf_hub_download(repo, sidecar))
    return Path(ask(repo, lambda: hf_hub_download(repo, wanted)))


def choose(names: Sequence[str], repo: str, quant: str | None) -> str:
    """The file of a repository's `names` that holds a quant, or the preferred one where none is named."""
    whole = sorted(
        n for n in names if n.endswith(".gguf") and not n.endswith(".preview.gguf") and "mmproj" not in n
    )
    single = [n for n in whole if not _PART.search(n)]
    if quant is not None:
        fits = [n for n in single if quant.lower() in _quant_words(n)]
        if not fits:
            have = ", ".join(single) or "no GGUF in one file"
            raise ModelError(f"{repo} holds no quant {quant}", f"it holds: {have}")
        return min(fits, key=len)
    if not single:
        parts = " (only one split into parts, which this program does not read)" if whole else ""
        raise ModelError(
            f"{repo} holds no GGUF file{parts}", f"if it is a checkpoint, run: clover convert {repo}"
        )
    ranked = (n for word in PREFERRED for n in single if word in _quant_words(n))
    return next(ranked, single[0])


def _quant_words(name: str) -> set[str]:
    """The parts of a file name a quant may be: `M-Q4_K_M.gguf` has `q4_k_m`, and so has `M.Q4_K_M.gguf`."""
    stem = Path(name).name.lower().removesuffix(".gguf")
    return {*re.split(r"[-.]", stem), stem}
