"""What every kernel of a pass leaves behind, so that two machines can be compared kernel by kernel."""

import ctypes as C
from collections.abc import Iterator, Sequence

import numpy as np

from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import Network
from clover_local.runtime.cuda.passes import Launch, causal, commit, preview, width_for

from .synthetic import Store

RESULT = np.dtype([("id", np.int32), ("p", np.float32), ("entropy", np.float32), ("next_p", np.float32)])
SCENARIO: tuple[tuple[str, int], ...] = (
    ("store", 5),
    ("preview", 11),
    ("verify", 19),
    ("commit", 13),
    ("store", 1),
    ("preview", 32),
    ("verify", 8),
)
"""Passes (kind, rows) that run after each other on an empty state."""


class Session:
    """Passes over one network on one machine, by the kinds of a scenario."""

    def __init__(self, net: Network, machine: Store) -> None:
        self.net, self.machine, self.past, self.tokens = net, machine, 0, [0]
        plain = A.Processing(0, 0, 1, net.spec.mask_id or -1, -1, 0, 0)
        machine.write(net.work.processing, np.frombuffer(bytes(plain), np.uint8))

    def launches(self, kind: str, rows: int) -> list[Launch]:
        """The kernels of a pass."""
        if kind == "commit":
            return commit(self.net)
        width = width_for(rows)
        return (
            preview(self.net, width)
            if kind == "preview"
            else causal(self.net, width, keep_state=kind == "store")
        )

    def begin(self, kind: str, rows: int, tokens: Sequence[int]) -> None:
        """Set the inputs of a pass."""
        if kind != "commit":
            self.tokens = list(tokens)
        run = A.Pass(len(self.tokens), self.past, rows, 0, 0, 0, 0, (C.c_int * A.MAX_ROWS)(*self.tokens))
        self.machine.write(self.net.work.run, np.frombuffer(bytes(run), np.uint8))

    def end(self, kind: str, rows: int) -> None:
        """Move on."""
        self.past += rows if kind in ("store", "commit") else 0

    def results(self, rows: int) -> np.ndarray:
        """Choices of the last pass."""
        return self.machine.read(self.net.work.results, RESULT, rows)

    def logits(self, rows: int) -> np.ndarray:
        """Logits [rows, vocab] of the last pass."""
        return self.machine.read(self.net.work.logits, np.float32, rows, self.net.spec.vocab)


def outputs(session: Session, one: Launch, rows: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of what a kernel wrote."""
    net, read = session.net, session.machine.read
    spec, work, args = net.spec, net.work, one.args
    if one.kernel in ("embed", "moe_down") or (one.kernel == "dense" and args.add):
        yield "x", read(work.x, np.float32, rows, spec.hidden)
    elif one.kernel == "dense":
        yield "out", read(args.out, np.float32, rows, args.ld)
    elif one.kernel == "rms_norm":
        yield from _acts(read, work.h, rows, spec.hidden)
    elif one.kernel in ("gdn_causal", "gdn_preview", "attention_combine"):
        yield from _acts(
            read, work.mixed, rows, spec.value_size if "gdn" in one.kernel else spec.heads * spec.head_dim
        )
    elif one.kernel == "attention_prepare":
        yield "queries", read(work.queries, np.float16, rows, spec.heads * spec.head_dim)
    elif one.kernel == "moe_route":
        route = A.Route.from_buffer_copy(read(work.route, np.uint8, C.sizeof(A.Route)))
        slots = route.first[route.count]
        yield "experts", np.array(route.expert[: route.count], np.float32)
        yield "weights", np.array([*route.weight[:slots], *route.row[:slots]], np.float32)
    elif one.kernel == "moe_gate_up":
        route = A.Route.from_buffer_copy(read(work.route, np.uint8, C.sizeof(A.Route)))
        yield from _acts(read, work.act, route.first[route.count], spec.expert_width)
    elif one.kernel == "choose":
        result = session.results(rows)
        yield "choice", np.stack([result[name].astype(np.float32) for name in ("id", "p", "entropy")])
    elif one.kernel in ("gdn_replay", "gdn_ring"):
        layer = spec.gdn_layers[-1]
        yield "ring", read(net.state.ring[layer], np.float32, spec.channels, 3)
        yield (
            "memory",
            read(net.state.memory[layer], np.float32, spec.value_heads, spec.gdn_head_dim**2)[:, ::7],
        )


def _acts(read, acts: A.Acts, rows: int, k: int) -> Iterator[tuple[str, np.ndarray]]:  # type: ignore[no-untyped-def]
    tiles = -(-rows // 8)
    q = read(acts.q, np.int8, tiles, k // 32, 8, 32).astype(np.float32).swapaxes(1, 2).reshape(-1, k)[:rows]
    scale = read(acts.s, np.float32, tiles, k // 32, 8, 2).swapaxes(1, 2).reshape(-1, k // 32, 2)[:rows]
    yield "float", read(acts.f, np.float32, rows, k)
    yield "quantized", (q.reshape(rows, -1, 32) * scale[..., :1]).reshape(rows, k)
    yield "sums", scale[..., 1]


def trace(
    session: Session, scenario: Sequence[tuple[str, int]] = SCENARIO
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a scenario kernel by kernel; yields a name and a value for everything that was written."""
    rng = np.random.default_rng(7)
    for number, (kind, rows) in enumerate(scenario):
        tokens = rng.integers(0, session.net.spec.vocab, rows).tolist()
        if kind == "preview":
            tokens[1:] = [session.net.spec.mask_id] * (rows - 1)
        session.begin(kind, rows, tokens)
        for index, one in enumerate(session.launches(kind, rows)):
            session.machine.run([one])
            for name, value in outputs(session, one, rows):
                yield f"{number}.{kind}{rows}.{index}.{one.kernel}.{name}", value
        session.end(kind, rows)
