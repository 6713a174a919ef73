"""The engine: the committed state of one conversation and the passes over it. Token ids in, choices out.

The one rule: passes never change the state; only `commit` does (prefill and step are a pass and its commit in
one). So a pass that is cancelled, fails or is simply not wanted loses nothing. It knows no text.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clover_local.errors import CardFullError, CloverError, ContextFullError
from clover_local.ggml.backend import Backend, Device, choose_device, clear, download, upload
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import dequantize
from clover_local.model import weights as weights_module
from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Constants, Kind, Model, State, new_constants, new_state
from clover_local.model.processing import Processing
from clover_local.model.spec import CONV_TAPS, MAX_ROWS, Spec
from clover_local.model.weights import Weights
from clover_local.runtime.fitting import Wish, fit
from clover_local.runtime.graphs import KV_STEP, GraphRunner, Runner
from clover_local.runtime.kernels import attach, likely, prove
from clover_local.runtime.placement import SWAP_BYTES, Placement
from clover_local.runtime.plan import KEPT_ROWS, PLACED_ROWS, Plan, sizes_of
from clover_local.runtime.remembered import VERSIONS, file_identity
from clover_local.runtime.response import Counts, response_of
from clover_local.runtime.rows import Rows
from clover_local.runtime.staging import Staging
from clover_local.runtime.usage import Usage, model_id

DEFAULT_CONTEXT = 32768
SMALL_MODEL = 64 << 20  # bytes
PREFILL_ROWS = (512, 256, 128, 64, 32)
SHORT_REST = 128
GPU_MOE_CHUNK = 8  # above 8 rows ggml's CUDA kernel for expert products is four times slower


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state after `tokens`: GDN rings and states of every layer, float32, on the host."""

    tokens: tuple[int, ...]
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]


def context_size(spec: Spec, n_ctx: int | None) -> int:
    """The context asked for, or the default one; raises CloverError for one the model cannot have."""
    wanted = n_ctx if n_ctx is not None else min(spec.context_length, DEFAULT_CONTEXT)
    if not 1 <= wanted <= spec.context_length:
        raise CloverError(
            f"a context of {wanted} tokens is not possible: the model takes 1 to {spec.context_length}",
            "choose another --ctx-size",
        )
    return wanted


def default_threads(weights: int | None = None) -> int:
    """Threads for the CPU backend: all cores of a small machine, half of many (the rest are hyperthreads).

    One for a model of less than 64 MiB of `weights`, whose operations end sooner than threads can meet.
    """
    if weights is not None and weights < SMALL_MODEL:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if cores <= 4 else cores // 2


class Engine:
    """One model on one device with the state of one conversation. Not thread-safe.

    `note` is a sentence about what was expected and is not used (our own kernels, say), or None.
    """

    def __init__(
        self,
        model: Model,
        file: GgufFile,
        n_ctx: int,
        threads: int = 1,
        use: str = "",
        usage: Usage | None = None,
    ) -> None:
        self.spec: Spec = model.spec
        self.n_ctx = n_ctx
        self.threads = threads
        self._use = use
        self.file = file
        self._model = model
        self._tokens: list[int] = []
        self._cached: list[int] = []  # whose K and V the cache holds; begins with the committed
        self._verified: list[int] = []
        self._graphs = GraphRunner(model, n_ctx)
        try:
            self._kernels, self.note = attach(model, n_ctx, self._graphs)
        except CardFullError:
            self._graphs.close()
            raise
        self._verifier: Runner = self._graphs  # whose scratch the next commit replays
        self._drafts = DraftSettings()
        self._processing: Processing | None = None
        self._counts = Counts()
        self._counting = False
        self._placement: Placement | None = None
        if model.weights.slots is not None and self._kernels is not None:
            self._graphs.close()  # those of the self-check: from here on only long prompts need any
            usage = usage or Usage.load(model_id(file, model.spec), model.spec)
            self._placement = Placement(model.weights.slots, usage, self._kernels.runner)
            with suppress(CardFullError):  # then ggml's scheduler brings the experts, all of them each time
                self._graphs.stage(Staging(model, self._kernels.runner.gather))
            self._draft_from_card()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        n_ctx: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        kv_type_k: str = "f16",
        kv_type_v: str = "f16",
        vram: int | None = None,
        host_layers: int | None = None,
        slots: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Engine":
        """Open a GGUF on a device.

        `n_ctx` tokens of context (default: the model's, at most 32,768), `device` as in `choose_device`. On a GPU
        a card of `vram` bytes is assumed (default: what is free); when not all fits there, single experts stay in
        the computer's memory for our kernels to read (`slots` asks for that many of each layer on the card), or
        else the experts of `host_layers` layers stay with the CPU (default: as few as needed). `progress(done,
        total)` in bytes while weights are loaded. Raises ModelError for a bad file and CloverError when it does
        not fit.
        """
        file = GgufFile.open(path)
        spec = Spec.from_gguf(file)
        wanted = context_size(spec, n_ctx)
        where, kinds = choose_device(device), (kv_type_k, kv_type_v)

        def build(placed: Plan | None) -> "Engine":
            return cls._build(file, spec, wanted, where, kinds, threads, placed, progress)

        if not where.is_gpu:
            return build(None)
        types = {name: info.type.name for name, info in file.tensors.items()}
        sizes = sizes_of(file, spec, wanted, kinds, own_kernels=likely(where, spec, types, kinds))
        wish = Wish(vram, host_layers, slots)
        engine, given_up = fit(sizes, where, wanted, wish, build, refused=cls._unplaceable)
        engine.note = "; ".join(filter(None, (given_up, engine.note))) or None
        return engine

    def _unplaceable(self) -> str | None:
        """Close an engine whose experts are placed one by one if our kernels do not run it; says why not."""
        if self._placement is not None:
            return None
        self.close()
        return self.note or "our own kernels are off"

    @classmethod
    def _build(
        cls,
        file: GgufFile,
        spec: Spec,
        n_ctx: int,
        where: Device,
        kv_types: tuple[str, str],
        threads: int | None,
        placed: Plan | None,
        progress: Callable[[int, int], None] | None,
    ) -> "Engine":
        threads = threads or default_threads(sum(info.nbytes for info in file.tensors.values()))
        backend = Backend(where, threads)
        owned: list[Weights | Constants | State] = []
        host_layers, slots = (placed.host_layers, placed.slots) if placed else (frozenset[int](), ())
        usage = Usage.load(model_id(file, spec), spec) if slots else None
        host = None
        try:
            mixed = bool(host_layers or slots)
            host = Backend(choose_device("cpu"), threads) if mixed else None
            backend.mixed = mixed
            order = usage.order() if usage else None
            weights = weights_module.load(file, spec, backend, progress, host_layers, slots, order)
            owned.append(weights)
            conv = {
                layer: _floats(file, f"blk.{layer}.ssm_conv1d.weight").reshape(spec.channels, CONV_TAPS)
                for layer in spec.gdn_layers
            }
            constants = new_constants(spec, backend, conv)
            owned.append(constants)
            state = new_state(spec, backend, -(-n_ctx // KV_STEP) * KV_STEP, kv_types)
            owned.append(state)
            chunk = None if backend.is_cpu else GPU_MOE_CHUNK
            use = repr((threads, kv_types, sorted(host_layers), slots))
            model = Model(spec, weights, constants, state, backend, chunk, host)
            return cls(model, file, n_ctx, threads, use, usage)
        except CloverError:
            for one in (*owned, backend, host):
                if one is not None:
                    one.close() if isinstance(one, Backend) else one.free()
            raise

    # --- what is committed -------------------------------------------------------------------------------

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens the state stands on."""
        return tuple(self._tokens)

    @property
    def n_past(self) -> int:
        """How many tokens are committed."""
        return len(self._tokens)

    @property
    def device_name(self) -> str:
        device = self._model.backend.device
        return device.description if device.is_gpu else "CPU"

    @property
    def identity(self) -> str:
        """Whatever decides how long passes take: the file, the device, how both are used, and by which code."""
        own = self._kernels
        kernels = None if own is None else (own.key, sorted(own.wins))
        context = (self.n_ctx - 1).bit_length()  # twice the context is another machine, a bit more is not
        return repr(
            (
                file_identity(self.file.path),
                self.device_name,
                self._use,
                context,
                kernels,
                VERSIONS,
                self._drafts,
            )
        )

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by class: weights, state (KV, GDN, scratch) and the graphs built so far."""
        model = self._model
        slots = model.weights.slots
        buffers = (model.weights.buffer, slots.buffer if slots is not None else None)
        weights = sum(one.size for one in buffers if one is not None)
        return {
            "weights": weights,
            "state": model.state.buffer.size,
            "graphs": self._graphs.bytes,
        }

    @property
    def graph_nodes(self) -> dict[tuple[str, int], int]:
        """Nodes of the graphs built so far, by kind of pass and rows; the latest of several."""
        return self._graphs.nodes

    @property
    def drafts(self) -> DraftSettings:
        """How cheap `preview(..., draft=True)` is."""
        return self._drafts

    @drafts.setter
    def drafts(self, settings: DraftSettings) -> None:
        settings.check(self.spec)
        self._drafts = settings

    def check_kernels(self) -> str | None:
        """Compare our kernels with ggml's graphs anew, whatever is remembered; the result for people.

        Forgets what was committed. None where nobody expects kernels.
        """
        if self._kernels is None:
            return self.note
        self.reset()
        outcome = prove(self._model, self.n_ctx, self._graphs, self._kernels.runner, anew=True)
        return outcome.sentence

    def restrict_drafts(self, resident: np.ndarray | None) -> None:
        """Let drafts use only some experts: bool [layers, experts], at least one a layer; None allows all.

        No other pass changes. For experts that are on the card, or those a conversation uses most.
        """
        if resident is not None:
            shape = (self.spec.layers, self.spec.experts)
            if resident.shape != shape or not resident.any(1).all():
                raise ValueError(
                    f"drafts need a bool mask of {shape} with at least one expert in every layer"
                )
        self._graphs.restrict(resident)
        if self._kernels is not None:
            self._kernels.runner.restrict(resident)

    def reset(self) -> None:
        """Forget everything that was committed."""
        self._model.backend.synchronize()
        for state in self._model.state.gdn.values():
            clear(state.ring)
            clear(state.s)
        self._tokens, self._cached, self._verified = [], [], []
        self._counting = False

    def snapshot(self) -> Snapshot:
        """Copy what a recurrent state cannot rewind."""
        self._model.backend.synchronize()
        layers = tuple(
            (download(state.ring, np.float32), download(state.s, np.float32))
            for state in self._model.state.gdn.values()
        )
        return Snapshot(self.tokens, layers)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot whose tokens still begin the cache; raises CloverError otherwise."""
        n = len(snapshot.tokens)
        if tuple(self._cached[:n]) != snapshot.tokens:
            raise CloverError("the snapshot belongs to other tokens than the cache holds")
        self._model.backend.synchronize()
        for state, (ring, s) in zip(self._model.state.gdn.values(), snapshot.layers, strict=True):
            upload(state.ring, ring)
            upload(state.s, s)
        self._tokens = list(snapshot.tokens)
        self._verified = []

    def begin_response(self, processing: Processing | None = None) -> None:
        """Start counting: tokens that `step` and `commit` add from now on are the response.

        `processing` gives the penalties and ramps (its token ids must be the file's); None only keeps the
        mask token from being chosen.
        """
        active = processing is not None and processing.active
        self._processing = processing if active else None
        self._counts, self._counting = Counts(), True
        self.adapt()

    def adapt(self, limit: int | None = SWAP_BYTES) -> int:
        """Give the experts used most since the last answers places on the card; returns the bytes moved (0 without
        a placement). Done by `begin_response`; `limit` None moves all that is worth it."""
        moved = self._placement.adapt(limit) if self._placement is not None else 0
        if moved:
            self._draft_from_card()
        return moved

    @property
    def placement(self) -> Placement | None:
        """Which experts are on the card, where not all are."""
        return self._placement

    def _draft_from_card(self) -> None:
        """Have drafts use the experts on the card only, so that they never wait for the link."""
        assert self._placement is not None
        resident = self._placement.resident
        self.restrict_drafts(resident if resident.any(1).all() and not resident.all() else None)

    # --- passes ------------------------------------------------------------------------------------------

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        cancelled: Callable[[], bool] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows | None:
        """Commit tokens that are not part of a response; returns the choice of the last one.

        Runs in pieces of up to 512 rows (2,048 with a placement); `cancelled` is asked between them, and when it
        says yes None is returned and the pieces done so far stay committed (see `n_past`).
        """
        if not tokens:
            raise CloverError("there is nothing to prefill: the prompt is empty")
        self._need(len(tokens))
        done, rows = 0, None
        while done < len(tokens):
            if cancelled is not None and cancelled():
                return None
            left = len(tokens) - done
            size = self._piece(left)
            rows = self._store(tokens[done : done + size], response=False)
            done += size
            if progress is not None:
                progress(done, len(tokens))
        return rows

    def step(self, token: int) -> Rows:
        """Commit one token of the response; the returned row judges the token after it."""
        self._need(1)
        return self._store([token], response=True)

    def preview(self, tokens: Sequence[int], *, draft: bool = False) -> Rows:
        """Look at a block [rows] over the state, mask tokens in place; row i judges token i itself.

        `draft` says that the result is only a proposal, made as `drafts` says, and that the first token is
        known: that row is not judged. A block that begins with a mask is never a draft.
        """
        if not self.spec.can_draft:
            raise CloverError(f"{self.file.path} holds no preview weights, so it cannot draft or denoise")
        self._need(len(tokens))
        proposal = self._drafts if draft and list(tokens[:1]) != [self.spec.mask_id] else None
        return self._run(Kind.PREVIEW, tokens, response=False, draft=proposal)

    def verify(self, tokens: Sequence[int]) -> Rows:
        """Judge tokens [rows] causally without committing them; row j judges token j + 1."""
        self._need(len(tokens))
        rows = self._run(Kind.VERIFY, tokens, response=True)
        self._verified = list(tokens)
        return rows

    def warm(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Build the graphs that the next answer will want, for idle time; returns how many were built.

        Those of the latest passes (before any draft: of a usual answer) for this context and for the next one that
        needs other graphs, so that nothing stalls there. `stop` is asked between two. Nothing is committed, and
        no more memory taken than a plan counts on.
        """
        built, shapes = 0, self._graphs.shapes()
        if not any(kind is Kind.VERIFY for kind, _, _ in shapes):
            shapes = list(dict.fromkeys((*shapes, *self._usual_passes())))
        for kind, rows, draft in shapes:
            if self._runner(kind, rows) is not self._graphs:
                continue
            for past in (self.n_past, self._graphs.next_bucket(self.n_past, rows)):
                if past is None or past + rows > self.n_ctx:
                    continue
                if stop() or self._graphs.rows + rows > KEPT_ROWS:
                    return built
                built += self._warm(kind, rows, past, draft)
        return built

    def _usual_passes(self) -> list[tuple[Kind, int, DraftSettings | None]]:
        drafts = [(Kind.PREVIEW, rows, self._drafts) for rows in (4, 8, 16)] if self.spec.can_draft else []
        judged = [(Kind.VERIFY, rows, None) for rows in (2, 4, 8, 16)] if drafts else []
        return [(Kind.STORE, 1, None), *drafts, *judged]

    def _warm(self, kind: Kind, rows: int, past: int, draft: DraftSettings | None) -> bool:
        """Build one graph; a GPU records a pass in its second run, and only the first of a kind may be run idly."""
        tokens = [0] * rows
        inputs = response_of(
            self._answer_processing, Counts(), kind, tokens, answers=kind is not Kind.PREVIEW
        )
        if not self._graphs.prepare(kind, rows, past, inputs, draft):
            return False
        if kind is not Kind.STORE and not self._model.backend.is_cpu:
            del self._cached[self.n_past :]  # the pass writes beyond what is committed
            self._verified = []
            for _ in range(2):
                self._graphs.run(kind, tokens, past, inputs, draft)
        return True

    @property
    def _answer_processing(self) -> Processing | None:
        own = self.spec.processing
        return self._processing if self._counting else own if own.active else None

    def routing(self, tokens: Sequence[int], *, draft: bool = False) -> np.ndarray:
        """The experts a verify (or draft) of tokens would use: int32 [layers, rows, experts of a row], best first.

        A pass of its own, on ggml's graphs; nothing is committed. For measuring.
        """
        self._need(len(tokens))
        kind = Kind.PREVIEW if draft else Kind.VERIFY
        return self._graphs.routing(kind, tokens, self.n_past, self._drafts if draft else None)

    def commit(self, rows: int) -> None:
        """Commit the first `rows` tokens of the last `verify`, which no other pass may have followed."""
        if not 1 <= rows <= len(self._verified):
            raise CloverError(f"cannot commit {rows} rows: the last pass verified {len(self._verified)}")
        self._verifier.commit(rows, self.n_past)
        if self._kernels is not None and self._verifier is self._graphs:
            self._model.backend.synchronize()  # the kernels' stream does not wait for what ggml has queued
        self._advance(self._verified[:rows], response=True)

    def _need(self, rows: int) -> None:
        if self.n_past + rows > self.n_ctx:
            raise ContextFullError(
                f"{self.n_past} tokens and {rows} more do not fit into the context of {self.n_ctx}",
                "use a larger --ctx-size or a shorter conversation",
            )

    def _store(self, tokens: Sequence[int], *, response: bool) -> Rows:
        rows = self._run(Kind.STORE, tokens, response=response)
        self._advance(tokens, response=response)
        return rows

    def _advance(self, tokens: Sequence[int], *, response: bool) -> None:
        self._tokens.extend(tokens)
        self._cached.extend(tokens)
        self._verified = []
        if not (response and self._counting):
            return
        for token in tokens:
            self._counts.add(token)

    def _run(
        self, kind: Kind, tokens: Sequence[int], *, response: bool, draft: DraftSettings | None = None
    ) -> Rows:
        n = len(tokens)
        limit = self._piece(PLACED_ROWS) if kind is Kind.STORE else MAX_ROWS
        if not 1 <= n <= limit:
            raise CloverError(f"a {kind} pass takes 1 to {limit} rows, not {n}")
        if min(tokens) < 0 or max(tokens) >= self.spec.vocab:
            raise CloverError(f"a token id lies outside the vocabulary of {self.spec.vocab}")
        del self._cached[self.n_past :]  # the pass overwrites what lies beyond
        self._verified = []
        inputs = response_of(self._processing, self._counts, kind, tokens, answers=response)
        runner = self._runner(kind, n)
        if kind is Kind.VERIFY:
            self._verifier = runner
        return runner.run(kind, tokens, self.n_past, inputs, draft)

    def _piece(self, left: int) -> int:
        """Rows of the next piece of a prompt. With a placement a large one brings all experts, so short rests are
        left to our kernels, which read only what is used."""
        if self._placement is not None:
            return min(left, MAX_ROWS if left <= SHORT_REST else PLACED_ROWS)
        return next((n for n in PREFILL_ROWS if n <= left), left)

    def _runner(self, kind: Kind, rows: int) -> Runner:
        own = self._kernels
        return own.runner if own is not None and own.take(kind, rows) else self._graphs

    def close(self) -> None:
        """Free everything on the device; the engine is of no use afterwards."""
        if self._placement is not None:
            self._placement.learn()
        if self._kernels is not None:
            self._kernels.runner.close()
        self._graphs.close()
        model = self._model
        model.state.free()
        model.constants.free()
        model.weights.free()
        model.backend.close()
        if model.host is not None:
            model.host.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _floats(file: GgufFile, name: str) -> np.ndarray:
    info = file.tensors[name]
    return dequantize(info.type.name, file.array(name), info.shape[0])
