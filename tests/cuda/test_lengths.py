"""Context lengths on the emulator: every token counted once at every boundary, and no byte read behind a buffer."""

import faulthandler
import multiprocessing
import signal
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from clover_local.model.spec import Spec

from .emulation import Emulator, FencedEmulator, library
from .lengths import LARGE, Attention, Case, counts_every_token, error
from .synthetic import FIT16, INT4, MIXED, SMALL, network
from .trace import Session

AROUND = (0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1008, 1023, 1024, 1025, 4095, 4096)
ROOM = 48  # tokens of context in the fenced passes


@pytest.mark.parametrize(("kind", "rows"), [("verify", 1), ("verify", 7), ("preview", 16), ("verify", 32)])
def test_every_token_counts_once_at_every_length(kind: str, rows: int) -> None:
    machine, rng = Emulator(), np.random.default_rng(rows)
    attention = Attention(machine, SMALL, AROUND[-1] + rows)
    for past in AROUND:
        case = Case(kind, rows, past)
        assert counts_every_token(attention, case, rng), case
        assert error(attention, case, rng) < 2e-3, case
    machine.check()


@pytest.mark.parametrize(("spec", "past"), [(LARGE, 1023), (LARGE, 16384), (SMALL, 32767), (SMALL, 131071)])
def test_long_contexts(spec: Spec, past: int) -> None:
    """Heads of the full size too; after 131,071 tokens a float knows the angles of rope to a hundredth."""
    machine, rng = Emulator(), np.random.default_rng(past)
    attention, case = Attention(machine, spec, past + 1), Case("verify", 1, past)
    assert counts_every_token(attention, case, rng)
    assert error(attention, case, rng) < 2e-2
    machine.check()


def _passes(recipe: Mapping[str, str], short: int, cut: int) -> None:
    """Passes that fill the context to its last token; `short` of the KV caches or `cut` of shared memory lack."""
    faulthandler.disable()
    size = ROOM * SMALL.kv_heads * SMALL.head_dim * 2
    machine = FencedEmulator(short, size)
    session = Session(network(SMALL, recipe, machine, ROOM), machine)
    rng = np.random.default_rng(0)
    for kind, rows, past in (("store", 16, 0), ("verify", 32, 16), ("commit", 31, 16), ("preview", 1, 47),
                             ("verify", 1, 47), ("preview", 32, 16), ("store", 5, 43), ("verify", 8, 40)):  # fmt: skip
        session.past = past
        session.begin(kind, rows, rng.integers(0, SMALL.vocab, rows).tolist())
        launches = session.launches(kind, rows)
        machine.run([replace(one, shared=max(one.shared - cut, 0)) for one in launches])


def _exit_code(recipe: Mapping[str, str], short: int = 0, cut: int = 0) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=_passes, args=(recipe, short, cut))
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", [MIXED, FIT16], ids=["mixed", "fit16"])
def test_nothing_is_touched_behind_a_buffer(recipe: Mapping[str, str]) -> None:
    """Weights, scratch and state each end at a page that cannot be read, the context at its last token."""
    library("rows", ())  # skips here, not in the child, where there is no compiler
    assert _exit_code(recipe) == 0


def test_a_byte_behind_a_buffer_would_be_noticed() -> None:
    """The same with a KV cache that lacks its last token."""
    library("rows", ())
    assert _exit_code(INT4, short=SMALL.kv_heads * SMALL.head_dim * 2) == -signal.SIGSEGV


def test_a_byte_behind_shared_memory_would_be_noticed() -> None:
    """The same with launches that reserve too little of it."""
    library("rows", ())
    assert _exit_code(INT4, cut=64) == -signal.SIGABRT
