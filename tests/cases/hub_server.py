"""A hub on loopback: the part of the Hugging Face hub's HTTP interface that downloading uses, over files in memory.

As the hub does, it redirects large files to another address (`X-Linked-Etag`, `X-Linked-Size`), says of every file
which commit it is of (`X-Repo-Commit`), and says what is wrong in `X-Error-Code`.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE_NBYTES = 10_000  # files above are "LFS" files, behind a redirect


@dataclass
class Repo:
    """A repository of one commit.

    Attributes:
        files: name → content.
        branch: name of the branch that is this commit.
        refused: error code of every answer (`GatedRepo`, `RepoNotFound`), and its status.
    """

    files: Mapping[str, bytes]
    branch: str = "main"
    refused: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.etags = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        self.commit = hashlib.sha1(repr(sorted(self.etags.items())).encode()).hexdigest()  # noqa: S324  as git names commits


@dataclass
class HubServer:
    """What a test sees and sets.

    Attributes:
        repos: by `owner/name`.
        url: of the server.
        requests: method, path and Range of what was asked so far.
        bodies: names of the files whose content was asked for, in order.
        tokens: `Authorization` of what was asked of the hub itself so far, and of where it keeps large files.
        stall_after: file → after that many bytes of it nothing more comes, until `released`.
        cut_after: file → after that many bytes the connection breaks, once.
        send: file → what is sent in its place.
        ranges: Range is honoured.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    tokens: tuple[set[str | None], set[str | None]] = field(default_factory=lambda: (set(), set()))
    stall_after: dict[str, int] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)
    send: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def forget(self) -> None:
        self.requests.clear()
        self.bodies.clear()


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def serving(**repos: Repo) -> Iterator[HubServer]:
    """A server of `repos`, `owner__name=Repo(…)`."""
    hub = HubServer({name.replace("__", "/"): repo for name, repo in repos.items()})
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        self.hub.tokens["/cdn/" in path].add(self.headers.get("Authorization"))
        parts = [unquote(p) for p in path.strip("/").split("/")]
        if parts[0] == "cdn":
            return self._content(f"{parts[1]}/{parts[2]}", "/".join(parts[3:]))
        if parts[0] == "api":
            if parts[1] != "models":
                return self._error(404, "EntryNotFound", "not a hub's question about models")
            parts = parts[2:]
        if len(parts) == 2:
            parts = [*parts, "revision", "main"]
        name, verb, revision, file = "/".join(parts[:2]), parts[2], parts[3], "/".join(parts[4:])
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._error(401, "RepoNotFound", "Invalid username or password.")  # so does the hub, to strangers
        if repo.refused:
            return self._error(*repo.refused, "no")
        if revision not in (repo.branch, repo.commit):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if verb == "revision":
            siblings = [{"rfilename": n, "size": len(b), "blobId": repo.etags[n]} for n, b in repo.files.items()]
            return self._json({"id": name, "sha": repo.commit, "siblings": siblings})
        if verb == "tree":
            return self._json(
                [{"type": "file", "path": n, "size": len(b), "oid": repo.etags[n]} for n, b in repo.files.items()]
            )
        if file not in repo.files:
            return self._error(404, "EntryNotFound", "Entry not found")
        return self._resolve(name, repo, file)

    def _resolve(self, name: str, repo: Repo, file: str) -> None:
        content = repo.files[file]
        if len(content) <= LARGE_NBYTES:
            return self._content(name, file)
        self.send_response(302)
        self.send_header("Location", f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{name}/{file}")
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("X-Linked-Size", str(self.linked_size(repo, file)))
        self.send_header("X-Linked-Etag", f'"{repo.etags[file]}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def linked_size(self, repo: Repo, file: str) -> int:
        return len(repo.files[file])

    def _content(self, name: str, file: str) -> None:
        repo = self.hub.repos[name]
        content = self.hub.send.get(file, repo.files[file])
        whole, wanted = len(content), self.headers.get("Range")
        start = 0
        if wanted and self.hub.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            content = content[start : int(last) + 1 if last else None]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{start + len(content) - 1}/{whole}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{repo.etags[file]}"')
        self.send_header("X-Repo-Commit", repo.commit)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.bodies.append(file)
        try:
            self._send(file, content, start)
        except OSError:  # who asked has gone: killed, or satisfied
            self.close_connection = True

    def _send(self, file: str, content: bytes, start: int) -> None:
        if file in self.hub.stall_after:
            self.wfile.write(content[: self.hub.stall_after[file]])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.released.wait(60)
            self.close_connection = True
        elif start == 0 and (count := self.hub.cut_after.pop(file, None)) is not None:
            self.wfile.write(content[:count])
            self.close_connection = True
        else:
            self.wfile.write(content)

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()
