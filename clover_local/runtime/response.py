"""What the response processing of one pass depends on, worked out from the response so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clover_local.model.passes import Kind
from clover_local.model.processing import Processing


class Counts(dict[int, int]):
    """How often a response holds each token, and its tokens in their order: whoever follows it need not compare
    everything at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def add(self, token: int) -> None:
        """Count one more token."""
        self[token] = self.get(token, 0) + 1
        self.log.append(token)


@dataclass(frozen=True)
class Response:
    """Inputs of the processing of one pass.

    `counts` of the committed response; with `counted`, rows 0…r count for row r too; per row the bias of every
    stop token and of the end of the reasoning.
    """

    settings: Processing | None = None
    counts: Mapping[int, int] = field(default_factory=dict)
    counted: bool = False
    length_bias: Sequence[float] = ()
    think_bias: Sequence[float] = ()


def response_of(
    settings: Processing | None,
    counts: Mapping[int, int],
    kind: Kind,
    tokens: Sequence[int],
    *,
    answers: bool,
) -> Response:
    """The processing inputs of a pass over `tokens`, after a response with these `counts`.

    `answers`: the rows are tokens of the response (prompt rows are not). Causal row j then judges the place after
    the response and rows 0…j; a preview row judges its own place; a prompt's row judges the first.
    """
    if settings is None:
        return Response()
    written = len(counts.log) if isinstance(counts, Counts) else sum(counts.values())
    n = len(tokens)
    preview = kind is Kind.PREVIEW
    first = written + 1 if preview or not answers else written + 2
    places = [first + (row if preview or answers else 0) for row in range(n)]
    end = settings.think_end_id
    closed = end is not None and (end in counts or (preview and end in tokens))
    think = []
    for row, place in enumerate(places):
        still_open = not closed and not (answers and end in tokens[: row + 1])
        think.append(settings.think_end.at(place) if still_open else 0.0)
    length = [settings.length.at(place) for place in places]
    return Response(settings, counts, answers, length, think)
