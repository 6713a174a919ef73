"""Options that several commands share, in llama.cpp's words, and what they mean."""

import argparse
from collections.abc import Callable
from typing import Any

from clover_local.decoding.settings import Settings

UNLIMITED = 2**31  # what -n -1 asks for: the context ends the answer before


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and where it runs."""
    add = parser.add_argument_group("model").add_argument
    add("-m", "--model", metavar="MODEL", help="a GGUF file, `demo`, or a hub id owner/name[:QUANT]")
    add_engine_options(add)


def add_engine_options(
    add: Callable[..., object], context: str = "context in tokens (default: the model's, up to 32768)"
) -> None:
    """Where and with how much memory a model runs; `context` is the help of --ctx-size."""
    add("-c", "--ctx-size", type=int, metavar="N", help=context)
    add("-t", "--threads", type=int, metavar="N", help="CPU threads (default: by machine and model)")
    add("--device", metavar="NAME", help="cpu, gpu or a device's name (default: a GPU if there is one)")
    add("--cache-type-k", default="f16", metavar="TYPE", help="type of the K cache: f16 (default), q8_0, f32")
    add("--cache-type-v", default="f16", metavar="TYPE", help="type of the V cache: f16 (default), q8_0, f32")
    add("--vram", metavar="SIZE", help="video memory to use at most, like 16G (default: what is free)")
    add(
        "-ncmoe",
        "--n-cpu-moe",
        type=int,
        metavar="N",
        help="layers whose experts stay with the CPU (default: as few as fit)",
    )
    add("--offline", action="store_true", help="do not ask the hub; use what its cache holds")


def add_draft_options(add: Callable[..., object]) -> None:
    """How cheap drafts are; they change the speed, never a text."""
    add(
        "--draft-experts",
        type=int,
        metavar="N",
        help="experts a row uses in a draft (default: the model's number)",
    )
    add(
        "--draft-budget",
        type=int,
        metavar="N",
        help="experts a layer uses for a whole draft (default: the model's coreset)",
    )


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """How to decode; the defaults are those of Settings."""
    d = Settings()
    add = parser.add_argument_group("decoding").add_argument
    add(
        "-n",
        "--predict",
        type=int,
        default=d.max_tokens,
        metavar="N",
        help="tokens to write at most (default: %(default)s; -1: until the context is full)",
    )
    add(
        "--mode",
        choices=("plain", "self", "denoise"),
        default=d.mode,
        help="one token at a time, drafts verified by the model (default), or whole blocks",
    )
    add(
        "--accept",
        choices=("exact", "lossless", "release"),
        default=d.accept,
        help="keep drafts that change no word (default), or by the release's looser rule",
    )
    add(
        "--draft-max",
        type=int,
        default=d.draft_max,
        metavar="N",
        help="rows of a draft (default: %(default)s)",
    )
    add_draft_options(add)
    add(
        "--policy",
        choices=("auto", "always"),
        default=d.policy,
        help="draft where it pays (default), or always",
    )
    add(
        "--threshold",
        type=float,
        metavar="P",
        help="confidence that fixes a row of a block (default: the file's)",
    )
    add("--block-size", type=int, metavar="N", help="rows of a block (default: the file's)")
    add(
        "--temp",
        type=float,
        default=d.temperature,
        metavar="T",
        help="temperature; 0 (default) takes the likeliest token",
    )
    add(
        "--top-k",
        type=int,
        default=d.top_k,
        metavar="N",
        help="draw among the N likeliest tokens (default: off)",
    )
    add("--top-p", type=float, default=d.top_p, metavar="P", help="draw among the likeliest P of the mass")
    add(
        "--min-p", type=float, default=d.min_p, metavar="P", help="draw among tokens of P times the likeliest"
    )
    add("-s", "--seed", type=int, metavar="N", help="seed of the draws (default: a new one each time)")
    add("--ignore-eos", action="store_true", help="go on after a stop token")


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings that the options ask for; raises UsageError naming an option that is out of range."""
    return Settings(
        mode=args.mode,
        accept=args.accept,
        max_tokens=UNLIMITED if args.predict == -1 else args.predict,
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        draft_max=args.draft_max,
        policy=args.policy,
        threshold=args.threshold,
        block_size=args.block_size,
        ignore_stop=args.ignore_eos,
    )


def load_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `clover_local.load` that the options ask for, the model's name apart."""
    return {
        "ctx": args.ctx_size,
        "threads": args.threads,
        "device": args.device,
        "cache_type_k": args.cache_type_k,
        "cache_type_v": args.cache_type_v,
        "vram": args.vram,
        "host_layers": args.n_cpu_moe,
        "offline": args.offline,
    }
