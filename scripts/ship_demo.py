"""Round a trained checkpoint as it was measured and convert it into the file that ships.

    python scripts/ship_demo.py demo-out/checkpoint

Training ends with f16 weights that it measured rounded to ggml's 4-bit grid. They are rounded here the same way, so
that the conversion loses nothing: every matrix is Q4_K, router, norms and the small vectors are F32. Writes
clover_local/data/demo.gguf and prints its size and hash.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from demo import export, rounding, tokenizer  # noqa: E402
from reference.model import load  # noqa: E402

from clover_local.convert import convert  # noqa: E402

OUTPUT = ROOT / "clover_local" / "data" / "demo.gguf"
LARGEST = 10_000_000
THRESHOLD = 0.999
TYPES = (
    ("*", "q4_k"),
    ("blk.*.ffn_gate_inp.weight", "f32"),
    ("blk.*.ssm_alpha.weight", "f32"),
    ("blk.*.ssm_beta.weight", "f32"),
)


def round_checkpoint(source: Path, target: Path, threshold: float) -> None:
    """Write `source` with rounded f32 weights, the present chat template and this denoising threshold."""
    weights = rounding.ship(dict(load(source).weights))
    config = json.loads((source / "config.json").read_text())
    config["denoising_config"]["threshold"] = threshold
    export.save(weights, target, config, dtype=torch.float32)
    shutil.copy(source / "tokenizer.json", target)
    told = json.loads((source / "tokenizer_config.json").read_text()) | {"chat_template": tokenizer.TEMPLATE}
    (target / "tokenizer_config.json").write_text(json.dumps(told, indent=1) + "\n")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert a trained demo checkpoint into the shipped file.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="denoising threshold written into the file"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounded = Path(folder) / "clover-demo"
        round_checkpoint(args.checkpoint, rounded, args.threshold)
        convert(rounded, args.output, recipe="int4", overrides=TYPES, force=True)
    size = args.output.stat().st_size
    print(f"{args.output}: {size:,} bytes, sha256 {hashlib.sha256(args.output.read_bytes()).hexdigest()}")
    print(f"from the checkpoint {export.digest(args.checkpoint)}")
    return 0 if size <= LARGEST else 1


if __name__ == "__main__":
    sys.exit(main())
