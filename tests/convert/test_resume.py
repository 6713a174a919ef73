"""Half-done work is invisible or resumable: kills, full disks, other settings, existing files."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from clover_local.convert import convert, run
from clover_local.convert import output as writing
from clover_local.errors import CloverError
from tests.convert import made

# Converts argv[1] to argv[2], slowly and with a sync after every piece, so that a kill falls in the middle.
SLOW = """
import sys, time
from clover_local.convert import convert, output, run
make = run.make
def slow(*args):
    time.sleep(0.02)
    return make(*args)
run.make, output.SYNC_SECONDS = slow, 0.0
convert(sys.argv[1], sys.argv[2], threads=2)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.checkpoint(tmp_path_factory.mktemp("small") / "model", shards=3)


@pytest.fixture(scope="module")
def whole(small: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file as an undisturbed conversion writes it."""
    path = convert(small, tmp_path_factory.mktemp("whole") / "out.gguf", threads=2)
    assert isinstance(path, Path)
    return path.read_bytes()


def journal(output: Path) -> list[dict[str, Any]]:
    path = output.with_name(output.name + ".partial.journal")
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]  # the last one may be half written


def killed(small: Path, output: Path, pieces: int, how: signal.Signals) -> None:
    """Run a conversion in a process of its own and end it once so many pieces are in the journal."""
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(small), str(output)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(journal(output)) < 1 + pieces and process.poll() is None:
        assert time.monotonic() < deadline, "the conversion never came so far"
        time.sleep(0.005)
    assert process.poll() is None, "the conversion ended before it was killed"
    process.send_signal(how)
    process.communicate()


@pytest.mark.parametrize(("how", "pieces"), [(signal.SIGKILL, 3), (signal.SIGKILL, 40), (signal.SIGINT, 20)])
def test_a_killed_conversion_goes_on_and_gives_the_same_bytes(
    how: signal.Signals,
    pieces: int,
    small: Path,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out.gguf"
    killed(small, output, pieces, how)
    assert not output.exists()
    before = {line["piece"] for line in journal(output)[1:]}
    made_again: set[str] = set()
    make = run.make

    def counted(piece: Any, *rest: Any) -> np.ndarray:
        made_again.add(piece.name)
        return make(piece, *rest)

    monkeypatch.setattr(run, "make", counted)
    convert(small, output, threads=1)
    assert output.read_bytes() == whole
    assert len(before) >= pieces and not before & made_again, "finished pieces are not made twice"
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"], "nothing is left beside the file"


def test_a_journal_with_a_torn_line_is_still_good(small: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    killed(small, output, 10, signal.SIGKILL)
    with (tmp_path / "out.gguf.partial.journal").open("ab") as file:
        file.write(b'{"piece": "blk.0.ssm')
    convert(small, output, threads=2)
    assert output.read_bytes() == whole


@pytest.mark.parametrize("change", ["recipe", "weights", "journal gone", "partial gone"])
def test_other_settings_or_weights_start_over(change: str, small: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    killed(small, output, 10, signal.SIGKILL)
    if change == "recipe":
        convert(small, output, recipe="q8", threads=2)
        fresh = convert(small, tmp_path / "fresh.gguf", recipe="q8", threads=2)
        assert isinstance(fresh, Path) and output.read_bytes() == fresh.read_bytes() != whole
        return
    if change == "weights":
        os.utime(small / "model-00001-of-00003.safetensors")
    else:
        suffix = ".partial.journal" if change == "journal gone" else ".partial"
        (tmp_path / f"out.gguf{suffix}").unlink()
    convert(small, output, threads=2)
    assert output.read_bytes() == whole


def test_bytes_that_changed_on_the_disk_are_found(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    killed(small, output, 10, signal.SIGKILL)
    partial = tmp_path / "out.gguf.partial"
    finished = journal(output)[1]["piece"]
    plan = convert(small, output, dry_run=True)
    piece = next(p for p in plan.pieces if p.name == finished)  # type: ignore[union-attr]
    with partial.open("r+b") as file:
        file.seek(piece.offset)
        byte = file.read(1)
        file.seek(piece.offset)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CloverError, match=f"{finished} in .* is not what was written there"):
        convert(small, output, threads=2)
    assert not output.exists()


def test_a_full_disk_is_a_sentence_and_the_next_run_goes_on(
    small: Path, whole: bytes, tmp_path: Path
) -> None:
    """The system refuses to let any file grow to the size needed, which is what a full disk looks like."""
    output = tmp_path / "out.gguf"
    limited = (
        "import resource, sys\n"
        "from clover_local.convert import convert\n"
        "from clover_local.errors import CloverError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)\n"
        "try:\n    convert(sys.argv[1], sys.argv[2], threads=2)\n"
        "except CloverError as error:\n    print(error, '|', error.hint)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", limited, str(small), str(output), str(len(whole) // 2)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == (
        f"there is no room left for {output}.partial | "
        "make room and run the same command again: it goes on where it stopped\n"
    )
    assert not output.exists()
    convert(small, output, threads=2)
    assert output.read_bytes() == whole


def test_a_disk_that_fills_up_in_the_middle(
    small: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twentieth write fails as it does when another program took the last block."""
    output, lock, writes = tmp_path / "out.gguf", threading.Lock(), [0]
    write = writing.Output.write

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def counted(self: writing.Output, offset: int, data: memoryview) -> None:
        with lock:
            writes[0] += 1
            if writes[0] == 20:
                self._file = Full(self._file)  # type: ignore[assignment]
        write(self, offset, data)

    with monkeypatch.context() as patch:
        patch.setattr(writing.Output, "write", counted)
        with pytest.raises(CloverError, match=r"there is no room left for .*out\.gguf\.partial"):
            convert(small, output, threads=2)
    finished = len(journal(output))
    assert finished > 5, "what was written before stays"
    convert(small, output, threads=2)
    assert output.read_bytes() == whole


def test_too_little_room_is_said_before_anything_is_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(CloverError, match=r"has 0\.0 GB free, out\.gguf needs 0\.\d GB"):
        convert(small, tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_without_force(small: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(CloverError, match=r"out\.gguf exists already") as error:
        convert(small, output)
    assert output.read_bytes() == b"precious" and "--force" in str(error.value.hint)
    convert(small, output, force=True, threads=2)
    assert output.read_bytes() == whole


def test_with_force_the_old_file_stays_until_the_new_one_is_whole(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    seen = set()
    convert(small, output, force=True, threads=2, progress=lambda _: seen.add(output.read_bytes()))
    assert seen == {b"precious"}


def test_two_conversions_of_one_file_do_not_mix(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    with (
        FileLock(tmp_path / "out.gguf.partial.lock"),
        pytest.raises(CloverError, match=r"another conversion is writing .*out\.gguf"),
    ):
        convert(small, output)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [("no/such/out.gguf", "the folder .*no/such does not exist"), ("taken.gguf", "cannot be written")],
)
def test_an_output_that_cannot_be_written(output: str, sentence: str, small: Path, tmp_path: Path) -> None:
    (tmp_path / "taken.gguf.partial").mkdir()
    with pytest.raises(CloverError, match=sentence):
        convert(small, tmp_path / output)
