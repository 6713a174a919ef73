"""The store on a thread of its own: no disk ever holds up the screen, and there is one writer."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from clover_local.chat.store import Store
from clover_local.errors import CloverError

T = TypeVar("T")


class Shelf:
    """Runs work on a store, one piece after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def __call__(self, work: Callable[[Store], T]) -> T:
        """Do `work` with the store; raises CloverError where the file does not take it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, self._store)
        except (sqlite3.Error, OSError) as error:
            raise CloverError(
                f"the chats in {self._store.path} could not be read or written: {error}"
            ) from error

    def now(self, work: Callable[[Store], T]) -> T:
        """The same, waiting for it: only where no screen is left to be held up."""
        return self._pool.submit(work, self._store).result()

    def close(self) -> None:
        """Finish what was asked and close the store."""
        self._pool.submit(self._store.close).result()
        self._pool.shutdown()
