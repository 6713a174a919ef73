"""All loops on the real engine against another engine's recorded results, for both checkpoints.

K and V are kept in f32 here, as the other engine does: the random checkpoint magnifies an f16 cache until a
token differs. The trained one gives the same tokens with either.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clover_local.decoding.events import Done, Tokens
from clover_local.decoding.generate import generate
from clover_local.decoding.settings import Settings
from clover_local.runtime.engine import Engine
from clover_local.text.tokenizer import Tokenizer

NAMES = ("tiny-clover", "clover-10m")


@pytest.fixture(scope="module", params=NAMES)
def recorded(
    request: pytest.FixtureRequest, shared: Path, tiny_f32: Path, trained_f32: Path
) -> Iterator[tuple[Engine, Tokenizer, list[dict[str, Any]]]]:
    """An engine, its tokenizer and the recorded cases."""
    path = tiny_f32 if request.param == "tiny-clover" else trained_f32
    cases = json.loads((shared / "oracle" / f"{request.param}.results.json").read_text())["cases"]
    with Engine.open(path, n_ctx=512, threads=1, device="cpu", kv_type_k="f32", kv_type_v="f32") as engine:
        yield engine, Tokenizer.from_gguf(path), cases


def answer(engine: Engine, prompt: list[int], **settings: Any) -> tuple[list[int], Done]:
    engine.reset()
    *events, done = generate(engine, prompt, Settings(**settings))
    assert isinstance(done, Done)
    return [id for event in events if isinstance(event, Tokens) for id in event.ids], done


def test_prompts_and_plain_ids(recorded: tuple[Engine, Tokenizer, list[dict[str, Any]]]) -> None:
    engine, tokenizer, cases = recorded
    for case in cases:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        ids, _ = answer(engine, case["prompt_ids"], mode="plain", max_tokens=48)
        assert ids == case["plain_ids"]


@pytest.mark.parametrize("policy", ["always", "auto"])
@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
def test_self_gives_the_plain_ids(
    recorded: tuple[Engine, Tokenizer, list[dict[str, Any]]], width: int, policy: str
) -> None:
    engine, _, cases = recorded
    for case in cases:
        ids, done = answer(
            engine, case["prompt_ids"], mode="self", draft_max=width, policy=policy, max_tokens=48
        )
        assert ids == case["plain_ids"]
        assert policy == "auto" or done.stats.rounds > 0


def test_denoising(recorded: tuple[Engine, Tokenizer, list[dict[str, Any]]]) -> None:
    engine, tokenizer, cases = recorded
    for case in cases:
        for run in case["denoise"]:
            threshold = None if run["threshold"] == "the checkpoint's" else float(run["threshold"])
            ids, done = answer(
                engine,
                case["prompt_ids"],
                mode="denoise",
                threshold=threshold,
                block_size=run["block"],
                max_tokens=run["max_tokens"],
            )
            # the other engine decodes token by token, so characters of several tokens stay broken there
            text = "".join(tokenizer.decode([id]) for id in ids if id not in engine.spec.eos_ids)
            assert text == run["text"]
            stats = done.stats
            assert (len(ids), stats.passes["denoise"], stats.rounds, done.reason) == (
                run["tokens"],
                run["passes"],
                run["blocks"],
                run["finish"],
            )


def test_drawn_text_does_not_depend_on_drafts(trained_f32: Path) -> None:
    """Above temperature 0 a seed gives the same text plain, drafted always and drafted by policy.

    On f32 weights: quantized products change a little with the row count, and a draw can fall between.
    """
    with Engine.open(trained_f32, n_ctx=512, threads=1, device="cpu") as engine:
        prompt = Tokenizer.from_gguf(trained_f32).encode(
            "<|im_start|>user\nTell me a short story about a ship.<|im_end|>\n<|im_start|>assistant\n"
        )
        rest = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 60}
        texts = set()
        for seed in (1, 2, 3):
            plain, _ = answer(engine, prompt, mode="plain", seed=seed, **rest)
            for policy in ("always", "auto"):
                assert answer(engine, prompt, mode="self", policy=policy, seed=seed, **rest)[0] == plain
            texts.add(tuple(plain))
        assert len(texts) == 3, "the seeds must make a difference"


def test_an_int4_file_gives_the_same_text_in_plain_and_self(trained_int4: Path, shared: Path) -> None:
    cases = json.loads((shared / "oracle/clover-10m.results.json").read_text())["cases"]
    with Engine.open(trained_int4, n_ctx=512, threads=1, device="cpu") as engine:
        for case in cases:
            plain, _ = answer(engine, case["prompt_ids"], mode="plain", max_tokens=120)
            for width in (2, 4, 8, 16, 32):
                settings = {"mode": "self", "policy": "always", "draft_max": width, "max_tokens": 120}
                assert answer(engine, case["prompt_ids"], **settings)[0] == plain, width
