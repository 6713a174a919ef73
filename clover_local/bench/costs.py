"""What a pass costs here: milliseconds by kind and rows, its nodes, the bytes it reads of the weights."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import median

import numpy as np

from clover_local.bench.stock import Stock
from clover_local.ggml.backend import Backend, choose_device, upload
from clover_local.ggml.graph import Graph
from clover_local.runtime.engine import Engine

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
WARM, REPETITIONS = 3, 7
PROMPT = 64
_GRAPHS = {"plain": "store", "verify": "verify", "commit": "commit", "draft": "preview"}
PROBE_ROWS, PROBE_COLUMNS = 65536, 4096  # an F16 matrix of 512 MiB, read once per product


@dataclass(frozen=True)
class Cost:
    """One kind of pass at one number of rows. `distinct`: experts a layer that its tokens use, the mean of the
    layers; `bytes` of weights that it reads then."""

    kind: str  # plain, verify, commit, draft, or stock: llama.cpp's decoding of so many tokens
    rows: int
    milliseconds: float
    nodes: int | None
    distinct: float | None
    bytes: int | None

    @property
    def gigabytes_per_second(self) -> float | None:
        """Weights read per second; None for a commit, which reads next to none."""
        return None if self.bytes is None else self.bytes / self.milliseconds / 1e6


def measure(engine: Engine, *, seed: int = 0, mixed: bool = False) -> Iterator[Cost]:
    """Time every kind of pass on random tokens after a prompt of 64; medians of seven.

    `mixed` puts random tokens in place of a draft's masks: a model of random weights would route those all alike.
    """
    spec, words = engine.spec, _words(engine, seed)
    engine.reset()
    engine.begin_response(None)
    engine.prefill(words(PROMPT))
    yield _cost(engine, "plain", words(1), _median(lambda: engine.step(words(1)[0])))
    for rows in ROWS:
        engine.reset()
        engine.prefill(words(PROMPT))
        yield _cost(engine, "verify", words(rows), _median(partial(_verify, engine, words, rows)))
        replayed = _median_commit(engine, partial(words, rows))
        yield Cost("commit", rows, replayed, engine.graph_nodes.get(("commit", rows)), None, None)
        if spec.mask_id is not None and spec.can_draft and rows > 1:
            block = words(rows) if mixed else [*words(1), *[spec.mask_id] * (rows - 1)]
            yield _cost(engine, "draft", block, _median(partial(engine.preview, block, draft=True)))


def measure_stock(stock: Stock, engine: Engine, *, seed: int = 0) -> Iterator[Cost]:
    """Time stock llama.cpp's decoding of several tokens at once, all of them judged, in the same way."""
    words = _words(engine, seed)
    for rows in ROWS:
        stock.reset()
        stock.prefill(words(PROMPT))
        milliseconds = 1e3 * median([stock.verify(words(rows)) for _ in range(WARM + REPETITIONS)][WARM:])
        yield Cost("stock", rows, milliseconds, None, None, None)


def _words(engine: Engine, seed: int) -> Callable[[int], list[int]]:
    rng, vocab = np.random.default_rng(seed), engine.spec.vocab
    return lambda count: rng.integers(0, vocab, count).tolist()


def _verify(engine: Engine, words: Callable[[int], list[int]], rows: int) -> None:
    engine.verify(words(rows))


def _cost(engine: Engine, kind: str, tokens: list[int], milliseconds: float) -> Cost:
    routed = engine.routing(tokens, draft=kind == "draft")
    distinct = float(np.mean([len(np.unique(layer)) for layer in routed]))
    nodes = engine.graph_nodes.get((_GRAPHS[kind], len(tokens)))
    return Cost(kind, len(tokens), milliseconds, nodes, distinct, weight_bytes(engine, len(tokens), distinct))


def _median(run: Callable[[], object]) -> float:
    """Milliseconds of a call, the median after a few unmeasured ones."""
    spent = []
    for turn in range(WARM + REPETITIONS):
        began = time.perf_counter()
        run()
        if turn >= WARM:
            spent.append(time.perf_counter() - began)
    return 1e3 * median(spent)


def _median_commit(engine: Engine, words: Callable[[], list[int]]) -> float:
    spent = []
    for turn in range(WARM + REPETITIONS):
        tokens = words()
        engine.verify(tokens)
        began = time.perf_counter()
        engine.commit(len(tokens))
        if turn >= WARM:
            spent.append(time.perf_counter() - began)
    return 1e3 * median(spent)


def weight_bytes(engine: Engine, rows: int, distinct: float) -> int:
    """Bytes of weights that a pass of so many rows reads: dense matrices once, embeddings one row each, and of
    every layer's experts the `distinct` ones."""
    spec = engine.spec
    dense = experts = 0
    for name, tensor in engine.file.tensors.items():
        if name.endswith("_exps.weight"):
            experts += tensor.nbytes
        elif name == "token_embd.weight":
            dense += rows * tensor.nbytes // spec.vocab
        else:
            dense += tensor.nbytes
    return dense + round(experts * distinct / spec.experts)


def read_bandwidth(device: str | None, threads: int | None) -> float:
    """Gigabytes per second at which the device reads a 512 MiB F16 matrix in a matrix-vector product."""
    backend, graph = Backend(choose_device(device), threads), Graph(4)
    try:
        matrix = graph.input("f16", PROBE_COLUMNS, PROBE_ROWS)
        vector = graph.input("f32", PROBE_COLUMNS, 1)
        graph.output(graph.mul_mat(matrix, vector))
        graph.allocate(backend)
        upload(matrix, np.ones((PROBE_ROWS, PROBE_COLUMNS), np.float16))  # untouched pages would be one page
        upload(vector, np.ones(PROBE_COLUMNS, np.float32))

        def product() -> None:
            graph.compute()
            backend.synchronize()

        milliseconds = _median(product)
    finally:
        graph.free()
        backend.close()
    return prod((2, PROBE_COLUMNS, PROBE_ROWS)) / milliseconds / 1e6
