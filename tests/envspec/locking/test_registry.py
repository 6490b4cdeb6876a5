"""The base's digest, asked by a real engine of a registry on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.envspec.locking.conftest import Run
from tests.envspec.locking.index import Index

INDEX = "application/vnd.oci.image.index.v1+json"
BODY = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
DIGEST, OLD = f"sha256:{hashlib.sha256(BODY).hexdigest()}", "sha256:" + "a" * 64


@pytest.fixture
def registry() -> Iterator[str]:
    """``host:port`` of a registry that has ``tools/base:1``. An engine speaks plain HTTP to loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(send=False)

        def do_GET(self) -> None:
            self.answer(send=True)

        def answer(self, *, send: bool) -> None:
            known = self.path in ("/v2/", "/v2/tools/base/manifests/1", f"/v2/tools/base/manifests/{DIGEST}")
            body = BODY if known else b'{"errors": []}'
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", INDEX if known else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Content-Digest", DIGEST)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.end_headers()
            if send:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture
def engine() -> None:
    docker = pytest.importorskip("docker", reason="the package docker is not here")
    try:
        client = docker.from_env(timeout=120)
    except Exception as error:
        pytest.skip(f"no container engine answers: {error}")
    client.close()


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_the_new_digest_is_written_and_nothing_else_of_the_file_changes(index: Index, run: Run, registry: str) -> None:
    stack = index.stack("alpha\n", settings=f"# the base\nbase: {registry}/tools/base:1@{OLD}\n")
    before = stack.file.read_text()
    assert run("lock", "--base") == (0, f"small: the base {registry}/tools/base:1 is now {DIGEST}, was {OLD}\n", "")
    assert stack.file.read_text() == before.replace(OLD, DIGEST)
    assert run("lock", "--base")[1] == f"small: the base {registry}/tools/base:1 is unchanged\n"


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_a_tag_that_the_registry_does_not_have(index: Index, run: Run, registry: str) -> None:
    stack = index.stack("alpha\n", settings=f"base: {registry}/tools/other:1@{OLD}\n")
    before = stack.file.read_text()
    code, out, err = run("lock", "--base")
    assert (code, out) == (2, "")
    assert err.startswith(f"envspec: the registry of {registry}/tools/other:1 gives no digest: ")
    assert err.count("\n") == 1
    assert stack.file.read_text() == before


def test_without_an_engine_or_a_base_it_says_so(index: Index, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{index.stacks}/none.sock")
    index.stack("alpha\n", settings=f"base: base.example/tools/base:1@{OLD}\n")
    code, _, err = run("lock", "--base")
    assert code == 2
    assert "no container engine answers" in err or "need the package docker" in err
    index.stack("alpha\n")
    assert "there is no NAME:TAG@sha256:" in run("lock", "--base")[2]
