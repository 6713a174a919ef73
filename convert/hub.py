"""A checkpoint on the Hugging Face hub: the small files first, shards one at a time, the next one in advance.

Files land in the Hugging Face cache (HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are respected).
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE
from huggingface_hub.utils.tqdm import disable_progress_bars

from clover_local.convert.source import INDEX, LocalSource, Source, read_index
from clover_local.errors import CloverError, ModelError
from clover_local.hub import ask

SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
    INDEX,
)


@dataclass(frozen=True)
class HubSource:
    """One revision of a hub repository."""

    name: str
    repo: str
    revision: str
    folder: Path
    weight_map: dict[str, str]
    sizes: dict[str, int]
    discard: bool
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="fetch")
    )
    _coming: dict[str, Future[Path]] = field(default_factory=dict)

    @classmethod
    def open(cls, repo: str, *, discard: bool = False) -> Source:
        """Fetch everything but the weights; offline, what the cache holds must be complete."""
        name = repo.rpartition("/")[2]
        if HF_HUB_OFFLINE:
            return LocalSource.open(_cached_folder(repo), name, repo)
        disable_progress_bars()  # the caller shows progress; two bars on one terminal garble each other
        info = ask(repo, lambda: HfApi().model_info(repo, files_metadata=True))
        sizes = {s.rfilename: s.size or 0 for s in info.siblings or []}
        if info.sha is None or "config.json" not in sizes:
            raise ModelError(f"{repo} on the hub holds no config.json, so it is no checkpoint")
        get = partial(_download, repo, info.sha)
        ask(repo, lambda: hf_hub_download(repo, "config.json"))  # by no revision: marks it as the latest one
        folder = [get(small) for small in SMALL if small in sizes].pop().parent
        weight_map = read_index(folder / INDEX) if INDEX in sizes else _from_headers(repo, info.sha, sizes)
        absent = sorted(set(weight_map.values()) - sizes.keys())
        if absent:
            raise ModelError(f"{repo} on the hub lacks files that its {INDEX} names: {', '.join(absent[:5])}")
        return cls(name, repo, info.sha, folder, weight_map, sizes, discard)

    def identity(self) -> list[str]:
        return [f"{self.repo} {self.revision}"]

    def missing_bytes(self, shards: list[str]) -> tuple[Path, int]:
        absent = [self.sizes[s] for s in shards if not isinstance(self._cached(s), str)]
        held = (
            sorted(absent)[-3:] if self.discard else absent
        )  # one in use, one arriving, one that spans both
        return self.folder, sum(held)

    def prefetch(self, shard: str) -> None:
        if shard not in self._coming:
            self._coming[shard] = self._pool.submit(_download, self.repo, self.revision, shard)

    def fetch(self, shard: str) -> Path:
        self.prefetch(shard)
        return self._coming.pop(shard).result()

    def release(self, shard: str) -> None:
        """Delete a shard's copy in the cache, when that was asked for."""
        cached = self._cached(shard)
        if self.discard and isinstance(cached, str):
            link = Path(cached)
            blob = link.resolve()
            link.unlink(missing_ok=True)
            if Path(HF_HUB_CACHE).resolve() in blob.parents:
                blob.unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _cached(self, shard: str) -> object:
        return try_to_load_from_cache(self.repo, shard, revision=self.revision)


def _cached_folder(repo: str) -> Path:
    config = try_to_load_from_cache(repo, "config.json")
    if not isinstance(config, str):
        raise CloverError(f"{repo} is not in the cache and HF_HUB_OFFLINE is set", "download it while online")
    return Path(config).parent


def _download(repo: str, revision: str, name: str) -> Path:
    return Path(ask(repo, lambda: hf_hub_download(repo, name, revision=revision)))


def _from_headers(repo: str, revision: str, sizes: dict[str, int]) -> dict[str, str]:
    """The weight map of a repository without an index, from the shards' headers alone."""
    weight_map: dict[str, str] = {}
    for name in sorted(n for n in sizes if n.endswith(".safetensors") and "/" not in n):
        header = partial(HfApi().parse_safetensors_file_metadata, repo, name, revision=revision)
        weight_map |= dict.fromkeys(ask(repo, header).tensors, name)
    if not weight_map:
        raise ModelError(f"{repo} on the hub holds no safetensors files")
    return weight_map
