"""Measure a synthetic model on a card of a given size: what it costs by the share of picks that fall on the card.

    python scripts/make_synthetic.py /dev/shm/35b.gguf
    python scripts/measure_placement.py /dev/shm/35b.gguf --vram 16G --shares 0.9,0.8,0.95,uniform

Steps (--steps): `uncapped` opens the model without a cap and finds, for each share, routers under which a learned set
of experts gets that share of other tokens' picks; `capped` opens it under the cap, lets the placement learn, and times
passes and the decode loop; `stock` does the same with stock llama.cpp at the same cap. The first share is the main one:
its routers are written into the file, so that all parties route alike there. A share may bring its skew along
(0.9=0.71), then nothing is searched. What is learned is kept in a folder of its own and thrown away.
"""

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from make_synthetic import ROUTER, Pools, rewrite_routers

from clover_local.bench import stock
from clover_local.bench.profiles import built_in
from clover_local.bench.speed import Bench, Test, collect, random_workload
from clover_local.bench.stock import Stock, within
from clover_local.decoding.events import Tokens
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Mode, Settings
from clover_local.ggml.backend import choose_device, upload
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import quantize
from clover_local.model.draft import DraftSettings
from clover_local.model.passes import Kind
from clover_local.model.spec import Spec
from clover_local.runtime import fitting, kernels, placement
from clover_local.runtime.engine import Engine, default_threads
from clover_local.runtime.kernels import WIDTHS, Kernels
from clover_local.runtime.plan import Machine, decide, parse_size, sizes_of

STEPS = ("uncapped", "capped", "stock")
WARM, TIMED = 3, 9
PROMPT, PREFILL, STOCK_BATCH = 40, 2048, 512
VERIFIED = (2, 4, 8, 16)
LEARN, JUDGE, ROWS = (
    60,
    12,
    32,
)  # passes of random tokens that are learned from, and that judge what was learned
CLOSE, TRIES = 0.003, 6  # how near to a share the search must come, and how often it may look
TEXTS, ANSWER = (40, 33, 61), 24  # tokens of the prompts whose answers are compared, and of the answers
PROFILE = "math"
Written = tuple[list[tuple[Mode, list[int]]], np.ndarray]
"""Answers by mode, and logits after them."""
SEED = 7  # of all routers: they differ in their skew alone


# --- how unevenly experts are used ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A share of the picks that shall fall on experts on the card, and the skew of routers that gives it."""

    name: str
    target: float
    skew: float | None

    @classmethod
    def parse(cls, text: str) -> "Share":
        """`0.9`, `0.9=1.52` with a known skew, or `uniform`."""
        name, _, skew = text.partition("=")
        if name == "uniform":
            return cls(name, 0.0, 0.0)
        return cls(name, float(name), float(skew) if skew else None)


def route_by(engine: Engine, skew: float) -> None:
    """Give the loaded model the routers that `rewrite_routers` would write into its file."""
    if engine._model.backend.is_cpu:  # it reads the mapped file
        rewrite_routers(engine.file.path, skew, SEED)
        return
    weights, pools = engine._model.weights, Pools(engine.spec, skew, np.random.default_rng(SEED))
    for layer in range(engine.spec.layers):
        name = f"blk.{layer}.{ROUTER}"
        node = weights[name]
        data = pools.router((node.contents.ne[1], node.contents.ne[0]))
        upload(node, data)
        if name in weights.half:
            upload(
                weights.half[name], quantize("bf16", data.view(np.float32).reshape(-1, node.contents.ne[0]))
            )


def used(engine: Engine) -> np.ndarray:
    """Rows of causal passes that picked each expert so far, uint32 [layers, experts]."""
    assert engine._kernels is not None, "our kernels count, ggml's graphs do not"
    return engine._kernels.runner.usage()


def counted(engine: Engine, passes: int, rng: np.random.Generator) -> np.ndarray:
    """How often rows of random tokens pick each expert, int [layers, experts]."""
    spec = engine.spec
    found = np.zeros((spec.layers, spec.experts), np.int64)
    before = used(engine) if engine._kernels is not None else None
    engine.reset()
    for _ in range(passes):
        words = rng.integers(0, spec.vocab - 1, ROWS).tolist()
        if before is not None:
            engine.verify(words)
        else:
            for layer, picks in enumerate(engine.routing(words)):
                found[layer] += np.bincount(picks.reshape(-1), minlength=spec.experts)
    return found if before is None else used(engine) - before


def busiest(counts: np.ndarray, slots: Sequence[int]) -> np.ndarray:
    """The experts of most uses, `slots[layer]` of them a layer, bool [layers, experts]."""
    ranks = np.argsort(np.argsort(-counts, axis=1, kind="stable"), axis=1)
    return ranks < np.asarray(slots)[:, None]


def share_of(counts: np.ndarray, mask: np.ndarray) -> float:
    """Share of the uses that fall on the experts of a mask."""
    return float(counts[mask].sum() / counts.sum())


def learnable(engine: Engine, slots: Sequence[int], skew: float) -> float:
    """The share that a hot set learned under routers of a skew gets of other tokens' picks."""
    route_by(engine, skew)
    rng = np.random.default_rng(1)
    hot = busiest(counted(engine, LEARN, rng), slots)
    return share_of(counted(engine, JUDGE, rng), hot)


def find_skew(share: Callable[[float], float], target: float, known: dict[float, float]) -> float:
    """The skew at which a growing `share` reaches a target; `known` takes every pair that was looked at."""
    for _ in range(TRIES):
        below = max((skew for skew, got in known.items() if got <= target), default=None)
        above = min((skew for skew, got in known.items() if got > target), default=None)
        if below is None:
            return 0.0  # even uses reach more
        if above is None:
            skew = 2 * below + 0.5
        else:  # straight in the odds, nearly
            near = {one: np.log(known[one] / (1 - known[one])) for one in (below, above)}
            part = (np.log(target / (1 - target)) - near[below]) / (near[above] - near[below])
            skew = below + (above - below) * float(np.clip(part, 0.02, 0.98))
        known[skew] = share(skew)
        if abs(known[skew] - target) <= CLOSE:
            break
    return min(known, key=lambda one: abs(known[one] - target))


def find_skews(engine: Engine, shares: Sequence[Share], slots: Sequence[int]) -> list[Share]:
    """The shares with their skews; those that lack one are looked for on a loaded model, whose routers change."""
    known: dict[float, float] = {}
    found = []
    for one in shares:
        if one.skew is None:
            look = partial(learnable, engine, slots)
            if not known:
                known[0.0] = look(0.0)
            skew = find_skew(look, one.target, known)
            print(f"# {one.name}: routers of skew {skew:.3f} give {known[skew]:.1%}", flush=True)
            one = replace(one, skew=skew)
        found.append(one)
    return found


def learn(engine: Engine) -> None:
    """Let the placement follow the routers, as it does in a long time, within seconds."""
    own = engine.placement
    if own is None:
        return
    own.learn()
    own.forget()
    counted(engine, LEARN, np.random.default_rng(2))
    sure, placement.SURE = placement.SURE, 0.0
    moved = engine.adapt(None)
    placement.SURE = sure
    print(f"# {moved / 1e6:,.1f} MB of experts changed places", flush=True)


# --- what is measured ----------------------------------------------------------------------------------------------


class Peak(threading.Thread):
    """The most video memory in use, in MiB, as nvidia-smi counts it, while the block runs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._about = name

    def __enter__(self) -> "Peak":
        self.most, self._over = 0, threading.Event()
        self.start()
        return self

    def run(self) -> None:
        while not self._over.wait(0.2):
            command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
            self.most = max([self.most, *map(int, told)])

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        print(
            f"# {self._about}: nvidia-smi's peak is {self.most:,} MiB ({self.most / 1024:.2f} GiB)",
            flush=True,
        )


def peak(name: str) -> "Peak | nullcontext[None]":
    """A Peak where there is an NVIDIA card."""
    return Peak(name) if shutil.which("nvidia-smi") else nullcontext()


@dataclass
class Found:
    """One row of the table: milliseconds of passes, tokens a second; the share of its own picks on the card."""

    name: str
    share: float | None = None
    ms: dict[str, float] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)


def cost(run: Callable[[], object]) -> float:
    """Median milliseconds of a call."""
    seen = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        run()
        seen.append(time.perf_counter() - began)
    return 1e3 * median(seen[WARM:])


def pass_costs(party: Engine | Stock, vocab: int) -> Found:
    """Passes and prefills of random tokens."""
    found, rng = Found(""), np.random.default_rng(5)

    def words(count: int) -> list[int]:
        return rng.integers(0, vocab - 1, count).tolist()

    party.reset()
    party.prefill(words(PROMPT))
    found.ms["plain"] = cost(lambda: party.step(words(1)[0]))
    for rows in VERIFIED:
        found.ms[f"verify {rows}"] = cost(partial(lambda count: party.verify(words(count)), rows))
    if isinstance(
        party, Engine
    ):  # random words in place of masks, which random weights would route all alike
        engine = party
        found.ms["draft 16"] = cost(lambda: engine.preview(words(16), draft=True))
    found.speed["prefill"] = prefill_speed(party, vocab)
    return found


def prefill_speed(party: Engine | Stock, vocab: int) -> float:
    """Tokens a second of the better of two long prompts of random tokens."""
    rng, times = np.random.default_rng(6), []
    for _ in range(2):
        words = rng.integers(0, vocab - 1, PREFILL).tolist()
        party.reset()
        began = time.perf_counter()
        party.prefill(words)
        times.append(time.perf_counter() - began)
    return PREFILL / min(times)


def measure(name: str, bench: Bench, tokens: int, repetitions: int = 1) -> Found:
    """Passes, then the decode loop with simulated acceptance, and how many of all those picks were on the card."""
    engine = bench.engine
    before = used(engine) if engine.placement is not None else None
    found = replace(pass_costs(engine, engine.spec.vocab), name=name)
    tests = [Test("tg", tokens, "plain"), Test("tg", tokens, "self", profile=PROFILE)]
    results = collect(bench.run(tests, repetitions), lambda *_: None)
    for test, result in results.items():
        found.speed[test.mode], found.speed[f"{test.mode} ±"] = result.speed, result.spread
        if test.mode == "self" and result.stats is not None:
            stats = result.stats
            passes = ", ".join(f"{kind} {count}" for kind, count in stats.passes.items() if kind != "prefill")
            print(f"# {name}: self keeps {stats.tokens_per_round:.2f} tokens a round; {passes}", flush=True)
    if before is not None and engine.placement is not None:
        found.share = share_of(used(engine) - before, engine.placement.resident)
    return found


def texts(engine: Engine) -> Written:
    """Greedy answers to a few prompts in both modes, and the logits of a verify of 8 rows after the last one."""
    rng, written = np.random.default_rng(1), []
    modes: tuple[Mode, ...] = ("plain", "self")
    for length, mode in product(TEXTS, modes):
        prompt = rng.integers(0, engine.spec.vocab - 1, length).tolist()
        engine.reset()
        settings = Settings(mode=mode, policy="always", draft_max=8, max_tokens=ANSWER, ignore_stop=True)
        events = generate(engine, prompt, settings)
        written.append(
            (mode, [token for event in events if isinstance(event, Tokens) for token in event.ids])
        )
    return written, engine.verify(rng.integers(0, engine.spec.vocab - 1, 8).tolist()).logits()


def compare(when: str, engine: Engine, want: Written | None) -> None:
    """Say whether an engine writes what the uncapped one did."""
    if want is None:
        return
    got = texts(engine)
    for mode in ("plain", "self"):
        pairs = [(a, b) for (kind, a), (_, b) in zip(want[0], got[0], strict=True) if kind == mode]
        same = sum(a == b for a, b in pairs)
        print(f"# {when}, {mode}: {same} of {len(pairs)} answers are the uncapped run's", flush=True)
    known = np.isfinite(want[1]) & np.isfinite(got[1])
    off = float(np.abs(want[1][known] - got[1][known]).max())
    print(f"# {when}: the logits of a verify of 8 rows differ by at most {off:.2e}", flush=True)


# --- the steps -----------------------------------------------------------------------------------------------------


def opened(path: Path, args: argparse.Namespace, vram: int | None) -> Engine:
    """An engine that runs every pass on our kernels, as with a placement: then numbers are the same bits."""
    began = time.perf_counter()
    engine = Engine.open(
        path, n_ctx=args.ctx_size, device=args.device, vram=vram, slots=args.slots if vram else None
    )
    own = engine._kernels
    if own is not None:
        engine._kernels = Kernels(own.runner, frozenset(product(Kind, WIDTHS)), own.key)
    if args.draft_budget:
        engine.drafts = DraftSettings(budget=args.draft_budget)
    print(
        f"# {path.name}, {'capped' if vram else 'uncapped'}: opened after {time.perf_counter() - began:.1f} s, "
        f"note: {engine.note}, {engine.memory}",
        flush=True,
    )
    return engine


def bench_of(engine: Engine) -> Bench:
    """The decode loop over an answer to random tokens."""
    workload = random_workload(engine.spec.vocab, 1, 64)
    return Bench(engine, workload, Settings(), profiles=(built_in(PROFILE),))


def planned_slots(engine: Engine, args: argparse.Namespace) -> Sequence[int]:
    """How many experts of each layer the cap leaves on the card."""
    file, spec = engine.file, engine.spec
    if args.slots:
        return (args.slots,) * spec.layers
    sizes = sizes_of(file, spec, args.ctx_size, ("f16", "f16"), own_kernels=True)
    room = fitting.budget(choose_device(args.device), parse_size(args.vram))
    return decide(sizes, Machine(room), args.ctx_size)[0].slots or (spec.experts,) * spec.layers


def settle(engine: Engine, args: argparse.Namespace) -> None:
    """Find the skews that are missing, and write the main share's routers into the file."""
    slots = planned_slots(engine, args)
    part = np.mean(slots) / engine.spec.experts
    print(
        f"# {part:.1%} of the experts are on the card; skew S: the logit of a layer's expert of rank r is lower by "
        f"S ln r; shares are those of random tokens, of a hot set learned from {LEARN * ROWS:,} others",
        flush=True,
    )
    args.shares = find_skews(engine, args.shares, slots)
    rewrite_routers(args.model, args.shares[0].skew, SEED)
    route_by(engine, args.shares[0].skew)


def run_uncapped(args: argparse.Namespace) -> Written:
    """Without a cap: the routers of every share, the text to be written, and the speed to compare with."""
    with opened(args.model, args, None) as engine:
        settle(engine, args)
        want = texts(engine)
        show(measure("uncapped", bench_of(engine), args.tokens))
    return want


def run_capped(args: argparse.Namespace, want: Written | None) -> tuple[list[Found], list[tuple[int, ...]]]:
    """Under the cap: the same text before and after experts changed places, then every share; plain's tokens too."""
    rows, written = [], list[tuple[int, ...]]()
    kernels.prove = partial(kernels.prove, anew=True)  # whatever an earlier run remembers
    with peak("capped") as meter, opened(args.model, args, parse_size(args.vram)) as engine:
        if meter is not None:
            print(f"# peak while it was opened, the self-check included: {meter.most:,} MiB", flush=True)
        if any(one.skew is None for one in args.shares):
            settle(engine, args)  # without the uncapped step
        sure, placement.SURE = placement.SURE, 1e9  # nothing moves yet
        compare("before experts changed places", engine, want)
        placement.SURE = sure
        for index, one in enumerate(args.shares):
            if index:
                route_by(engine, one.skew)
            learn(engine)
            if not index:
                compare("after experts changed places", engine, want)
            bench = bench_of(engine)
            rows.append(measure(one.name, bench, args.tokens, 1 if index else args.repetitions))
            written = written or bench.written
            show(rows[-1])
        if engine.placement is not None:
            began = time.perf_counter()
            print(
                f"# self-check again: {engine.check_kernels()}, {time.perf_counter() - began:.1f} s",
                flush=True,
            )
    return rows, written


def stock_under_cap(args: argparse.Namespace, batch: int) -> Stock:
    """Stock llama.cpp with as few layers' experts on the CPU as the cap allows, reading prompts in batches."""
    device, spec = choose_device(args.device), Spec.from_gguf(GgufFile.open(args.model))
    stock.BATCH = batch

    def load(moved: int) -> Stock:
        gpu = 0 if device.is_gpu else None
        return Stock(args.model, n_ctx=args.ctx_size, threads=default_threads(), gpu=gpu, n_cpu_moe=moved)

    budget = fitting.budget(device, parse_size(args.vram))
    kv = 4 * len(spec.attention_layers) * args.ctx_size * spec.kv_heads * spec.head_dim
    party = within(args.model, budget, load, lambda: choose_device(args.device).free, kv_bytes=kv)
    moved = f"the experts of {party.n_cpu_moe} layers with the CPU"
    print(f"# stock llama.cpp in batches of {batch}: {moved}", flush=True)
    return party


def run_stock(args: argparse.Namespace, written: list[tuple[int, ...]]) -> Found:
    """The baseline on the main share's routers: passes, plain's own tokens, and prompts in the better batch size."""
    with peak("stock"), stock_under_cap(args, STOCK_BATCH) as party:
        found = replace(pass_costs(party, party.vocab), name="stock")
        others = np.random.default_rng(3).integers(0, party.vocab, args.tokens).tolist()
        answer = written[0] if written else others
        speeds = []
        for _ in range(args.repetitions + 1):
            party.reset()
            party.prefill(random_workload(party.vocab, 1, 64).prompts[0])
            speeds.append((len(answer) - 1) / sum(party.step(token) for token in answer[:-1]))
        found.speed["plain"], found.speed["plain ±"] = float(np.mean(speeds[1:])), float(np.std(speeds[1:]))
    with stock_under_cap(args, PREFILL) as party:
        large = prefill_speed(party, party.vocab)
        print(f"# stock llama.cpp in batches of {PREFILL}: prefill {large:.0f} tok/s", flush=True)
    found.speed["prefill"] = max(found.speed["prefill"], large)
    show(found)
    return found


def run_fit(args: argparse.Namespace) -> None:
    """Another file, all of which fits under the cap, with and without it."""
    rows = []
    for name, vram in (("uncapped", None), ("capped", parse_size(args.vram))):
        with peak(f"{args.fit.name}, {name}"), opened(args.fit, args, vram) as engine:
            rows.append(measure(f"fit {name}"[:9], bench_of(engine), args.tokens, args.repetitions))
            show(rows[-1])
            print(f"# all on the card: {engine.placement is None}", flush=True)
        del engine
        gc.collect()
    print(
        f"# {args.fit.name}: plain under the cap is {rows[1].speed['plain'] / rows[0].speed['plain']:.3f} × uncapped"
    )


COLUMNS = ("plain", *(f"verify {rows}" for rows in VERIFIED), "draft 16")
SPEEDS = ("plain", "plain ±", "self", "self ±", "prefill")


def show(found: Found) -> None:
    """One row of the table: ms, then tok/s."""
    share = "" if found.share is None else f"{found.share:.1%}"
    cells = [f"{found.ms.get(name, np.nan):9.2f}" for name in COLUMNS]
    cells += [f"{found.speed.get(name, np.nan):9.1f}" for name in SPEEDS]
    print(f"{found.name:>9} {share:>7} {' '.join(cells)}", flush=True)


def ratios(rows: Sequence[Found], base: Found) -> None:
    """How many times as fast as stock llama.cpp each row is."""
    print("# times stock: plain, verify 8, self math (simulated acceptance), prefill")
    for one in rows:
        values = (
            one.speed["plain"] / base.speed["plain"],
            base.ms["verify 8"] / one.ms["verify 8"],
            one.speed["self"] / base.speed["plain"],
            one.speed["prefill"] / base.speed["prefill"],
        )
        share = "" if one.share is None else f"{one.share:.1%}"
        print(f"{one.name:>9} {share:>7} {' '.join(f'{value:9.2f}' for value in values)}")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="made by make_synthetic.py; its routers are replaced")
    add("--vram", default="16G")
    add("-c", "--ctx-size", type=int, default=32768)
    add("--device")
    add(
        "--shares", default="0.9,0.8,0.95,uniform", help="0.9, 0.9=SKEW or uniform; the first is the main one"
    )
    add("--steps", default=",".join(STEPS), help=f"some of {', '.join(STEPS)}")
    add(
        "--slots", type=int, metavar="N", help="experts of a layer on the card (default: what the cap leaves)"
    )
    add("--tokens", type=int, default=256, metavar="N", help="tokens of an answer")
    add("--repetitions", type=int, default=3, metavar="N", help="of the main share's answers and stock's")
    add("--draft-budget", type=int, metavar="N", help="experts a layer uses for a whole draft")
    add("--fit", type=Path, metavar="FIT.gguf", help="a file that fits under the cap as a whole: both ways")
    return parser


def main() -> int:
    """Print costs, whether the capped run writes what the uncapped one does, and the ratios to stock."""
    args, began = arguments().parse_args(), time.perf_counter()
    want: Written | None = None
    rows: list[Found] = []
    written: list[tuple[int, ...]] = []
    steps = args.steps.split(",") if args.steps else []
    args.shares = [Share.parse(one) for one in args.shares.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        print(f"{'':>17} " + " ".join(f"{name:>9}" for name in (*COLUMNS, *(f"{one}/s" for one in SPEEDS))))
        if args.shares[0].skew is not None:
            rewrite_routers(args.model, args.shares[0].skew, SEED)
        if "uncapped" in steps:
            want = run_uncapped(args)
            gc.collect()
        if "capped" in steps:
            rows, written = run_capped(args, want)
            gc.collect()
        if "stock" in steps:
            ratios(rows, run_stock(args, written))
        if args.fit is not None:
            run_fit(args)
        print(f"# {time.perf_counter() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
