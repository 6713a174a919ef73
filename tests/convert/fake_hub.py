"""A hub on 127.0.0.1 that serves one folder as one repository, and writes down what it was asked for."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`asked` holds (time, file) of every download, by time.monotonic()."""

    folder: Path
    repo: str
    endpoint: str = ""
    asked: list[tuple[float, str]] = field(default_factory=list)

    def files(self) -> list[str]:
        return [name for _, name in self.asked]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Requests are no output of a test."""

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/"):
                return self.info(path.removeprefix("/api/models/"))
            return self.file(path)

        do_HEAD = do_GET

        def info(self, repo: str) -> None:
            if repo.startswith("locked/"):
                return self.refuse(403, "GatedRepo")
            if repo.partition("/revision/")[0] != hub.repo:
                return self.refuse(404, "RepoNotFound")
            files = [{"rfilename": p.name, "size": p.stat().st_size} for p in sorted(hub.folder.iterdir())]
            body = json.dumps({"id": hub.repo, "sha": COMMIT, "siblings": files}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def file(self, path: str) -> None:
            place, _, name = path.removeprefix(f"/{hub.repo}/resolve/").partition("/")
            target = hub.folder / name
            if place not in ("main", COMMIT) or not target.is_file():
                return self.refuse(404, "EntryNotFound")
            data = target.read_bytes()
            first = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            start, end = int(first[0]), min(int(first[2] or len(data) - 1), len(data) - 1)
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
            self.send_header("Content-Length", str(end - start + 1))
            self.end_headers()
            if self.command == "GET":
                hub.asked.append((time.monotonic(), target.name))
                self.wfile.write(data[start : end + 1])
            return None

    return Handler


@contextmanager
def serving(folder: Path, repo: str) -> Iterator[Hub]:
    """Serve while the block runs."""
    hub = Hub(folder, repo)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
