"""Runs passes as ggml graphs: kept by key, filled, computed, read. The portable runner, and the kernels' oracle."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from clover_local.ggml.backend import download, upload
from clover_local.ggml.graph import Graph
from clover_local.model.draft import DraftSettings
from clover_local.model.experts import FAR
from clover_local.model.passes import FORBIDDEN, Kind, Model, Pass, PassKey, build_commit, build_pass
from clover_local.model.spec import MAX_ROWS
from clover_local.runtime.plan import KEPT_LARGE
from clover_local.runtime.response import Counts, Response
from clover_local.runtime.rows import Rows
from clover_local.runtime.staging import Staging

KV_STEP = 256  # llama.cpp pads its cache views to this too
KEPT_PASSES = 32  # graphs kept alive; the least recently used goes first


class Runner(Protocol):
    """Whoever computes passes over an engine's weights and state."""

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        """Run a pass over `past` committed tokens; a STORE pass has moved the state and judges its last row.

        `draft` makes a preview a draft: it may use fewer experts, those of `restrict` only, and need not judge
        its first row, whose token is known. None is an exact preview.
        """
        ...

    def restrict(self, resident: np.ndarray | None) -> None:
        """Let drafts use only some experts: bool [layers, experts]; None allows all. Never changes other passes."""
        ...

    def commit(self, rows: int, past: int) -> None:
        """Replay the first rows of the last VERIFY pass into the state."""
        ...

    def close(self) -> None:
        """Free what the runner owns; weights and state are the engine's."""
        ...


def kv_bucket(need: int, n_ctx: int, rows: int = 1) -> int:
    """Rows of the cache a graph looks at: at least `need`, coarse enough that graphs are reused.

    Passes of many rows double their view: building a graph costs more there than looking at masked rows.
    """
    if rows > MAX_ROWS:
        return min(max(KV_STEP, 1 << (need - 1).bit_length()), n_ctx)
    step = max(KV_STEP, 1 << max(need.bit_length() - 3, 0))
    return min(-(-need // step) * step, n_ctx)


class GraphRunner:
    """The passes of one model as ggml graphs, one object per key."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        self._model = model
        self._n_ctx = n_ctx
        self._kv_rows = -(-n_ctx // KV_STEP) * KV_STEP
        self._passes: OrderedDict[PassKey, Pass] = OrderedDict()
        self._commits: dict[int, Graph] = {}
        self._restricted = False
        self._counts: dict[int, int] = {}  # as the device's tensor holds them
        self._followed: list[int] | None = None  # the response that they are of, and how much of it
        self._applied = 0
        self._staging: Staging | None = None

    def stage(self, staging: Staging) -> None:
        """Compute long prefills over experts that are brought together layer by layer; freed with the graphs."""
        self._staging = staging

    def run(
        self,
        kind: Kind,
        tokens: Sequence[int],
        past: int,
        response: Response,
        draft: DraftSettings | None = None,
    ) -> Rows:
        """Build the pass's graph where there is none, fill it, compute it, and queue its few numbers."""
        one = self._pass(self._key(kind, len(tokens), past, response, draft))
        self._compute(one, tokens, past, response)
        return self._rows(one, tokens[: one.key.first_judged] if draft is not None else ())

    def _key(
        self, kind: Kind, rows: int, past: int, response: Response, draft: DraftSettings | None
    ) -> PassKey:
        kv = kv_bucket(past + rows, self._kv_rows, rows)
        return PassKey(kind, rows, kv, response.settings, draft, draft is not None and self._restricted)

    def routing(
        self, kind: Kind, tokens: Sequence[int], past: int, draft: DraftSettings | None = None
    ) -> np.ndarray:
        """The experts that a pass sends each row to, int32 [layers, rows, experts of a row], best first."""
        spec, n = self._model.spec, len(tokens)
        one = build_pass(self._model, replace(self._key(kind, n, past, Response(), draft), observed=True))
        self._compute(one, tokens, past, Response())
        self._model.backend.synchronize()
        order = np.stack([download(node, np.int32).reshape(n, spec.experts) for node in one.routed])
        one.graph.free()
        return order[:, :, : draft.picks(spec) if draft is not None else spec.experts_used]

    def _compute(self, one: Pass, tokens: Sequence[int], past: int, response: Response) -> None:
        self._fill(one, tokens, past)
        if response.settings is not None:
            self._fill_processing(one, tokens, response)
        if self._staging is not None and one.key.rows > MAX_ROWS:
            self._staging.compute(one.graph)
            self._model.backend.synchronize()
        else:
            one.graph.compute()
            one.graph.synchronize()

    def restrict(self, resident: np.ndarray | None) -> None:
        """Allow drafts only some experts; see Runner."""
        allowed = self._model.constants.allowed
        self._restricted = resident is not None and allowed is not None
        if resident is not None and allowed is not None:
            self._model.backend.synchronize()
            upload(allowed, np.where(resident, 0.0, -FAR).astype(np.float32))

    def commit(self, rows: int, past: int) -> None:
        """Replay rows; the graph is queued and later passes wait for it."""
        if rows not in self._commits:
            self._commits[rows] = build_commit(self._model, rows)
        self._commits[rows].compute()

    def shapes(self) -> list[tuple[Kind, int, DraftSettings | None]]:
        """The passes of answers (prefills are none) that were run lately, the latest first."""
        keys = (key for key in reversed(self._passes) if key.kind is not Kind.STORE or key.rows == 1)
        return list(dict.fromkeys((key.kind, key.rows, key.draft) for key in keys))

    def prepare(
        self, kind: Kind, rows: int, past: int, response: Response, draft: DraftSettings | None
    ) -> bool:
        """Build a pass's graph where there is none; True if there was none. It is not run."""
        key = self._key(kind, rows, past, response, draft)
        if key in self._passes:
            return False
        self._pass(key)
        return True

    def next_bucket(self, past: int, rows: int) -> int | None:
        """The least context at which a pass of these rows needs another graph than at `past`; None for none."""
        after = kv_bucket(past + rows, self._kv_rows, rows) + 1 - rows
        return after if after + rows <= self._n_ctx else None

    @property
    def bytes(self) -> int:
        """Memory of the graphs built so far."""
        return sum(one.bytes for one in self._passes.values())

    @property
    def rows(self) -> int:
        """Rows that the kept graphs judge, each with logits of its own."""
        return sum(key.rows - key.first_judged for key in self._passes)

    @property
    def nodes(self) -> dict[tuple[str, int], int]:
        """Nodes to compute by (kind, rows)."""
        sizes = {(str(key.kind), key.rows): one.graph.size for key, one in self._passes.items()}
        return sizes | {("commit", rows): graph.size for rows, graph in self._commits.items()}

    def close(self) -> None:
        """Free all graphs."""
        for one in self._passes.values():
            one.graph.free()
        for graph in self._commits.values():
            graph.free()
        self._passes.clear()
        self._commits.clear()
        if self._staging is not None:
            self._staging.free()
            self._staging = None

    def _pass(self, key: PassKey) -> Pass:
        one = self._passes.pop(key, None)
        if one is None:
            large = [old for old in self._passes if old.rows > MAX_ROWS < key.rows]
            kept = 1 if self._model.host is not None else KEPT_LARGE  # they take memory
            oldest = list(self._passes)[: max(len(self._passes) - KEPT_PASSES + 1, 0)]
            for old in {*large[: max(len(large) - kept + 1, 0)], *oldest}:
                self._passes.pop(old).graph.free()
            staged = self._staging is not None and key.rows > MAX_ROWS
            one = build_pass(self._staging.model if self._staging and staged else self._model, key)
        self._passes[key] = one
        return one

    def _fill(self, one: Pass, tokens: Sequence[int], past: int) -> None:
        key, n, send = one.key, len(tokens), self._model.backend.send
        places = np.arange(past, past + n)
        send(one.inputs.tokens, np.asarray(tokens, np.int32))
        send(one.inputs.positions, places.astype(np.int32))
        send(one.inputs.kv_rows, places.astype(np.int64))
        mask = np.full((n, key.kv), -np.inf, np.float16)
        mask[:, :past] = 0
        inside = np.ones((n, n), bool) if key.kind is Kind.PREVIEW else np.tri(n, dtype=bool)
        mask[:, past : past + n][inside] = 0
        send(one.inputs.mask, mask)
        if one.next_ids is not None:
            send(one.next_ids, np.asarray([*tokens[1:], tokens[-1]], np.int32))

    def _fill_processing(self, one: Pass, tokens: Sequence[int], response: Response) -> None:
        send, inputs = self._model.backend.send, one.processed
        judged = len(tokens) - one.key.first_judged
        if inputs.length_bias is not None:
            send(inputs.length_bias, np.asarray(response.length_bias[-judged:], np.float32))
        if inputs.think_bias is not None:
            send(inputs.think_bias, np.asarray(response.think_bias[-judged:], np.float32))
        if response.settings is not None and response.settings.penalizes:
            self._count(response.counts)
        if inputs.cells is not None and inputs.times is not None:
            cells, times = _cells(tokens, response, judged)
            send(inputs.cells, cells)
            send(inputs.times, times)

    def _count(self, counts: Mapping[int, int]) -> None:
        """Bring the device's counts up to date; of the response it follows already only what is new."""
        if isinstance(counts, Counts) and counts.log is self._followed:
            changed = set(counts.log[self._applied :])
        else:
            changed = {*counts, *self._counts}
        for token in changed:
            times = counts.get(token, 0)
            if times != self._counts.get(token, 0):
                upload(self._model.state.counts, np.array([times], np.float32), 4 * token)
                self._counts[token] = times
        if isinstance(counts, Counts):
            self._followed, self._applied = counts.log, len(counts.log)
        else:
            self._followed = None

    def _rows(self, one: Pass, known: Sequence[int]) -> Rows:
        """The judged rows, and before them those whose tokens are `known`, as certain as can be."""
        backend, vocab = self._model.backend, self._model.spec.vocab

        def logits() -> np.ndarray:
            values = download(one.logits, np.float32).reshape(-1, vocab)
            values[values < FORBIDDEN / 2] = -np.inf
            return np.concatenate([_certain(known, vocab), values]) if known else values

        found = Rows(
            ids=backend.fetch(one.ids, np.int32),
            p=np.full(1, np.nan, np.float32) if one.p is None else backend.fetch(one.p, np.float32),
            entropy=None if one.entropy is None else backend.fetch(one.entropy, np.float32),
            next_p=None if one.next_p is None else backend.fetch(one.next_p, np.float32),
            logits=logits,
        )
        backend.synchronize()
        if not known:
            return found
        ids = np.concatenate([np.asarray(known, np.int32), found.ids])
        return replace(found, ids=ids, p=np.concatenate([np.ones(len(known), np.float32), found.p]))


def _certain(tokens: Sequence[int], vocab: int) -> np.ndarray:
    """Logits [rows, vocab] that leave no other choice than these tokens."""
    logits = np.full((len(tokens), vocab), -np.inf, np.float32)
    logits[np.arange(len(tokens)), tokens] = 0.0
    return logits


def _cells(tokens: Sequence[int], response: Response, judged: int) -> tuple[np.ndarray, np.ndarray]:
    """Per judged row, tokens whose count differs from the response's, and that count; both [judged, judged]."""
    cells = np.zeros((judged, judged), np.int64)
    times = np.zeros((judged, judged), np.float32)
    for row in range(judged):
        before = list(tokens[: len(tokens) - judged + row + 1]) if response.counted else []
        touched = list(dict.fromkeys(before)) or [tokens[-1]]
        for column in range(judged):
            token = touched[min(column, len(touched) - 1)]
            cells[row, column] = token
            times[row, column] = response.counts.get(token, 0) + before.count(token)
    return cells, times
