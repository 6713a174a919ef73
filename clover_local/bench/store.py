"""The file of one run: a first line that says what is run, then one line per answer, appended as it comes.

A run that was killed loses the answer it was writing and nothing else.
"""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from clover_local.decoding.events import Stats
from clover_local.errors import CloverError

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """One answer to one problem in one mode, with its grade and its figures."""

    problem: str
    mode: str
    subject: str
    level: int | None
    gold: str
    text: str
    thinking: bool  # whether the prompt opened the reasoning
    ended: str  # stop, length, context
    stats: Stats
    wall_seconds: float  # prompt and answer, without grading
    rss_bytes: int = 0  # the process's peak so far
    vram_bytes: int = 0  # in use on the device, by everybody
    right: bool = False
    answer: str | None = None
    verdict: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What makes a record one of its kind: a problem and a mode."""
        return self.problem, self.mode


@dataclass(frozen=True)
class Header:
    """What a run is. `fixed` must be the same for a run to be continued; `about` only describes."""

    fixed: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A short name of everything that must agree."""
        text = json.dumps(self.fixed, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class RunFile:
    """An open run. Use `create` or `resume`."""

    def __init__(self, path: Path, header: Header, records: list[Record]) -> None:
        self.path, self.header, self.records = path, header, records
        self._file = path.open("ab")

    @classmethod
    def create(cls, path: Path, header: Header) -> "RunFile":
        """Begin a run; raises CloverError when the file exists."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                line = {"clover_bench": FORMAT, "fixed": header.fixed, "about": header.about}
                file.write(_line(line))
        except FileExistsError:
            raise CloverError(
                f"{path} holds an earlier run",
                hint="add --resume to go on with it, or name another --run FILE",
            ) from None
        return cls(path, header, [])

    @classmethod
    def resume(cls, path: Path, header: Header) -> "RunFile":
        """Go on with a run of the same settings; an answer cut off by a kill is dropped."""
        found, records, length = _read(path)
        if found.fixed != header.fixed:
            names = sorted(
                name
                for name in {*found.fixed, *header.fixed}
                if found.fixed.get(name) != header.fixed.get(name)
            )
            raise CloverError(
                f"{path} was run with another {' and another '.join(names)}",
                hint="resume with the options of that run, or start a new one with --run FILE",
            )
        os.truncate(path, length)
        return cls(path, found, records)

    def append(self, record: Record) -> None:
        """Keep one answer; it is on disk when this returns."""
        self._file.write(_line(asdict(record)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read_run(path: Path) -> tuple[Header, list[Record]]:
    """A run's header and its whole answers."""
    header, records, _ = _read(path)
    return header, records


def folder() -> Path:
    """Where runs are kept unless a file is named."""
    return Path(platformdirs.user_data_dir("clover-local")) / "bench"


def new_path(header: Header) -> Path:
    """A file for a new run: its set, what must agree, and the time."""
    began = time.strftime("%Y%m%d-%H%M%S")
    return folder() / f"{header.fixed['set']}-{header.key}-{began}-{os.getpid()}.jsonl"


def unfinished(header: Header) -> Path:
    """The latest run with the same settings; raises CloverError when there is none."""
    found = sorted(folder().glob(f"{header.fixed['set']}-{header.key}-*.jsonl"))
    if not found:
        raise CloverError(
            f"no run with these settings is kept in {folder()}",
            hint="start one without --resume, or name its file with --run FILE",
        )
    return found[-1]


def _read(path: Path) -> tuple[Header, list[Record], int]:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise CloverError(f"the run {path} cannot be read: {problem.strerror}") from problem
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()
    try:
        first = json.loads(lines[0])
        if first["clover_bench"] != FORMAT:
            raise CloverError(
                f"{path} is a run of format {first['clover_bench']}; this version reads {FORMAT}"
            )
        header = Header(first["fixed"], first["about"])
        records = [_record(json.loads(line)) for line in lines[1:]]
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise CloverError(f"{path} is not a run of clover bench, or it is damaged") from problem
    return header, records, len(whole)


def _record(fields: dict[str, Any]) -> Record:
    stats = dict(fields["stats"])
    stats["drafted"], stats["accepted"] = tuple(stats["drafted"]), tuple(stats["accepted"])
    return Record(**{**fields, "stats": Stats(**stats)})


def _line(value: dict[str, Any]) -> bytes:
    # a model may write half a surrogate pair: ASCII escapes keep it
    return json.dumps(value).encode("ascii") + b"\n"
