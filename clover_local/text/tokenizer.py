"""Text to token ids and back, by llama.cpp's own tokenizer; the file is opened for its vocabulary only."""

import codecs
import ctypes
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clover_local.errors import ModelError
from clover_local.ggml.lib import last_error
from clover_local.ggml.llama import llama

# Marked special in some checkpoints, yet a reader folds the reasoning on them, so they stay visible.
REASONING_MARKS = (b"<think>", b"</think>")

_started = threading.Lock()


class Tokenizer:
    """The vocabulary of one GGUF file. Not for use by two threads at once while encoding."""

    def __init__(self, model: Any, path: Path) -> None:
        self._model = model
        self._vocab = llama.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        self.path = path
        self.size: int = llama.llama_vocab_n_tokens(self._vocab)

    @classmethod
    def from_gguf(cls, path: str | Path) -> "Tokenizer":
        """Load the vocabulary of a GGUF; raises ModelError when llama.cpp cannot read it."""
        path = Path(path)
        if not path.is_file():
            raise ModelError(f"there is no file {path}")
        with _started:
            llama.llama_backend_init()
            parameters = llama.llama_model_default_params()
            parameters.vocab_only = True
            model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise ModelError(f"{path} holds no tokenizer that llama.cpp can read ({last_error()})")
        return cls(model, path)

    def close(self) -> None:
        """Free the vocabulary; the tokenizer must not be used afterwards."""
        if self._model:
            llama.llama_model_free(self._model)
            self._model = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special` reads `<|im_start|>` and the like as control tokens.

        Nothing is added in front. Characters that are not valid Unicode (lone surrogates) become `?`.
        """
        data = text.encode("utf-8", errors="replace")
        room = len(data) + 8
        while True:
            ids = (llama.llama_token * room)()
            n = llama.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def piece(self, id: int) -> bytes:
        """The bytes of a token, control tokens included; a token may hold a part of a character."""
        known = self._pieces.get(id)
        if known is None:
            if not 0 <= id < self.size:
                raise ValueError(f"token {id} is outside the vocabulary of {self.size}")
            room = 64
            while True:
                buffer = ctypes.create_string_buffer(room)
                n = llama.llama_token_to_piece(self._vocab, id, buffer, room, 0, True)
                if n >= 0:
                    break
                room = -n
            known = self._pieces[id] = buffer.raw[:n]
        return known

    def is_control(self, id: int) -> bool:
        """Whether a token is one of the vocabulary's control tokens, such as the end of a turn."""
        return bool(llama.llama_vocab_is_control(self._vocab, id))

    def is_hidden(self, id: int) -> bool:
        """Whether an answer's text leaves a token out: control tokens except the marks of reasoning."""
        return self.is_control(id) and self.piece(id) not in REASONING_MARKS

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, control tokens included; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", errors="replace")

    def stream(self) -> "StreamDecoder":
        """A decoder for the text of one answer, fed as its tokens arrive."""
        return StreamDecoder(self)


class StreamDecoder:
    """Turns token ids into text piece by piece: a character appears once all of its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; hidden tokens add nothing."""
        tokenizer = self._tokenizer
        return self._utf8.decode(b"".join(tokenizer.piece(id) for id in ids if not tokenizer.is_hidden(id)))

    def finish(self) -> str:
        """End the answer; the bytes of a character that was cut off are dropped."""
        self._utf8.reset()
        return ""
