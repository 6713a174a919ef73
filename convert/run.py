"""Carries a plan out: shards in order, slices on all threads, finished pieces into the journal, then a check.

Results do not depend on the number of threads or on where an earlier run stopped.
"""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Literal

from clover_local.convert.config import Config
from clover_local.convert.output import Output, check_slice, digest
from clover_local.convert.plan import Piece, Place, Plan
from clover_local.convert.shards import Shard
from clover_local.convert.slices import Tensors, make
from clover_local.convert.source import Source
from clover_local.errors import ModelError
from clover_local.ggml.gguf import GgufFile

Stage = Literal["fetching", "converting", "checking"]


@dataclass(frozen=True)
class Progress:
    """Where a conversion stands: bytes of the output done in this stage, and what it is at."""

    stage: Stage
    done: int
    total: int
    detail: str = ""


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Job:
    """What every phase needs: the plan, its checkpoint, and where each source tensor lies, by plain name."""

    plan: Plan
    config: Config
    source: Source
    places: dict[str, Place]

    def shards_of(self, piece: Piece) -> set[str]:
        return {self.places[name].shard for name in piece.part.sources}

    def waiting(self, done: dict[str, int]) -> list[Piece]:
        return [piece for piece in self.plan.pieces if piece.name not in done]

    def needed(self, done: dict[str, int]) -> list[str]:
        """The shards that unfinished pieces need, in order."""
        return sorted({shard for piece in self.waiting(done) for shard in self.shards_of(piece)})


def carry_out(job: Job, out: Output, threads: int, report: Report) -> None:
    """Write every piece that is not in the journal, then read the whole file back against its checksums."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="convert")
    try:
        _convert(job, out, pool, report)
        _check(job, out, pool, report)
    finally:
        pool.shutdown(cancel_futures=True)
        job.source.close()


def _convert(job: Job, out: Output, pool: ThreadPoolExecutor, report: Report) -> None:
    waiting, tensors, opened = job.waiting(out.done), Tensors(), {}
    total = sum(piece.nbytes for piece in job.plan.pieces)
    done = total - sum(piece.nbytes for piece in waiting)
    order = job.needed(out.done)
    try:
        for number, name in enumerate(order):
            label = f"{name} ({number + 1} of {len(order)})"
            report(Progress("fetching", done, total, label))
            opened[name] = _open(job, name, order[number + 1 : number + 2], tensors)
            ready = [piece for piece in waiting if tensors.has(piece.part)]
            for nbytes in _pieces(ready, job, tensors, out, pool):
                done += nbytes
                report(Progress("converting", done, total, label))
            out.sync()
            made = {piece.name for piece in ready}
            waiting = [piece for piece in waiting if piece.name not in made]
            still = {shard for piece in waiting for shard in job.shards_of(piece)}
            for finished in [shard for shard in opened if shard not in still]:
                opened.pop(finished).close()
                job.source.release(finished)
    finally:
        out.sync()
        for shard in opened.values():
            shard.close()


def _open(job: Job, name: str, following: list[str], tensors: Tensors) -> Shard:
    """A shard with all its wanted tensors checked and taken in; the one after it begins to arrive."""
    path = job.source.fetch(name)
    for later in following:
        job.source.prefetch(later)
    shard = Shard.open(path)
    try:
        for part in (piece.part for piece in job.plan.pieces):
            for source in part.sources:
                place = job.places[source]
                if place.shard == name:
                    entry = shard.entries.get(place.name)
                    if entry is None:
                        raise ModelError(f"{path} lacks the tensor {place.name} that the index places there")
                    tensors.add(shard, entry, source, part.source_shape)
    except BaseException:
        shard.close()
        raise
    return shard


def _pieces(
    ready: list[Piece], job: Job, tensors: Tensors, out: Output, pool: ThreadPoolExecutor
) -> Iterator[int]:
    """Make pieces on the pool; yields the bytes of each slice once it is written."""

    def work(piece: Piece, first: int, count: int) -> int:
        data = make(piece, job.config, tensors, first, count)
        out.write(piece.offset + first * data.shape[1], data.data.cast("B"))
        return zlib.crc32(data.data)

    futures: dict[Future[int], tuple[Piece, int, int]] = {}
    for piece in ready:
        for first, count in piece.slices():
            futures[pool.submit(work, piece, first, count)] = piece, first, count
    sums: dict[str, dict[int, int]] = {piece.name: {} for piece in ready}
    for future in as_completed(futures):
        piece, first, count = futures[future]
        mine = sums[piece.name]
        mine[first] = future.result()
        if len(mine) == piece.slice_count:
            out.finished(piece, digest(mine[at] for at in sorted(mine)))
        yield count * piece.type.row_bytes(piece.part.row_length)


def _check(job: Job, out: Output, pool: ThreadPoolExecutor, report: Report) -> None:
    """Every piece as it stands in the file against what was written, and the header against the plan."""

    def work(piece: Piece) -> int:
        return digest(check_slice(piece, first, count, out) for first, count in piece.slices())

    total, done = sum(piece.nbytes for piece in job.plan.pieces), 0
    for piece, found in zip(job.plan.pieces, pool.map(work, job.plan.pieces), strict=True):
        if found != out.done[piece.name]:
            raise ModelError(
                f"{piece.name} in {out.partial} is not what was written there",
                f"the disk may be failing; delete {out.partial} and convert again",
            )
        done += piece.nbytes
        report(Progress("checking", done, total))
    tensors = GgufFile.open(out.partial).tensors
    for piece in job.plan.pieces:
        if not piece.part.is_key and tensors[piece.name].offset != piece.offset:
            raise ModelError(f"{piece.name} lies elsewhere in {out.partial} than planned")
