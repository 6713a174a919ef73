"""How often each expert was used, learned while running and kept beside the chats: most used first onto the card."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs

from clover_local.ggml.gguf import GgufFile
from clover_local.model.spec import Spec

HALF_LIFE = (
    20_000  # rows after which a use counts half: what a person does this week matters more than last month
)
FLOOR = 1e-3  # counts below are as good as none


def model_id(file: GgufFile, spec: Spec) -> str:
    """A model by its routers: all quantizations of one checkpoint share what is learned."""
    digest = hashlib.sha256()
    for layer in {0, spec.layers - 1}:
        digest.update(file.array(f"blk.{layer}.ffn_gate_inp.weight").tobytes())
    return digest.hexdigest()[:24]


def folder() -> Path:
    """Where counts are kept."""
    return Path(platformdirs.user_data_dir("clover-local")) / "usage"


@dataclass
class Usage:
    """Decayed counts of one model, float64 [layers, experts]; zeros where nothing is known."""

    counts: np.ndarray
    path: Path
    picks: int

    @classmethod
    def load(cls, key: str, spec: Spec) -> "Usage":
        """What is kept under a key; a file that is missing, broken or of another shape is as good as none."""
        path, shape = folder() / f"{key}.npy", (spec.layers, spec.experts)
        try:
            found = np.load(path, allow_pickle=False)
            good = found.shape == shape and found.dtype == np.float64 and np.isfinite(found).all()
        except (OSError, ValueError, EOFError):
            good = False
        counts = np.maximum(found, 0.0) if good else np.zeros(shape)
        return cls(counts, path, spec.experts_used)

    def add(self, fresh: np.ndarray) -> bool:
        """Count uses [layers, experts] made since the last call; False when there were none."""
        rows = float(fresh.sum(1).max()) / self.picks
        if rows == 0:
            return False
        self.counts = self.counts * 0.5 ** (rows / HALF_LIFE) + fresh
        self.counts[self.counts < FLOOR] = 0.0
        return True

    def order(self) -> np.ndarray:
        """Experts of each layer, most used first, int64 [layers, experts]; equals by their numbers."""
        return np.argsort(-self.counts, axis=1, kind="stable")

    def share(self, resident: np.ndarray) -> float | None:
        """Share of the uses that fall on the experts of a bool mask [layers, experts]; None without any use."""
        total = self.counts.sum()
        return float(self.counts[resident].sum() / total) if total > 0 else None

    def save(self) -> None:
        """Keep the counts; readers see the old file or the new one. An unwritable folder is no error."""
        fresh = self.path.with_suffix(f".{os.getpid()}.partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                np.save(file, self.counts, allow_pickle=False)
            fresh.replace(self.path)
        except OSError:  # learning again costs some answers at a lower speed, nothing else
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
