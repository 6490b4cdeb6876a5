"""Reading a wheel's metadata from servers of every kind, without the wheel."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envspec.locking.errors import LockRefused, ResolutionError
from envspec.locking.metadata import read_many, read_one
from tests.envspec.locking.index import wheel_bytes

NAME = "demo_kit-1.0-py3-none-any.whl"


@dataclass
class Server:
    """What it serves and how; what was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    login: str | None = None
    failures: int = 0
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, self.headers.get("Range")))
            if made.failures:
                made.failures -= 1
                return self.answer(503)
            if made.login and self.headers.get("Authorization") != "Basic " + base64.b64encode(made.login.encode()).decode():
                return self.answer(401)
            data = made.files.get(self.path.lstrip("/"))
            if data is None:
                return self.answer(404)
            wanted = self.headers.get("Range")
            if wanted and made.ranges:
                first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
                return self.answer(206, data[first : last + 1], f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}")
            return self.answer(200, data)

        def answer(self, code: int, data: bytes = b"", content_range: str | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            self.wfile.write(data)
            made.sent += len(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        made.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield made
        http.shutdown()
        thread.join()


@pytest.fixture
def wheel() -> bytes:
    return wheel_bytes("demo-kit", "1.0", ["Zeta_Two >=1, <2", "alpha"], python=">=3.11", content="x" * 3_000_000)


def test_the_file_beside_the_wheel_is_all_that_is_asked_for(server: Server) -> None:
    server.files[NAME + ".metadata"] = b"Metadata-Version: 2.1\nName: Demo.Kit\nVersion: 1.0\nRequires-Dist: b\nRequires-Dist: a\n\nA description.\n"
    found = read_one(f"{server.url}/{NAME}")
    assert (found.name, found.version, found.requires, found.requires_python) == ("demo-kit", "1.0", ("a", "b"), None)
    assert server.asked == [(f"/{NAME}.metadata", None)]


def test_without_it_only_ranges_of_the_wheel_travel(server: Server, wheel: bytes) -> None:
    server.files[NAME] = wheel
    found = read_one(f"{server.url}/{NAME}#sha256=00")
    assert (found.name, found.requires, found.requires_python) == ("demo-kit", ("alpha", "zeta-two<2,>=1"), ">=3.11")
    assert server.sent < 500_000 < len(wheel)


def test_a_server_without_either_is_named_in_a_sentence(server: Server, wheel: bytes) -> None:
    server.files[NAME], server.ranges = wheel, False
    with pytest.raises(ResolutionError, match=f"the metadata of {NAME} cannot be read: the index serves neither a .metadata file"):
        read_one(f"{server.url}/{NAME}")


def test_a_login_in_the_address_is_sent_and_in_no_message(server: Server) -> None:
    server.login = "me:s@cret"
    server.files[NAME + ".metadata"] = b"Metadata-Version: 2.1\nName: demo-kit\nVersion: 1.0\n"
    assert read_one(f"{server.url.replace('://', '://me:s%40cret@')}/{NAME}").version == "1.0"
    with pytest.raises(ResolutionError) as error:
        read_one(f"{server.url.replace('://', '://me:wrong@')}/{NAME}")
    assert "wrong" not in str(error.value)


def test_a_login_from_netrc(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.login = "me:pw"
    server.files[NAME + ".metadata"] = b"Metadata-Version: 2.1\nName: demo-kit\nVersion: 1.0\n"
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password pw\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_one(f"{server.url}/{NAME}").version == "1.0"


def test_a_server_that_falters_is_asked_again(server: Server) -> None:
    server.files[NAME + ".metadata"] = b"Metadata-Version: 2.1\nName: demo-kit\nVersion: 1.0\n"
    server.failures = 2
    assert read_one(f"{server.url}/{NAME}").version == "1.0"
    server.failures = 3
    with pytest.raises(ResolutionError, match="503"):
        read_one(f"{server.url}/{NAME}")


def test_many_at_once_each_asked_once(server: Server) -> None:
    names = [f"p{number}-1.0-py3-none-any.whl" for number in range(40)]
    for number, name in enumerate(names):
        server.files[name + ".metadata"] = f"Metadata-Version: 2.1\nName: p{number}\nVersion: 1.0\n".encode()
    found = read_many([f"{server.url}/{name}" for name in names * 2])
    assert [item.name for item in found.values()] == [f"p{number}" for number in range(40)]
    assert len(server.asked) == 40


@pytest.mark.parametrize(
    ("content", "words"), [(b"not a zip", "is not a zip file"), (wheel_bytes("other", "1.0"), f"{NAME} holds no METADATA")]
)
def test_a_local_file_that_is_no_such_wheel(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ResolutionError, match=words):
        read_one((tmp_path / NAME).as_uri())


def test_a_requirement_that_is_none(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(wheel_bytes("demo-kit", "1.0", ["pytz (>dev)"]))
    with pytest.raises(LockRefused, match=r"requires 'pytz \(>dev\)', which is no requirement"):
        read_one((tmp_path / NAME).as_uri())
