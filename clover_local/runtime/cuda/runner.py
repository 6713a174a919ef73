"""Runs whole passes as captured graphs over an engine's weights and state. Token ids in, choices out.

It shares the ggml backend's context: weights are read where ggml put them, KV caches, rings and states are ggml's
tensors, so both can work on one conversation in turns, each after the other has finished.
"""

import ctypes as C
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clover_local.ggml.lib import Node
from clover_local.ggml.types import tensor_type
from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Kind, Model, State
from clover_local.model.spec import MAX_ROWS, Spec
from clover_local.model.weights import Weights
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda import passes
from clover_local.runtime.cuda.device import Device
from clover_local.runtime.cuda.network import (
    RESIDENT_WORDS,
    Addresses,
    Network,
    Place,
    StatePlaces,
    build,
    matrix_bytes,
    repoint,
    unsupported,
)
from clover_local.runtime.response import Response
from clover_local.runtime.rows import Rows

RESULT = np.dtype([("id", np.int32), ("p", np.float32), ("entropy", np.float32), ("next_p", np.float32)])
MAX_STOPS = 64


def why_not(model: Model) -> str | None:
    """Why an engine's model cannot run on the kernels, as the end of a sentence; None when it can."""
    name = model.backend.device.name
    if not name.startswith("CUDA"):
        return f"the device is {name}, not an NVIDIA card"
    kinds = {
        tensor_type(node.contents.type).name
        for state in model.state.attention.values()
        for node in (state.k, state.v)
    }
    reason = unsupported(model.spec, types_of(model), ", ".join(sorted(kinds)))
    if reason is None and model.weights.host is not None and model.weights.slots is None:
        return "some of its experts lie in the computer's memory"
    return reason


def ordinal(model: Model) -> int:
    """The number of the card that holds an engine's model."""
    return int("".join(c for c in model.backend.device.name if c.isdigit()) or 0)


def types_of(model: Model) -> dict[str, str]:
    """The type of every tensor of an engine's model, by its name in the file."""
    return {name: place.type for name, place in places_of(model.spec, model.weights).items()}


def places_of(spec: Spec, weights: Weights) -> dict[str, Place]:
    """Addresses of all tensors by their names in the file, merged ones taken apart again."""
    places = {name: Place(int(node.contents.data), _type(node)) for name, node in weights.nodes.items()}
    for names, node in weights.merged.items():
        kind, k = _type(node), int(node.contents.ne[0])
        sizes = [matrix_bytes(kind, k, rows) for rows in weights.parts[names]]
        offset = 0
        for name, size in zip(names, sizes, strict=True):
            stride = sum(sizes) if name.endswith("_exps.weight") else None
            places[name] = Place(int(node.contents.data) + offset, kind, stride)
            offset += size
    return places


def _type(node: Node) -> str:
    return tensor_type(int(node.contents.type)).name


def _state(state: State) -> StatePlaces:
    at = lambda node: int(node.contents.data)  # noqa: E731
    return StatePlaces(
        {layer: at(one.k) for layer, one in state.attention.items()},
        {layer: at(one.v) for layer, one in state.attention.items()},
        {layer: at(one.ring) for layer, one in state.gdn.items()},
        {layer: at(one.s) for layer, one in state.gdn.items()},
    )


class Runner:
    """The passes of one model on one card."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        """Raises CloverError when the kernels cannot be compiled or memory is short; see `why_not` first."""
        self.device = Device(ordinal(model))
        try:
            self._set_up(model, n_ctx)
        except BaseException:
            self.device.close()  # what was reserved before memory ran short
            raise

    def _set_up(self, model: Model, n_ctx: int) -> None:
        spec, slots = model.spec, model.weights.slots
        self.net: Network = build(
            spec,
            places_of(spec, model.weights),
            _state(model.state),
            self.device,
            n_ctx + MAX_ROWS,
            slots.addresses if slots is not None else None,
        )
        self._graphs: dict[tuple[str, int], Any] = {}
        self._host = self.device.pinned(
            C.sizeof(A.Pass) + C.sizeof(A.Processing) + A.MAX_ROWS * RESULT.itemsize
        )
        self._run, rest = np.split(self._host, [C.sizeof(A.Pass)])
        self._settings, self._results = np.split(rest, [C.sizeof(A.Processing)])
        self._tokens: list[int] = []
        self._restricted = False
        self.device.prepare(
            one for kind in Kind for width in passes.WIDTHS for one in self._launches(kind, width)
        )

    def _launches(self, kind: str, width: int) -> list[passes.Launch]:
        if kind == "commit":
            return passes.commit(self.net)
        if kind == Kind.PREVIEW:
            return passes.preview(self.net, width) if self.net.spec.can_draft else []
        return passes.causal(self.net, width, keep_state=kind == Kind.STORE)

    def _graph(self, kind: str, width: int) -> Any:
        if (kind, width) not in self._graphs:
            self._graphs[kind, width] = self.device.capture(self._launches(kind, width))
        return self._graphs[kind, width]

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        """Run a pass over `past` committed tokens; `past` + rows must fit into the context.

        A STORE pass has moved the state when this returns, and judges its last row.
        """
        n = len(tokens)
        graph = self._graph(kind, passes.width_for(n))
        self._tokens = list(tokens)
        self._send_run(past, replay=n, counted=response.counted, draft=draft)
        self._send_processing(response)
        self.device.replay(graph)
        self.device.fetch(self._results, self.net.work.results)
        self.device.finish()
        judged = slice(n - 1, n) if kind is Kind.STORE else slice(n)
        result = self._results.view(RESULT)[:n][judged].copy()
        return Rows(
            result["id"], result["p"], result["entropy"], result["next_p"], lambda: self._logits(n)[judged]
        )

    def restrict(self, resident: np.ndarray | None) -> None:
        """Let drafts use only some experts: bool [layers, experts]; None allows all."""
        self._restricted = resident is not None
        if resident is not None:
            words = np.zeros((len(resident), 32 * RESIDENT_WORDS), bool)
            words[:, : resident.shape[1]] = resident
            self.device.write(self.net.work.resident, np.packbits(words, axis=1, bitorder="little"))

    def repoint(self, layers: Iterable[int], addresses: Addresses) -> None:
        """Read the experts of these layers from where they lie now."""
        for layer in layers:
            repoint(self.net, self.device, layer, addresses)

    def gather(self, layer: int, targets: Sequence[int]) -> None:
        """Copy all experts of a layer side by side to addresses on the card: gate, up, down. Returns when done."""
        self.device.run(passes.stage(self.net, layer, targets))

    def usage(self) -> np.ndarray:
        """Rows of causal passes that picked each expert since the runner was made, uint32 [layers, experts]."""
        return self.device.read(self.net.work.usage, np.uint32, self.net.spec.layers, self.net.spec.experts)

    def commit(self, rows: int, past: int) -> None:
        """Replay the first rows of the last VERIFY pass into the state."""
        graph = self._graph("commit", MAX_ROWS)
        self._send_run(past, replay=rows, counted=False)
        self.device.replay(graph)
        self.device.finish()

    def _logits(self, rows: int) -> np.ndarray:
        return self.device.read(self.net.work.logits, np.float32, rows, self.net.spec.vocab)

    def _send_run(self, past: int, *, replay: int, counted: bool, draft: DraftSettings | None = None) -> None:
        padded = (C.c_int * A.MAX_ROWS)(*self._tokens)
        limits = (0, 0, 0)
        if draft is not None:
            limits = (draft.experts_used or 0, draft.budget or 0, int(self._restricted))
        run = A.Pass(len(self._tokens), past, replay, int(counted), *limits, padded)
        self._run[:] = np.frombuffer(bytes(run), np.uint8)
        self.device.send(self.net.work.run, self._run)

    def _send_processing(self, response: Response) -> None:
        spec, work = self.net.spec, self.net.work
        constants = A.Processing(
            repetition=1.0, think_id=-1, mask_id=-1 if spec.mask_id is None else spec.mask_id
        )
        settings = response.settings
        if settings is not None:
            if settings.penalizes:
                counts = dict(response.counts or {})
                for token in self._tokens if response.counted else ():
                    counts.setdefault(token, 0)
                constants.presence, constants.frequency = settings.presence, settings.frequency
                constants.repetition, constants.seen = settings.repetition, len(counts)
                if counts:
                    self.device.write(work.seen, np.fromiter(counts.keys(), np.int32, len(counts)))
                    self.device.write(work.counts, np.fromiter(counts.values(), np.int32, len(counts)))
            if settings.stop_ids and any(response.length_bias):
                constants.stops = len(settings.stop_ids[:MAX_STOPS])
                constants.length_bias[: len(response.length_bias)] = response.length_bias
                self.device.write(work.stop_ids, np.array(settings.stop_ids[:MAX_STOPS], np.int32))
            if settings.think_end_id is not None and any(response.think_bias):
                constants.think_id = settings.think_end_id
                constants.think_bias[: len(response.think_bias)] = response.think_bias
        self._settings[:] = np.frombuffer(bytes(constants), np.uint8)
        self.device.send(work.processing, self._settings)

    def close(self) -> None:
        """Free scratch, graphs and modules; the engine's weights and state stay."""
        self.device.close()
