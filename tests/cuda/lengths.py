"""Attention at context lengths around every boundary: each token counts exactly once, and none beyond is looked at.

python -m tests.cuda.lengths   # on a machine with a card, up to 131,072 tokens; the emulator's lengths are in the tests
"""

import ctypes as C
import sys
from dataclasses import dataclass, replace

import numpy as np
import torch

from clover_local.model.spec import Spec
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.network import Network, attention_width

from .synthetic import Q4, SMALL, Store, network
from .trace import Session

LARGE = replace(SMALL, heads=16, head_dim=256, rope_dims=64, context_length=131072)
"""Attention of Clover-35B-A3B's size."""
PERIOD = (
    1_000_003  # random values of a cache before they repeat: a prime, so that they meet no boundary twice
)
LONG = (1, 15, 16, 17, 1023, 1024, 1025, 32767, 131071)


@dataclass(frozen=True)
class Case:
    """A pass of so many rows over so many committed tokens."""

    kind: str
    rows: int
    past: int


class Attention:
    """The attention kernels of one random model, fed with projections of the caller's choice."""

    def __init__(self, machine: Store, spec: Spec, n_ctx: int) -> None:
        self.net: Network = network(spec, Q4, machine, n_ctx)
        self.machine, self.spec, self.n_ctx = machine, spec, n_ctx
        self.layer = spec.attention_layers[0]
        self.session = Session(self.net, machine)

    def cache(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Fill the committed tokens' keys and values, float16 [tokens, kv heads, head]."""
        self.machine.write(self.net.state.keys[self.layer], keys)
        self.machine.write(self.net.state.values[self.layer], values)

    def cached(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the first tokens."""
        shape = (length, self.spec.kv_heads, self.spec.head_dim)
        keys = self.machine.read(self.net.state.keys[self.layer], np.float16, *shape)
        return keys, self.machine.read(self.net.state.values[self.layer], np.float16, *shape)

    def norms(self, query: float, key: float) -> None:
        """Set the weights of both norms to a constant."""
        for part, value in (("q", query), ("k", key)):
            place = self.net.places[f"blk.{self.layer}.attn_{part}_norm.weight"]
            self.machine.write(place.address, np.full(self.spec.head_dim, value, np.float32))

    def run(self, case: Case, projected: np.ndarray) -> np.ndarray:
        """Outputs [rows, heads, head] for projections [rows, attention_width]."""
        tokens = (C.c_int * A.MAX_ROWS)()
        run = A.Pass(n=case.rows, past=case.past, replay=case.rows, tokens=tokens)
        self.machine.write(self.net.work.run, np.frombuffer(bytes(run), np.uint8))
        self.machine.write(self.net.work.projected, projected)
        launches = [one for one in self.session.launches(case.kind, case.rows) if one.source == "attention"]
        self.machine.run(launches)
        shape = (case.rows, self.spec.heads, self.spec.head_dim)
        return self.machine.read(self.net.work.attended.f, np.float32, *shape)


def projections(spec: Spec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Random queries with their gates, keys and values: float32 [rows, attention_width]."""
    return rng.normal(0, 1, (rows, attention_width(spec))).astype(np.float32)


def gates(spec: Spec, projected: np.ndarray) -> np.ndarray:
    """The sigmoid of every head's gate, [rows, heads, head]."""
    both = projected[:, : 2 * spec.heads * spec.head_dim].reshape(
        len(projected), spec.heads, 2, spec.head_dim
    )
    return 1 / (1 + np.exp(-both[:, :, 1].astype(np.float64)))


def filled(spec: Spec, tokens: int, values: np.ndarray) -> np.ndarray:
    """Values over and over as a cache [tokens, kv heads, head] of halves."""
    return np.resize(values.astype(np.float16), (tokens, spec.kv_heads, spec.head_dim))


def visible(case: Case) -> np.ndarray:
    """How many tokens each row attends to."""
    rows = np.arange(case.rows) + 1 if case.kind != "preview" else np.full(case.rows, case.rows)
    return case.past + rows


def counts_every_token(attention: Attention, case: Case, rng: np.random.Generator) -> bool:
    """With queries of zero all tokens weigh the same, and sums of values -1 and 1 are whole numbers: exact."""
    spec = attention.spec
    attention.cache(
        filled(spec, case.past, rng.normal(0, 1, PERIOD)),
        filled(spec, case.past, rng.choice((-1, 1), PERIOD)),
    )
    attention.norms(0.0, 1.0)
    projected = projections(spec, case.rows, rng)
    projected[:, -spec.kv_heads * spec.head_dim :] = rng.choice(
        (-1, 1), (case.rows, spec.kv_heads * spec.head_dim)
    )
    got = attention.run(case, projected) / gates(spec, projected)
    seen, stored = visible(case), attention.cached(case.past + case.rows)[1].astype(np.float64)
    sums = np.cumsum(stored, 0)[seen - 1]  # [rows, kv heads, head]
    want = np.repeat(sums, spec.heads // spec.kv_heads, 1)
    return bool(np.abs(got * seen[:, None, None] - want).max() < 0.25)


def error(attention: Attention, case: Case, rng: np.random.Generator) -> float:
    """Norm of the difference from torch's attention over the cache as it then is, over the norm."""
    spec, group = attention.spec, attention.spec.heads // attention.spec.kv_heads
    attention.cache(*(filled(spec, case.past, rng.normal(0, 1, PERIOD)) for _ in range(2)))
    attention.norms(2.0, 1.0)
    projected = projections(spec, case.rows, rng)
    got = attention.run(case, projected)
    keys, values = (torch.from_numpy(x.astype(np.float32)) for x in attention.cached(case.past + case.rows))
    heads = projected[:, : 2 * spec.heads * spec.head_dim].reshape(case.rows, spec.heads, 2, spec.head_dim)
    queries = torch.from_numpy(2.0 * rotated(spec, normed(heads[:, :, 0], spec.norm_eps), case.past))
    open_ = torch.arange(case.past + case.rows)[None] < torch.from_numpy(visible(case))[:, None]
    grouped = queries.float().reshape(case.rows, spec.kv_heads, group, spec.head_dim) * spec.head_dim**-0.5
    logits = torch.einsum("rkgd,lkd->kgrl", grouped, keys).masked_fill(~open_, -torch.inf)
    out = torch.einsum("kgrl,lkd->rkgd", logits.softmax(-1), values).reshape(got.shape)
    want = out.numpy() * gates(spec, projected)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def normed(x: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm over the last axis, float64."""
    x = x.astype(np.float64)
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def rotated(spec: Spec, x: np.ndarray, past: int) -> np.ndarray:
    """Rope over the first `rope_dims` values of [rows, heads, head], halves paired, from position `past` on."""
    half = spec.rope_dims // 2
    angle = (past + np.arange(len(x)))[:, None] * spec.rope_theta ** (-2 * np.arange(half) / spec.rope_dims)
    cos, sin = (f(angle)[:, None] for f in (np.cos, np.sin))
    u, v, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([u * cos - v * sin, v * cos + u * sin, rest], -1)


def main() -> int:
    """The command above."""
    from clover_local.runtime.cuda.device import Device

    good, rng = True, np.random.default_rng(0)
    for name, spec in (("head of 64", SMALL), ("head of 256", LARGE)):
        device = Device()
        attention = Attention(device, spec, LONG[-1] + 33)
        for past in LONG:
            for kind, rows in (("verify", 1), ("preview", 16), ("verify", 32)):
                case = Case(kind, min(rows, LONG[-1] + 33 - past), past)
                exact, off = counts_every_token(attention, case, rng), error(attention, case, rng)
                good &= exact and off < 0.02
                found = "every token once" if exact else "TOKENS LOST"
                print(
                    f"{name}, {kind} {case.rows:2} rows after {past:6}: {found}, {off:.1e} from torch",
                    flush=True,
                )
        device.close()
    print("every length agrees" if good else "SOMETHING DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
