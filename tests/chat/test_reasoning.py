"""The reasoning is told from the answer wherever the pieces are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clover_local.chat.reasoning import Splitter


def split(pieces: list[str], inside: bool) -> tuple[str, str]:
    splitter = Splitter(inside)
    parts = [*map(splitter.feed, pieces), splitter.finish()]
    return "".join(p[0] for p in parts), "".join(p[1] for p in parts)


def test_reasoning_ends_at_its_mark() -> None:
    assert split(["\n36 - 7 = 29\n", "</think>", "\n\n29 are left"], True) == ("36 - 7 = 29\n", "29 are left")


def test_an_answer_without_reasoning_is_all_answer() -> None:
    assert split(["a < b and ", "<thin", "king>"], False) == ("", "a < b and <thinking>")


def test_reasoning_that_never_ends_is_all_reasoning() -> None:
    assert split(["so </thin"], True) == ("so </thin", "")


def test_a_model_may_open_the_section_itself() -> None:
    assert split(["<think>", "hm", "</think>ok"], False) == ("hm", "ok")


@given(cuts=st.lists(st.integers(0, 40), max_size=12))
def test_any_cut_gives_the_same_parts(cuts: list[int]) -> None:
    text = "one <b>\n</think>\n\ntwo <think>x</think> three </th"
    places = sorted({0, len(text), *(min(c, len(text)) for c in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert split(pieces, True) == split([text], True)
