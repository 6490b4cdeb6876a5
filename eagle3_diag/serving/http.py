"""HTTP as the servers need it, with one sentence for each way it can fail. Standard library only.

Where the environment variable ``EAGLE3_DIAG_API_KEY`` is set it is sent as a bearer token, to the server's own address only.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from eagle3_diag.errors import InputError

API_KEY = "EAGLE3_DIAG_API_KEY"
_MOST = 64 << 20


class HttpStatus(InputError):
    """The server answered with an error status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key in the header is for the address that was given."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def base_url(text: str) -> str:
    """A server's address without a trailing slash or ``/v1``. Raises InputError for what is no http address."""
    parts = urlsplit(text if "//" in text else f"http://{text}")
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or parts.query or parts.fragment:
        raise InputError(f"{text!r} is not a server's address; write it as http://HOST:PORT")
    if parts.username or parts.password:
        raise InputError(f"the address of {parts.hostname} holds a password; leave it out and put the key into {API_KEY}")
    path = parts.path.rstrip("/")
    for end in ("/v1", "/metrics"):
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _request(url: str, body: Any | None) -> urllib.request.Request:
    headers = {"Accept": "*/*", "User-Agent": "eagle3-diag"}
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    if key := os.environ.get(API_KEY):
        if not key.isascii() or not key.isprintable():
            raise InputError(f"{API_KEY} holds characters that no HTTP header can carry; set it again")
        headers["Authorization"] = f"Bearer {key}"
    return urllib.request.Request(url, data=data, headers=headers)


@contextmanager
def opened(url: str, body: Any | None = None, *, timeout: float = 30.0) -> Iterator[http.client.HTTPResponse]:
    """The answer, open for reading. Raises InputError: not reachable, HttpStatus: an error status."""
    try:
        with _OPENER.open(_request(url, body), timeout=timeout) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        detail = " ".join(error.read(2000).decode("utf-8", "replace").split())[:300]
        hint = f"; put the server's key into {API_KEY}" if error.code in (401, 403) else ""
        raise HttpStatus(f"{url} answered {error.code} {error.reason}{f': {detail}' if detail else ''}{hint}", error.code) from None
    except urllib.error.URLError as error:
        raise InputError(f"{url} cannot be reached ({_reason(error.reason)}); check that the server runs and that the address is right") from None
    except TimeoutError:
        raise InputError(f"{url} did not answer within {timeout:g} s; the server is busy or stuck, or try a longer --timeout") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(f"{url}: the connection broke ({_reason(error)}); check the server's log") from None


def _reason(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def get_text(url: str, *, timeout: float = 30.0) -> str:
    """The body of a GET as text."""
    with opened(url, timeout=timeout) as answer:
        return answer.read(_MOST).decode("utf-8", "replace")


def parse_object(text: str, url: str) -> dict[str, Any]:
    """A JSON object that a server sent. Raises InputError where it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{url} answered something else than JSON ({text[:80]!r}); is this the server's own address?") from None
    if not isinstance(data, dict):
        raise InputError(f"{url} answered JSON that is no object; is this the server's own address?")
    return data


def get_json(url: str, *, timeout: float = 30.0) -> dict[str, Any]:
    """The JSON object that a GET brings."""
    return parse_object(get_text(url, timeout=timeout), url)


def post_json(url: str, body: Any, *, timeout: float = 120.0) -> dict[str, Any]:
    """The JSON object that a POST brings."""
    with opened(url, body, timeout=timeout) as answer:
        return parse_object(answer.read(_MOST).decode("utf-8", "replace"), url)


def post_events(url: str, body: Any, *, timeout: float = 120.0) -> Iterator[dict[str, Any]]:
    """The server-sent events of a POST, each a JSON object, until ``[DONE]`` or the end."""
    with opened(url, body, timeout=timeout) as answer:
        kind = answer.headers.get("Content-Type", "")
        if "event-stream" not in kind:
            raise InputError(f"{url} answered {kind or 'without a type'}, not a stream of events; a proxy between here and the server may gather it")
        for line in answer:
            text = line.decode("utf-8", "replace").strip()
            if not text.startswith("data:"):
                continue
            text = text.removeprefix("data:").strip()
            if text == "[DONE]":
                return
            yield parse_object(text, url)
