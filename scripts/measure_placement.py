"""Measure a synthetic model on a card of a given size: what passes cost by how unevenly experts are used.

    python scripts/make_synthetic.py /dev/shm/35b.gguf --experts-skew 0.9:0.64
    python scripts/measure_placement.py /dev/shm/35b.gguf --vram 16G --shares uniform,0.8,0.9,0.95

The model is opened once without a cap (whose tokens and logits the capped one must give) and once with it. Then the
routers on the card are replaced, once per share of the routings that shall fall on the experts on the card; the
placement learns from random tokens, and other random tokens are timed.
"""

import argparse
import gc
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from make_synthetic import ROUTER, Pools, skew_for

from clover_local.bench.stock import Stock, within
from clover_local.ggml.backend import choose_device, upload
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import quantize
from clover_local.model.passes import Kind
from clover_local.model.spec import Spec
from clover_local.runtime import fitting, placement
from clover_local.runtime.engine import Engine, default_threads
from clover_local.runtime.kernels import WIDTHS, Kernels
from clover_local.runtime.plan import parse_size

WARM, TIMED = 3, 9
PROMPT, ANSWER = 40, 24
VERIFIED = (2, 4, 8, 16)
KEPT = 0.873  # chance of a drafted row, given those before it: the profile math of docs/performance.md
LEARN = 60  # passes of 32 random tokens


class Peak(threading.Thread):
    """The most video memory in use, in MiB, as nvidia-smi counts it, while the block runs."""

    def __enter__(self) -> "Peak":
        self.most, self._over = 0, threading.Event()
        self.start()
        return self

    def run(self) -> None:
        while not self._over.wait(0.2):
            command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
            self.most = max(self.most, *(int(one) for one in told))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        print(f"# nvidia-smi's peak: {self.most:,} MiB", flush=True)


def cost(run: Callable[[], object]) -> float:
    """Median milliseconds of a call."""
    seen = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        run()
        seen.append(time.perf_counter() - began)
    return 1e3 * median(seen[WARM:])


def text_of(engine: Engine) -> tuple[list[int], np.ndarray]:
    """Tokens written greedily one at a time, and the logits of a verify of 8 rows after them."""
    words = np.random.default_rng(1).integers(0, engine.spec.vocab - 1, PROMPT + 8).tolist()
    engine.reset()
    rows = engine.prefill(words[:PROMPT])
    assert rows is not None
    written = [int(rows.ids[-1])]
    for _ in range(ANSWER):
        written.append(int(engine.step(written[-1]).ids[0]))
    return written, engine.verify(words[PROMPT:]).logits()


def route_by(engine: Engine, skew: float, seed: int) -> None:
    """Give the model on the card other routers."""
    weights, pools = engine._model.weights, Pools(engine.spec, skew, np.random.default_rng(seed))
    for layer in range(engine.spec.layers):
        name = f"blk.{layer}.{ROUTER}"
        node = weights[name]
        data = pools.router((node.contents.ne[1], node.contents.ne[0]))
        upload(node, data)
        if name in weights.half:
            upload(
                weights.half[name], quantize("bf16", data.view(np.float32).reshape(-1, node.contents.ne[0]))
            )


def measure(engine: Engine, seed: int) -> dict[str, float]:
    """Costs of passes over random tokens."""
    rng, vocab = np.random.default_rng(seed), engine.spec.vocab - 1
    words = lambda n: rng.integers(0, vocab, n).tolist()  # noqa: E731
    engine.reset()
    engine.prefill(words(PROMPT))
    block = lambda n: [words(1)[0], *[engine.spec.mask_id] * (n - 1)]  # noqa: E731
    found = {"plain": cost(lambda: engine.step(words(1)[0]))}
    for rows in VERIFIED:
        found[f"verify {rows}"] = cost(lambda rows=rows: engine.verify(words(rows)))
    found["draft 16"] = cost(lambda: engine.preview(block(16), draft=True))
    times = []
    for _ in range(2):
        engine.reset()
        began = time.perf_counter()
        engine.prefill(words(2048))
        times.append(time.perf_counter() - began)
    found["prefill/s"] = 2048 / min(times)
    found["plain/s"] = 1e3 / found["plain"]
    rounds = (sum(KEPT**i for i in range(n)) / (found["draft 16"] + found[f"verify {n}"]) for n in VERIFIED)
    found["self/s"] = max(1e3 * max(rounds), found["plain/s"])
    return found


def stock(path: Path, budget: int, n_ctx: int, seed: int) -> dict[str, float]:
    """The same of stock llama.cpp with as few layers' experts on the CPU as the cap allows."""

    def load(moved: int) -> Stock:
        return Stock(
            path,
            n_ctx=n_ctx,
            threads=default_threads(),
            gpu=0 if choose_device().is_gpu else None,
            n_cpu_moe=moved,
        )

    rng = np.random.default_rng(seed)
    spec = Spec.from_gguf(GgufFile.open(path))
    kv = 4 * len(spec.attention_layers) * n_ctx * spec.kv_heads * spec.head_dim
    with within(path, budget, load, lambda: choose_device().free, kv_bytes=kv) as party:
        words = lambda n: rng.integers(0, party.vocab - 1, n).tolist()  # noqa: E731
        print(f"# stock llama.cpp: the experts of {party.n_cpu_moe} layers with the CPU", flush=True)
        party.reset()
        party.prefill(words(PROMPT))
        found = {"plain": cost(lambda: party.step(words(1)[0]))}
        for rows in VERIFIED:
            found[f"verify {rows}"] = cost(lambda rows=rows: party.verify(words(rows)))
        times = []
        for _ in range(2):
            party.reset()
            times.append(party.prefill(words(2048)))
        return found | {
            "draft 16": 0.0,
            "prefill/s": 2048 / min(times),
            "plain/s": 1e3 / found["plain"],
            "self/s": 0.0,
        }


def learned(engine: Engine, seed: int) -> float | None:
    """Let the placement follow the routers; returns the share of other tokens' uses that is on the card."""
    own, rng = engine.placement, np.random.default_rng(seed)
    if own is None:
        return None
    placement.SURE = 0.0  # as after a long time: here a minute must do
    own.learn()
    own.forget()
    engine.reset()
    for _ in range(LEARN):
        engine.verify(rng.integers(0, engine.spec.vocab - 1, 32).tolist())
    moved = engine.adapt(None)
    own.learn()
    own.forget()
    for _ in range(4):
        engine.verify(rng.integers(0, engine.spec.vocab - 1, 32).tolist())
    own.learn()
    print(f"# {moved / 1e9:.2f} GB of experts changed places", flush=True)
    return own.share


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of logits, those of forbidden tokens (minus infinity) apart."""
    known = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[known] - b[known]).max())


def line(name: str, share: float | None, found: dict[str, float]) -> str:
    """One row of the table."""
    told = "" if share is None else f"{share:.1%}"
    return f"{name:>9} {told:>7} " + " ".join(f"{value:9.2f}" for value in found.values())


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--vram", default="16G")
    parser.add_argument("-c", "--ctx-size", type=int, default=32768)
    parser.add_argument("--device")
    parser.add_argument("--shares", default="file,0.8,0.9,0.95,uniform")
    parser.add_argument("--skip-uncapped", action="store_true")
    parser.add_argument("--stock", action="store_true", help="stock llama.cpp at the same cap as well")
    return parser


def main() -> int:
    """Print costs and whether the capped run writes what the uncapped one does."""
    args, want = arguments().parse_args(), None
    began = time.perf_counter()
    if not args.skip_uncapped:
        with Engine.open(args.model, n_ctx=args.ctx_size, device=args.device) as engine:
            print(
                f"# uncapped: opened after {time.perf_counter() - began:.1f} s, note {engine.note}",
                flush=True,
            )
            own = engine._kernels
            if own is not None:  # every pass on them, as with a placement: then the numbers are the same bits
                engine._kernels = Kernels(own.runner, frozenset(product(Kind, WIDTHS)), own.key)
            want = text_of(engine)
            found = measure(engine, 5)
            print(f"{'':>17} " + " ".join(f"{name[:9]:>9}" for name in found))
            print(line("uncapped", None, found), flush=True)
        del engine
        gc.collect()
    began = time.perf_counter()
    peak = Peak() if shutil.which("nvidia-smi") else nullcontext()
    vram = parse_size(args.vram)
    with peak, Engine.open(args.model, n_ctx=args.ctx_size, device=args.device, vram=vram) as engine:
        print(
            f"# capped: opened after {time.perf_counter() - began:.1f} s, note {engine.note}, {engine.memory}",
            flush=True,
        )
        spec, on_card = engine.spec, 1.0
        if engine.placement is not None:
            on_card = float(engine.placement.resident.mean())
            print(f"# {on_card:.1%} of the experts are on the card")
        if want is not None:
            got = text_of(engine)
            print(
                f"# same tokens: {got[0] == want[0]}, largest difference of logits {_apart(got[1], want[1]):.2e}"
            )
        for index, name in enumerate(args.shares.split(",")):
            if name != "file" and engine.placement is None:
                continue  # the file's own routers are mapped here, not copied
            if name != "file":
                skew = 0.0 if name == "uniform" else skew_for(spec, float(name), on_card, 7)
                route_by(engine, skew, 100 + index)
            share = learned(engine, index)
            print(line(name, share, measure(engine, 5)), flush=True)
        if want is not None and args.shares == "file":
            got = text_of(engine)
            print(f"# after the swaps: same tokens: {got[0] == want[0]}")
    if args.stock:
        device = choose_device(args.device)
        with Peak() if shutil.which("nvidia-smi") else nullcontext():
            found = stock(args.model, fitting.budget(device, parse_size(args.vram)), args.ctx_size, 5)
        print(line("stock", None, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
