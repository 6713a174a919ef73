"""The answer being written, and what an answer lacks that was not written to its end."""

from dataclasses import dataclass, field

from clover_local.chat.reasoning import Splitter
from clover_local.chat.tree import STALE, Message
from clover_local.decoding.events import Block, Stats
from clover_local.tui.figures import Meter


@dataclass
class Live:
    """The answer being written."""

    ask: int
    chat: int
    message: Message
    mode: str
    splitter: Splitter = field(default_factory=lambda: Splitter(False))
    content: str = ""
    reasoning: str = ""
    fresh: str = ""
    """What the screen has not taken over yet."""
    thought_tokens: int = 0
    block: Block | None = None
    meter: Meter = field(default_factory=Meter)
    prompt: tuple[int, int] = (0, 0)
    """Prompt tokens computed, of how many."""
    prompt_tokens: int = 0
    n_ctx: int = 0
    stats: Stats | None = None
    saved: float = 0.0
    stopping: bool = False

    def add(self, text: str, thought: int) -> None:
        """Take in what the answer's newest tokens say, `thought` of which are reasoning."""
        self._take(*self.splitter.feed(text))
        self.thought_tokens += thought

    def finish(self) -> None:
        """Take in what the splitter still holds."""
        self._take(*self.splitter.finish())

    def _take(self, reasoning: str, answer: str) -> None:
        self.reasoning += reasoning
        self.content += answer
        self.fresh += answer


def masked(block: Block | None) -> Block | None:
    """What follows a block: as many rows, of which nothing is known yet."""
    return Block((None,) * len(block.tokens), (0.0,) * len(block.tokens)) if block is not None else None


def drafts(block: Block) -> Block | None:
    """A draft without its first row, which is the newest token of the text already."""
    return Block(block.tokens[1:], block.confidence[1:], block.text[1:]) if len(block.tokens) > 1 else None


def trouble_of(message: Message, now: float) -> str:
    """Why a stored answer is not whole, or an empty text."""
    match message.state:
        case "writing" if now - message.touched > STALE:
            return "The program ended while this was written. ctrl+r answers anew."
        case "broken":
            return "This answer was cut off. ctrl+r answers anew."
        case "length":
            return "Stopped at the limit of tokens for one answer."
        case "context":
            return "The context is full. /drop stops sending the oldest turns."
        case _:
            return ""
