"""What a pass says about its rows: the few numbers per row that reach the host."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """The choice of every row of one pass, after the response processing (the mask token never wins).

    Arrays have length rows. `next_p` is the probability a row gives to the token of the row after it
    (verify passes only; its last element is meaningless). `logits()` fetches the processed logits
    [rows, vocab] as float32; it is valid until the next pass and costs a copy from the device.
    """

    ids: np.ndarray  # int32, argmax
    p: np.ndarray  # float32, its softmax probability at temperature 1; nan after a prefill or step
    entropy: np.ndarray | None  # float32, nats; verify passes only
    next_p: np.ndarray | None  # float32; verify passes only
    logits: Callable[[], np.ndarray]
