"""What every kernel of a pass leaves behind, so that two machines can be compared kernel by kernel."""

import ctypes as C
from collections.abc import Iterator, Sequence

import numpy as np

from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import GRAIN, Network, head_grain
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
    if one.kernel == "rms_norm":
        yield from _acts(read, work.h, rows, spec.hidden, GRAIN)
    if one.kernel in ("embed", "rms_norm") or (one.kernel == "dense" and args.add):
        yield "x", read(work.x, np.float32, rows, spec.hidden)
    elif one.kernel == "dense":
        yield "out", read(args.out, np.float32, rows, args.ld)
    elif one.kernel in ("gdn_causal", "gdn_preview"):
        yield from _acts(read, work.mixed, rows, spec.value_size, head_grain(spec.gdn_head_dim))
    elif one.kernel == "attention_combine":
        yield from _acts(read, work.attended, rows, spec.heads * spec.head_dim, head_grain(spec.head_dim))
    elif one.kernel == "attention_prepare":
        yield "queries", read(work.queries, np.float16, rows, spec.heads * spec.head_dim)
    elif one.kernel == "moe_route":
        route, slots = _slots(read, work.route)
        yield "experts", np.array(route.expert[: route.count], np.float32)
        yield "weights", np.array([(route.weight[i], route.row[i]) for i in slots], np.float32)
    elif one.kernel == "moe_gate_up":
        _, slots = _slots(read, work.route)
        for name, value in _acts(read, work.act, slots[-1] + 1, spec.expert_width, 1):
            yield name, value[slots]
    elif one.kernel == "moe_down":
        _, slots = _slots(read, work.route)
        yield "shares", read(work.shares, np.float32, slots[-1] + 1, spec.hidden)[slots]
    elif one.kernel == "choose":
        result = session.results(rows)
        top = session.logits(rows)[np.arange(rows), result["id"]]  # of two nearly equal ones either may win
        yield "choice", np.stack([top, result["p"], result["entropy"]])
    elif one.kernel in ("gdn_replay", "gdn_ring"):
        layer = spec.gdn_layers[-1]
        yield "ring", read(net.state.ring[layer], np.float32, spec.channels, 3)
        yield (
            "memory",
            read(net.state.memory[layer], np.float32, spec.value_heads, spec.gdn_head_dim**2)[:, ::7],
        )


def _slots(read, address: int) -> tuple[A.Route, list[int]]:  # type: ignore[no-untyped-def]
    route = A.Route.from_buffer_copy(read(address, np.uint8, C.sizeof(A.Route)))
    entries = zip(route.first[: route.count], route.users[: route.count], strict=True)
    return route, [first + i for first, users in entries for i in range(users)]


def _acts(read, acts: A.Acts, rows: int, k: int, grain: int) -> Iterator[tuple[str, np.ndarray]]:  # type: ignore[no-untyped-def]
    tiles = -(-rows // 8)

    def ordered(address: int, dtype: type, per_row: int, *rest: int) -> np.ndarray:
        return (
            read(address, dtype, tiles, per_row, 8, *rest).swapaxes(1, 2).reshape(tiles * 8, -1, *rest)[:rows]
        )

    q = ordered(acts.q, np.int8, k // 32, 32).astype(np.float32)
    if grain == 1:
        scale, sums = np.moveaxis(ordered(acts.s, np.float32, k // 32, 2), -1, 0)
    else:
        scale = np.repeat(ordered(acts.scale, np.float32, -(-k // (32 * grain))), grain, 1)[:, : k // 32]
        sums = ordered(acts.sum, np.int16, -(-k // 256), 8).reshape(rows, -1)[:, : k // 32].astype(np.float32)
    yield "float", read(acts.f, np.float32, rows, k)
    yield "quantized", (q * scale[..., None]).reshape(rows, k)
    yield "sums", sums


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
