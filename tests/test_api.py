"""The Python interface on a real model, and the snippets of docs/api.md as they stand."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import clover_local
from clover_local.api import Block, Done, Model, Prefilled, Tokens
from clover_local.errors import ContextFullError, UsageError

DOCS = Path(__file__).parents[1] / "docs"
ASK = [{"role": "user", "content": "Convert 7 km to m."}]
RAW = "<|im_start|>user\nConvert 7 km to m.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model(trained_f32: Path) -> Iterator[Model]:
    with clover_local.load(trained_f32, ctx=512, threads=1, device="cpu") as model:
        yield model


def text_of(model: Model, *args: object, **more: object) -> str:
    return "".join(e.text for e in model.generate(*args, **more) if isinstance(e, Tokens))


def test_a_text_is_answered(model: Model) -> None:
    events = list(model.generate(RAW))
    assert isinstance(events[0], Prefilled) and isinstance(events[-1], Done)
    text = "".join(e.text for e in events if isinstance(e, Tokens))
    assert text == "There are 1000 m in one km.\n7 km = 7 x 1000 m = 7000 m.\nAnswer: 7000 m"
    assert events[-1].reason == "stop"


def test_every_way_to_ask_is_the_same_prompt(model: Model) -> None:
    rendered = model.template.render(ASK, enable_thinking=False)
    ids = model.prompt_ids(ASK, thinking=False)
    assert ids == model.prompt_ids(rendered) == model.prompt_ids(ids) == model.tokenizer.encode(rendered)
    assert model.prompt_ids(ASK) != ids, "thinking is the template's default"
    by_text = text_of(model, rendered)
    model.engine.reset()
    assert text_of(model, ids) == by_text == text_of(model, ASK, thinking=False)


def test_a_prompt_that_goes_on_from_the_state_reuses_it(model: Model) -> None:
    done = list(model.generate(RAW))[-1]
    answer = model.tokenizer.decode(model.engine.tokens)
    more = answer + "<|im_end|>\n<|im_start|>user\nConvert 3 km to m.<|im_end|>\n<|im_start|>assistant\n"
    first, *_, again = model.generate(more)
    assert first.reused >= done.stats.prompt_tokens + done.stats.tokens - 1
    model.engine.reset()
    fresh, *_, anew = model.generate(more)
    assert fresh.reused == 0 and again.stats.tokens == anew.stats.tokens
    other, *_ = model.generate("Something else")
    assert other.reused == 0


def test_ids_continue_the_state_and_are_checked(model: Model) -> None:
    model.engine.reset()
    first, *_ = model.generate([5, 6, 7])
    assert first.reused == 0
    here = model.engine.n_past
    second, *_ = model.generate([8])
    assert second.reused == here
    for wrong in (-1, 10**9, "5"):
        with pytest.raises(UsageError, match="is no token id"):
            model.generate([1, wrong])


def test_blocks_have_a_piece_of_text_per_row(model: Model) -> None:
    settings = clover_local.Settings(mode="denoise", threshold=0.99)
    blocks = [e for e in model.generate(RAW, settings) if isinstance(e, Block)]
    assert len(blocks) > 1 and all(len(b.text) == len(b.tokens) == len(b.confidence) for b in blocks)
    assert all(text == "" for b in blocks for text, id in zip(b.text, b.tokens, strict=True) if id is None)
    assert "There" in "".join(blocks[-2].text) or "There" in "".join(blocks[0].text)


def test_what_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(ContextFullError, match="and the context holds 512"):
        list(model.generate("word " * 2000))
    with pytest.raises(UsageError, match="prompt is empty"):
        list(model.generate(""))
    with pytest.raises(UsageError, match="need a prompt of messages"):
        model.generate(RAW, thinking=True)


def test_closing_early_keeps_the_state_of_the_last_commit(model: Model) -> None:
    events = model.generate(RAW)
    ids: list[int] = []
    while len(ids) < 5:
        event = next(events)
        ids += event.ids if isinstance(event, Tokens) else ()
    events.close()
    prompt = model.prompt_ids(RAW)
    assert model.engine.tokens == (*prompt, *ids)[: model.engine.n_past]
    assert model.engine.n_past >= len(prompt) + len(ids) - 1


@pytest.mark.parametrize("page", ["api.md"])
def test_the_snippets_run_as_they_stand(page: str, trained_int4: Path, tmp_path: Path, monkeypatch) -> None:
    """In one namespace, from top to bottom, in a folder that holds a model.gguf."""
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").symlink_to(trained_int4)
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 4
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, f"docs/{page}", "exec"), names)
