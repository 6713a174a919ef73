"""The runtime engine's verbs over the torch model: slow, exact, for tests of whatever stands on an engine.

It follows clover_local/runtime/engine.py verb for verb; passes read, only `commit`, `step` and `prefill` move
the state. Logits are processed by clover_local.model.processing.process, one row at a time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from clover_local.errors import ContextFullError
from clover_local.model.processing import Processing, Ramp, counts_of, process
from clover_local.runtime.rows import Rows

from . import model as M


@dataclass(frozen=True)
class Snapshot:
    """A state to come back to."""

    state: M.State
    tokens: tuple[int, ...]
    response: tuple[int, ...]


@dataclass(frozen=True)
class ReferenceSpec:
    """The few numbers of a checkpoint that decoding asks an engine for."""

    vocab: int
    mask_id: int
    block_size: int
    threshold: float
    eos_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    pad_id: int | None
    processing: Processing
    algorithm: str = "low_confidence"
    can_draft: bool = True


def read_spec(folder: Path) -> ReferenceSpec:
    """The decoding numbers of a checkpoint folder: config.json and generation_config.json."""
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    eos = generation.get("eos_token_id", config["eos_token_id"])
    eos_ids = tuple(eos) if isinstance(eos, list) else (eos,)
    pad = generation.get("pad_token_id")
    eos_ids = tuple(dict.fromkeys((*eos_ids, *generation.get("stop_token_ids", ()))))
    stops = dict.fromkeys((*eos_ids, *([] if pad is None else [pad])))
    processing = Processing(
        presence=generation.get("presence_penalty", 0.0),
        frequency=generation.get("frequency_penalty", 0.0),
        repetition=generation.get("repetition_penalty", 1.0),
        length=Ramp(
            generation.get("dllm_length_penalty", 0.0),
            generation.get("dllm_length_penalty_start", 8192),
            generation.get("dllm_length_penalty_window", 8192),
        ),
        think_end=Ramp(
            generation.get("dllm_think_end_bias", 0.0),
            generation.get("dllm_think_end_start", 4096),
            generation.get("dllm_think_end_window", 4096),
        ),
        think_end_id=generation.get("dllm_think_end_token_id"),
        stop_ids=tuple(stops),
    )
    return ReferenceSpec(
        vocab=config["vocab_size"],
        mask_id=config["mask_token_id"],
        block_size=config["block_size"],
        threshold=config["denoising_config"]["threshold"],
        eos_ids=eos_ids,
        stop_ids=tuple(stops),
        pad_id=pad,
        processing=processing,
    )


class ReferenceEngine:
    """State and passes of one conversation; token ids in, choices out."""

    def __init__(self, model: M.Model, spec: ReferenceSpec, n_ctx: int = 4096) -> None:
        self.model, self.spec, self.n_ctx = model, spec, n_ctx
        self.device_name, self.memory = "torch", dict[str, int]()
        self._processing: Processing | None = None
        self._verified: tuple[int, ...] = ()
        self.reset()

    @classmethod
    def open(cls, folder: Path, **options: int) -> "ReferenceEngine":
        """Load a checkpoint folder."""
        return cls(M.load(folder), read_spec(folder), **options)

    @property
    def n_past(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def reset(self) -> None:
        """Forget everything."""
        self._state = M.empty_state(self.model)
        self.tokens: tuple[int, ...] = ()
        self._response: tuple[int, ...] = ()

    def close(self) -> None:
        """Nothing to free."""

    def snapshot(self) -> Snapshot:
        """The present state; states are immutable, so this copies nothing."""
        return Snapshot(self._state, self.tokens, self._response)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        self._state, self.tokens, self._response = snapshot.state, snapshot.tokens, snapshot.response

    def begin_response(self, processing: Processing | None) -> None:
        """Start counting response tokens anew."""
        self._processing, self._response = processing, ()

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        cancelled: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows | None:
        """Commit a prompt in pieces of 64; the last row judges the first token of the answer."""
        rows = None
        for start in range(0, len(tokens), 64):
            if cancelled is not None and cancelled():
                return None
            piece = tokens[start : start + 64]
            logits = self._advance(piece)
            rows = self._rows(logits[-1:], [self._response])
            if progress is not None:
                progress(start + len(piece), len(tokens))
        return rows

    def step(self, token: int) -> Rows:
        """Commit one response token; its row judges the next."""
        logits = self._advance([token])
        self._response += (token,)
        return self._rows(logits, [self._response])

    @torch.inference_mode()
    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        """Row i predicts token i; masked rows hold the mask id."""
        self._room(len(tokens))
        logits = M.preview(self.model, self._state, torch.tensor([list(tokens)]))[0].numpy()
        written = [t for t in tokens if t != self.spec.mask_id]
        return self._rows(logits, [self._response] * len(tokens), step=1, block=written)

    @torch.inference_mode()
    def verify(self, tokens: Sequence[int]) -> Rows:
        """Row j judges token j + 1; nothing is committed."""
        self._room(len(tokens))
        logits = M.causal(self.model, self._state, torch.tensor([list(tokens)]))[0][0].numpy()
        self._verified = tuple(tokens)
        seen = [self._response + self._verified[: j + 1] for j in range(len(tokens))]
        return self._rows(logits, seen, following=self._verified[1:])

    def commit(self, r: int) -> None:
        """Commit the first r rows of the last verify."""
        self._advance(self._verified[:r])
        self._response += self._verified[:r]

    @torch.inference_mode()
    def _advance(self, tokens: Sequence[int]) -> np.ndarray:
        self._room(len(tokens))
        logits, self._state = M.causal(self.model, self._state, torch.tensor([list(tokens)]))
        self.tokens += tuple(tokens)
        return logits[0].numpy()

    def _room(self, rows: int) -> None:
        if self.n_past + rows > self.n_ctx:
            raise ContextFullError(f"{self.n_past} + {rows} tokens do not fit into a context of {self.n_ctx}")

    def _rows(
        self,
        logits: np.ndarray,
        responses: Sequence[Sequence[int]],
        *,
        step: int = 0,
        block: Sequence[int] = (),
        following: Sequence[int] | None = None,
    ) -> Rows:
        """Process each row with the response it has seen; `step` parts the positions of equal responses."""
        constants = self._processing or Processing()
        out = np.stack(
            [
                process(
                    row,
                    constants,
                    mask_id=self.spec.mask_id,
                    counts=counts_of(response),
                    position=len(response) + 1 + step * i,
                    think_closed=constants.think_end_id in response or constants.think_end_id in block,
                )
                for i, (row, response) in enumerate(zip(logits, responses, strict=True))
            ]
        )
        top = out.max(-1, keepdims=True)
        p = np.exp(out - top, dtype=np.float64)
        p /= p.sum(-1, keepdims=True)
        entropy, next_p = None, None
        if following is not None:
            entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1).astype(np.float32)
            picked = np.array([*following, 0])
            next_p = p[np.arange(len(p)), picked].astype(np.float32)
        return Rows(
            ids=out.argmax(-1).astype(np.int32),
            p=p.max(-1).astype(np.float32),
            entropy=entropy,
            next_p=next_p,
            logits=lambda: out,
        )
