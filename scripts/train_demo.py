"""Train the demo model: corpus, tokenizer, training, measures and checkpoint, from nothing.

    python scripts/train_demo.py --out demo-out                    on one GPU, within ten minutes
    python scripts/train_demo.py --out demo-out --device cpu --steps 200 --batch 8    on a CPU, slowly: a trial

Needs torch, tokenizers and safetensors. The run is seeded and sized by time (`--minutes`, compilation included) or by
`--steps`. It writes DIR/checkpoint (Hugging Face layout, unrounded f16; also at every quarter of the way),
DIR/report.json and DIR/log.txt; scripts/ship_demo.py rounds the checkpoint and converts it into the file that ships.
docs/demo-model.md holds the figures of the shipped run.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

BEGAN = time.time()
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from demo import evaluate, export, initial, objective, parallel, rounding, tokenizer  # noqa: E402
from demo.corpus import sequences  # noqa: E402
from demo.optimizer import Optimizer  # noqa: E402
from reference.layers import Shape  # noqa: E402
from reference.model import Model  # noqa: E402


@dataclass
class Clock:
    """How far the training is, by time or by steps, and the schedules that hang on it."""

    minutes: float  # from the start of the program to the last step
    steps: int | None
    start: float = 0.0
    seconds: float = 0.0
    done: float = 0.0

    def tick(self, step: int) -> float:
        """Progress in [0, 1]; the clock starts with the fourth step, after compilation."""
        if self.steps is not None:
            self.done = step / self.steps
        else:
            now = time.time() - BEGAN
            if step == 3:
                self.start, self.seconds = now, max(1.0, 60 * self.minutes - now)
            self.done = max(self.done, (now - self.start) / self.seconds) if self.start else 0.0
        return self.done

    def rate(self, step: int) -> float:
        """Learning rate factor: a short warm-up, flat, then a cosine down to a fiftieth."""
        fall = max(0.0, (self.done - 0.3) / 0.7)
        return min(1.0, (step + 1) / 40) * max(0.02, 0.5 * (1 + math.cos(math.pi * min(1.0, fall))))

    def block_weight(self) -> float:
        """Weight of the block loss: small at first, so that the stream leads, then the larger one."""
        return 0.4 + 0.8 * min(1.0, self.done / 0.5)


class Packed(torch.utils.data.IterableDataset):
    """Batches of packed sequences; every worker draws from a seed of its own."""

    def __init__(self, file: Path, batch: int, length: int, seed: int) -> None:
        self.file, self.batch, self.length, self.seed = file, batch, length, seed

    def __iter__(self) -> Iterator[Tensor]:
        from tokenizers import Tokenizer

        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        packed = sequences(
            Tokenizer.from_file(str(self.file)), 1_000_003 * (self.seed + 1) + worker, self.length
        )
        while True:
            rows = [torch.from_numpy(next(packed).astype("int32")) for _ in range(self.batch)]
            yield torch.stack(rows)


def main(args: argparse.Namespace) -> int:
    """All phases; see the module's first lines."""
    args.out.mkdir(parents=True, exist_ok=True)
    say = logger(args.out / "log.txt")
    torch.set_float32_matmul_precision("high")
    vocabulary = tokenizer.train(args.vocabulary, args.tokenizer_documents)
    folder = args.out / "checkpoint"
    folder.mkdir(exist_ok=True)
    tokenizer.save(vocabulary, folder, initial.CONTEXT)
    end, turn_end, mask = (vocabulary.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>", "<|mask|>"))
    config = initial.config(vocabulary.get_vocab_size(), mask, turn_end, end)
    shape = Shape.from_config(config)
    say(f"tokenizer of {shape.vocab} tokens")

    batches = loader(args, folder / "tokenizer.json")
    weights = {
        name: w.to(args.device).requires_grad_() for name, w in initial.weights(shape, args.seed).items()
    }
    say(f"{sum(w.numel() for w in weights.values()):,} parameters")
    digits = tuple(vocabulary.token_to_id(d) for d in "0123456789")
    rules = objective.Rules(end, turn_end, mask, blocks=args.length // 32 * 5 // 8, digits=digits)

    def save() -> None:
        export.save(weights, folder, config, dtype=torch.float16)
        say(f"checkpoint {export.digest(folder)}")

    history = train(args, shape, weights, rules, batches, say, save)
    save()
    shipped = rounding.ship(weights)
    torch.set_float32_matmul_precision("highest" if args.device == "cpu" else "high")
    ids = evaluate.Ids(end, turn_end, mask)
    report = evaluate.evaluate(Model(shape, shipped), vocabulary, ids, count=args.questions, most=args.most)
    report |= {"history": history, "arguments": {k: str(v) for k, v in vars(args).items()}}
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    say("measured, rounded as shipped:\n" + evaluate.table(report))
    return 0


def logger(file: Path) -> Callable[[str], None]:
    """Print a line with the seconds since the start, and keep it."""
    handle = file.open("w")

    def say(text: str) -> None:
        line = f"[{time.time() - BEGAN:6.1f}] {text}"
        print(line, flush=True)
        print(line, file=handle, flush=True)

    return say


def loader(args: argparse.Namespace, file: Path) -> Iterator[Tensor]:
    """Batches of flagged ids from worker processes."""
    data = Packed(file, args.batch, args.length, args.seed)
    pinned = args.device != "cpu"
    many = torch.utils.data.DataLoader(
        data,
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=8 if args.workers else None,
        pin_memory=pinned,
    )
    return iter(many)


def train(
    args: argparse.Namespace,
    shape: Shape,
    weights: dict[str, Tensor],
    rules: objective.Rules,
    batches: Iterator[Tensor],
    say: Callable[[str], None],
    save: Callable[[], None],
) -> list[list[float]]:
    """Run until the clock is over, saving at every quarter; returns [step, stream loss, block loss] now and then."""
    fast = args.device != "cpu"
    compiled = (lambda f: torch.compile(f, dynamic=False)) if fast else (lambda f: f)
    layer, losses, grid = map(compiled, (parallel.one_layer, objective.losses, rounding.q4_k))
    dtype = torch.bfloat16 if fast else torch.float32
    optimizer, clock = Optimizer(weights), Clock(args.minutes, args.steps)
    draw = torch.Generator(args.device).manual_seed(args.seed)

    def one_step(step: int) -> tuple[Tensor, Tensor, Tensor]:
        ids = next(batches).to(args.device, torch.int64, non_blocking=True)
        target = objective.targets(ids, rules, draw)
        amount = torch.tensor(float(clock.done >= args.round_from), device=args.device)
        used = rounding.rounded(weights, amount, grid)
        hidden, balance = parallel.forward(shape, used, target.batch, dtype, layer)
        stream, block = losses(shape, used, hidden, target)
        (stream + clock.block_weight() * block + 0.01 * balance).backward()
        optimizer.step(args.rate * clock.rate(step))
        return stream.detach(), block.detach(), balance.detach()

    history: list[list[float]] = []
    step, saved = 0, 0.25
    while clock.tick(step) < 1.0:
        stream, block, balance = one_step(step)
        step += 1
        if clock.done >= saved:
            saved += 0.25
            save()
        if step in (1, 3) or step % args.report == 0:
            history.append([step, float(stream), float(block)])
            seconds = time.time() - BEGAN - clock.start if clock.start else math.inf
            say(
                f"step {step} at {clock.done:.2f}: stream {float(stream):.4f} block {float(block):.4f} "
                f"balance {float(balance):.3f}, {(step - 3) * args.batch * args.length / seconds / 1e3:.0f}k tokens/s"
            )
    say(f"trained {step} steps, {step * args.batch * args.length / 1e6:.0f} M tokens")
    if args.profile:
        with torch.profiler.profile() as profile:
            one_step(step)
        say(
            profile.key_averages().table(
                sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70
            )
        )
    return history


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the demo model of clover-local.")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for checkpoint, report and log")
    add("--minutes", type=float, default=8.5, help="from the start of the program to the last step")
    add("--steps", type=int, help="train so many steps instead")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--batch", type=int, default=128, help="sequences of a step")
    add("--length", type=int, default=512, help="tokens of a sequence, a multiple of 32")
    add("--vocabulary", type=int, default=1280)
    add("--tokenizer-documents", type=int, default=12_000)
    add(
        "--workers",
        type=int,
        default=min(12, (os.cpu_count() or 2) - 1),
        help="processes that write the corpus",
    )
    add("--seed", type=int, default=0)
    add("--rate", type=float, default=1.0, help="factor on every learning rate")
    add("--round-from", type=float, default=0.4, help="progress at which 4-bit rounding joins")
    add("--questions", type=int, default=256, help="held-out-pair problems of the measure")
    add("--most", type=int, default=evaluate.MOST, help="tokens of the longest answer measured")
    add("--profile", action="store_true", help="print where the time of a step goes")
    add("--report", type=int, default=100, help="steps between log lines")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(arguments()))
