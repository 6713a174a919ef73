"""The engine in its own process: loading, answers, stops, deaths; nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clover_local.chat.client import explain
from clover_local.chat.protocol import (
    Ask,
    Cancel,
    Count,
    Counted,
    Died,
    Failed,
    ModelChoice,
    Overflow,
    Ready,
    Reply,
    Report,
    Started,
    Turn,
)
from clover_local.chat.worker import throttled
from clover_local.decoding.events import Done, Prefilled, Tokens
from clover_local.decoding.settings import Settings

from .conftest import Talk

QUESTION = Turn("user", "Tom has 3 boxes of 12 pencils and gives away 7. How many pencils are left?")
ENDLESS = Settings(mode="plain", max_tokens=900, ignore_stop=True)


def is_event(kind: type) -> Callable[[Report], bool]:
    return lambda report: isinstance(report, Reply) and isinstance(report.event, kind)


def gone(pid: int) -> bool:
    """Whether there is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def test_the_model_tells_of_itself(talk: Talk) -> None:
    ready = talk.reports[-1]
    assert isinstance(ready, Ready)
    assert ready.pid == talk.engine.pid
    assert (ready.about.n_ctx, ready.about.can_draft, ready.about.thinks) == (1024, True, True)
    assert ready.about.memory["weights"] > 1_000_000


def test_progress_is_thinned_out_but_its_end_is_always_told() -> None:
    told: list[tuple[int, int]] = []
    tell = throttled(lambda done, total: told.append((done, total)))
    for done in range(1, 1001):
        tell(done, 1000)
    assert told[0] == (1, 1000) and told[-1] == (1000, 1000)
    assert len(told) < 100


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
def test_an_answer_streams(talk: Talk, mode: str) -> None:
    talk.engine.send(Ask(1, (QUESTION,), Settings(mode=mode)))  # type: ignore[arg-type]
    done = talk.until(is_event(Done))
    assert isinstance(done, Reply) and isinstance(done.event, Done)
    replies = [r for r in talk.reports if isinstance(r, Reply)]
    text = "".join(r.event.text for r in replies if isinstance(r.event, Tokens))
    started = next(r for r in talk.reports if isinstance(r, Started))
    assert started.reasoning and started.prompt_tokens > 10
    assert isinstance(replies[0].event, Prefilled)
    assert "</think>" in text and "Answer:" in text
    assert done.event.reason == "stop"
    kept = sum(len(r.event.ids) for r in replies if isinstance(r.event, Tokens))
    assert done.event.stats.tokens == kept
    assert 0 < sum(r.thought for r in replies) < kept


def test_tokens_per_second_is_what_a_watch_outside_says(talk: Talk) -> None:
    talk.engine.send(Ask(1, (QUESTION,), ENDLESS))
    done = talk.until(is_event(Done))
    assert isinstance(done, Reply) and isinstance(done.event, Done)
    moments = [t for t, r in zip(talk.times, talk.reports, strict=True) if is_event(Tokens)(r)]
    stats = done.event.stats
    outside = (stats.tokens - 1) / (moments[-1] - moments[0])  # the prefill chose the first
    assert stats.tokens_per_second == pytest.approx(outside, rel=0.02)


def test_a_stop_takes_less_than_fifty_milliseconds_and_keeps_the_answer(talk: Talk) -> None:
    waits = []
    for n in range(5):
        talk.engine.send(Ask(n, (QUESTION,), ENDLESS))
        for _ in range(4):
            talk.until(is_event(Tokens))
        sent = time.perf_counter()
        talk.engine.send(Cancel(n))
        done = talk.until(is_event(Done))
        waits.append(talk.times[-1] - sent)
        assert isinstance(done, Reply) and isinstance(done.event, Done)
        assert done.event.reason == "cancelled" and 4 <= done.event.stats.tokens < 900
    assert sorted(waits)[len(waits) // 2] < 0.05


def test_a_question_sent_while_loading_is_answered(
    start: Callable[[ModelChoice], Talk], trained_int4: Path
) -> None:
    talk = start(ModelChoice(str(trained_int4), ctx=512, threads=1))
    talk.engine.send(Ask(7, (QUESTION,), Settings(max_tokens=4)))
    done = talk.until(is_event(Done))
    assert isinstance(done, Reply) and done.id == 7


def test_count_and_overflow(talk: Talk) -> None:
    talk.engine.send(Count(1, (QUESTION,)))
    counted = talk.until_kind(Counted)
    assert isinstance(counted, Counted) and 10 < counted.tokens < 100 and counted.n_ctx == 1024
    many = tuple(Turn("user" if n % 2 == 0 else "assistant", "apples " * 60) for n in range(31))
    talk.engine.send(Ask(2, many))
    overflow = talk.until_kind(Overflow)
    assert isinstance(overflow, Overflow) and overflow.prompt_tokens > 1024 and overflow.drop > 0


def test_a_bad_request_fails_with_a_sentence_and_the_engine_lives(talk: Talk) -> None:
    talk.engine.send(Ask(1, (Turn("user", ""),), Settings(max_tokens=1)))
    talk.until(is_event(Done))
    talk.engine.send(Ask(2, (QUESTION,), Settings(max_tokens=2)))
    assert talk.until(is_event(Done))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "there is no file"), (b"GGUF", "truncated|shorter|ends"), (b"no model", "not a GGUF")],
)
def test_a_model_that_cannot_be_loaded_is_a_sentence(
    start: Callable[[ModelChoice], Talk], tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    talk = start(ModelChoice(str(file)))
    failed = talk.until_kind(Failed, Died)
    assert isinstance(failed, Failed) and failed.id is None
    import re

    assert re.search(sentence, failed.sentence) and "model.gguf" in failed.sentence
    assert wait_until(lambda: not talk.engine.alive)


def test_kill_9_is_reported_and_reaped(talk: Talk) -> None:
    talk.engine.send(Ask(1, (QUESTION,), ENDLESS))
    talk.until(is_event(Tokens))
    os.kill(talk.engine.pid, signal.SIGKILL)
    died = talk.until_kind(Died, seconds=10)
    assert isinstance(died, Died) and died.reason == "the engine was killed (signal 9, SIGKILL)"
    assert gone(talk.engine.pid)


def test_close_ends_the_process_even_while_it_answers(talk: Talk) -> None:
    talk.engine.send(Ask(1, (QUESTION,), ENDLESS))
    talk.until(is_event(Tokens))
    talk.engine.close(patience=1.0)
    assert gone(talk.engine.pid)
    assert not [r for r in talk.reports if isinstance(r, Died)]


PARENT = """
import sys, time
from clover_local.chat.client import EngineProcess
from clover_local.chat.protocol import Ask, ModelChoice, Ready, Reply, Turn
from clover_local.decoding.settings import Settings
def listen(report):
    if isinstance(report, Ready):
        settings = Settings(mode="plain", max_tokens=900, ignore_stop=True)
        engine.send(Ask(1, (Turn("user", "Hello!"),), settings))
    if isinstance(report, Reply):
        print(engine.pid, flush=True)
engine = EngineProcess(ModelChoice(sys.argv[1], ctx=1024, threads=1), listen)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_by_itself_when_the_program_is_gone(trained_int4: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(trained_int4)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: gone(pid) or _is_zombie_of_init(pid), 5.0)


def _is_zombie_of_init(pid: int) -> bool:
    """An orphan that has ended waits for the init process, which is not ours to judge."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


MEMORY_LIMIT = """
import resource, sys
from clover_local.chat import worker
real = worker._load
def limited(choice, send):
    model = real(choice, send)
    hog = []
    limit = 64 * 1024 * 1024 + int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    send(worker.Loading(1, 1))
    hog.append(bytearray(10**9))
    return model
worker._load = limited
worker.main()
"""


def test_running_out_of_memory_while_loading_is_a_sentence(
    start: Callable[[ModelChoice], Talk], trained_int4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover_local.chat.client._START", MEMORY_LIMIT)
    talk = start(ModelChoice(str(trained_int4), threads=1))
    failed = talk.until_kind(Failed, Died)
    assert isinstance(failed, Failed) and "not enough memory" in failed.sentence


@pytest.mark.parametrize(
    ("code", "output", "memory", "reason"),
    [
        (-9, "", False, "the engine was killed (signal 9, SIGKILL)"),
        (-9, "", True, "the system ended the engine because memory ran out"),
        (-11, "Fatal Python error", False, "the engine crashed (signal 11, SIGSEGV)"),
        (
            -6,
            "x\nggml.c:12: GGML_ASSERT(a) failed\n",
            False,
            "the engine crashed (signal 6, SIGABRT): ggml.c:12: GGML_ASSERT(a) failed",
        ),
        (-15, "", False, "the engine was told to end (signal 15, SIGTERM)"),
        (1, "Traceback\nMemoryError", False, "the engine ran out of memory"),
        (-6, "CUDA error: out of memory\n", False, "the engine ran out of memory"),
        (
            3,
            "Traceback\nImportError: no libllama\n",
            False,
            "the engine ended with code 3: ImportError: no libllama",
        ),
    ],
)
def test_every_death_has_its_reason(code: int, output: str, memory: bool, reason: str) -> None:
    assert explain(code, output, memory).reason == reason
