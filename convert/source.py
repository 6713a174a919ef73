"""Where a checkpoint's files come from: a local folder here, the hub in hub.py; both look alike to the rest.

A source knows which shard holds which tensor before any shard is opened, hands shards out one after the other
and takes them back when nothing more is needed of them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clover_local.convert.files import read_object
from clover_local.convert.shards import Shard
from clover_local.errors import ModelError

INDEX = "model.safetensors.index.json"
_PLAIN = re.compile(r"[\w][\w.+-]*\.safetensors")


class Source(Protocol):
    """One checkpoint."""

    @property
    def name(self) -> str:
        """What the model is called."""
        ...

    @property
    def repo(self) -> str | None:
        """The hub id, where it has one."""
        ...

    @property
    def folder(self) -> Path:
        """Where its small files lie."""
        ...

    @property
    def weight_map(self) -> dict[str, str]:
        """The shard of every tensor by its name in the checkpoint."""
        ...

    def identity(self) -> list[str]:
        """What tells this checkpoint from another one, so that only its own conversion is resumed."""
        ...

    def missing_bytes(self, shards: list[str]) -> tuple[Path, int]:
        """The folder downloads go to and how much is still to be fetched."""
        ...

    def prefetch(self, shard: str) -> None:
        """Begin to fetch a shard in the background."""
        ...

    def fetch(self, shard: str) -> Path:
        """The path of a shard, complete on this machine."""
        ...

    def release(self, shard: str) -> None:
        """Nothing more is needed of this shard; only downloads are ever deleted."""
        ...

    def close(self) -> None:
        """Stop whatever runs in the background."""
        ...


def read_index(path: Path) -> dict[str, str]:
    """The weight map of an index file: names of tensors to plain names of shards."""
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path} has no 'weight_map'")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _PLAIN.fullmatch(shard):
            raise ModelError(
                f"{path}: {str(shard)[:80]!r}, the file of tensor {name[:80]!r}, is not a safetensors name"
            )
    return weight_map


@dataclass(frozen=True)
class LocalSource:
    """A checkpoint folder on this machine."""

    name: str
    folder: Path
    weight_map: dict[str, str]
    repo: str | None = None

    @classmethod
    def open(cls, folder: Path, name: str | None = None, repo: str | None = None) -> "LocalSource":
        """Find the shards; all that are missing are named together."""
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} holds no config.json, so it is no Hugging Face checkpoint")
        index = folder / INDEX
        if index.is_file():
            weight_map = read_index(index)
        else:
            weight_map = _from_headers(folder)
        absent = sorted({shard for shard in weight_map.values() if not (folder / shard).is_file()})
        if absent:
            raise ModelError(
                f"{folder} lacks {len(absent)} of the files that {INDEX} names: {', '.join(absent[:5])}"
                + (" …" if len(absent) > 5 else ""),
                "download the checkpoint again; finished files are kept",
            )
        return cls(name or folder.resolve().name, folder, weight_map, repo)

    def identity(self) -> list[str]:
        shards = sorted(set(self.weight_map.values()))
        stats = [(shard, (self.folder / shard).stat()) for shard in shards]
        return [f"{shard} {s.st_size} {s.st_mtime_ns}" for shard, s in stats]

    def missing_bytes(self, shards: list[str]) -> tuple[Path, int]:
        return self.folder, 0

    def prefetch(self, shard: str) -> None:
        """A local shard is already here."""

    def fetch(self, shard: str) -> Path:
        return self.folder / shard

    def release(self, shard: str) -> None:
        """A user's own file is never deleted."""

    def close(self) -> None:
        """Nothing runs in the background."""


def _from_headers(folder: Path) -> dict[str, str]:
    """The weight map of a folder without an index, from the headers of its safetensors files."""
    weight_map: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        shard = Shard.open(path)
        shard.close()
        for name in shard.entries:
            if name in weight_map:
                raise ModelError(
                    f"{folder}: the tensor {name} is both in {weight_map[name]} and in {path.name}"
                )
            weight_map[name] = path.name
    if not weight_map:
        raise ModelError(f"{folder} holds no safetensors files", "only safetensors checkpoints are converted")
    return weight_map
