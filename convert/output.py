"""The file being written: `NAME.partial` beside a journal of what is on disk, one rename at the end.

A killed conversion goes on from its journal, which lists a piece only after its bytes were synced, so that it
holds after a power cut too.
"""

import errno
import json
import os
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from filelock import FileLock, Timeout

from clover_local.convert.header import Header
from clover_local.convert.plan import Piece
from clover_local.errors import CloverError, ModelError

SYNC_SECONDS, SYNC_BYTES = 1.0, 256 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
GO_ON = "make room and run the same command again: it goes on where it stopped"


def digest(checksums: Iterable[int]) -> int:
    """One checksum of a piece from those of its slices."""
    return zlib.crc32(np.array(list(checksums), "<u4").tobytes())


class Output:
    """One conversion's output. Threads may write side by side; the rest is for one thread."""

    def __init__(self, path: Path, fingerprint: str, header: Header) -> None:
        """Open or resume the partial file; raises CloverError when that cannot be done."""
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.done: dict[str, int] = {}
        self._journal_path = path.with_name(path.name + ".partial.journal")
        self._guard = threading.Lock()
        self._unsynced: list[tuple[Piece, int]] = []
        self._synced_at = time.monotonic()
        self._lock = FileLock(path.with_name(path.name + ".partial.lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise CloverError(f"another conversion is writing {path}") from error
        except OSError as error:
            raise CloverError(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            self._open(fingerprint, header)
        except BaseException:
            self._lock.release()
            raise

    @staticmethod
    def done_before(path: Path, fingerprint: str) -> dict[str, int]:
        """What an earlier run of the same conversion has finished, without touching anything."""
        return _read_journal(path.with_name(path.name + ".partial.journal"), fingerprint)

    def _open(self, fingerprint: str, header: Header) -> None:
        self.done = _read_journal(self._journal_path, fingerprint)
        resumed = bool(self.done) and self.partial.is_file() and self.partial.stat().st_size == header.size
        try:
            if resumed:
                self._file: BinaryIO = self.partial.open("r+b", buffering=0)
                self._journal: BinaryIO = self._journal_path.open("ab", buffering=0)
                self._journal.write(b"\n")  # ends a line that a kill cut short
                return
            self.done = {}
            self._journal_path.unlink(missing_ok=True)
            self._file = self.partial.open("w+b", buffering=0)
            self._file.truncate(header.size)
            self.write(0, memoryview(header.data))
            os.fsync(self._file.fileno())
            self._journal = self._journal_path.open("wb", buffering=0)
            self._note({"fingerprint": fingerprint})
        except OSError as error:
            self._refuse(error)

    def write(self, offset: int, data: memoryview) -> None:
        """Put bytes at a place; raises CloverError when the disk is full."""
        try:
            with self._guard:
                self._file.seek(offset)
                while data:
                    data = data[self._file.write(data) :]
        except OSError as error:
            self._refuse(error)

    def read(self, offset: int, count: int) -> bytes:
        """Bytes back from the partial file."""
        with self._guard:
            self._file.seek(offset)
            return self._file.read(count)

    def finished(self, piece: Piece, checksum: int) -> None:
        """A piece is written; it enters the journal with the next sync."""
        self.done[piece.name] = checksum
        self._unsynced.append((piece, checksum))
        waiting = sum(p.nbytes for p, _ in self._unsynced)
        if waiting >= SYNC_BYTES or time.monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring finished pieces to the disk, then into the journal."""
        if self._unsynced:
            try:
                os.fsync(self._file.fileno())
                for piece, checksum in self._unsynced:
                    self._note({"piece": piece.name, "checksum": checksum})
                os.fsync(self._journal.fileno())
            except OSError as error:
                self._refuse(error)
        self._unsynced.clear()
        self._synced_at = time.monotonic()

    def complete(self) -> None:
        """Give the file its name. What was there before is replaced in the same moment."""
        self.sync()
        self.close()
        try:
            self.partial.replace(self.path)
        except OSError as error:
            self._refuse(error)
        self._journal_path.unlink(missing_ok=True)
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files; the partial one stays for the next run."""
        self._file.close()
        self._journal.close()
        self._lock.release()

    def _note(self, line: dict[str, Any]) -> None:
        self._journal.write(json.dumps(line).encode() + b"\n")

    def _refuse(self, error: OSError) -> NoReturn:
        if error.errno in _FULL:
            raise CloverError(f"there is no room left for {self.partial}", GO_ON) from error
        raise CloverError(f"{self.partial} cannot be written: {error.strerror or error}") from error


def _read_journal(path: Path, fingerprint: str) -> dict[str, int]:
    """Finished pieces and their checksums; empty when the journal is missing or of another conversion."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    done: dict[str, int] = {}
    for number, line in enumerate(lines):
        try:
            value = json.loads(line)
        except ValueError:
            value = None  # a line that a kill cut short
        if number == 0 and value != {"fingerprint": fingerprint}:
            return {}
        if (
            isinstance(value, dict)
            and isinstance(value.get("piece"), str)
            and isinstance(value.get("checksum"), int)
        ):
            done[value["piece"]] = value["checksum"]
    return done


def check_slice(piece: Piece, first: int, count: int, out: Output) -> int:
    """The checksum of a slice as it stands in the file."""
    size = piece.type.row_bytes(piece.part.row_length)
    data = out.read(piece.offset + first * size, count * size)
    if len(data) != count * size:
        raise ModelError(f"{out.partial} has become shorter while it was written")
    return zlib.crc32(data)
