"""The digest that a container registry has for an image now, by the distribution API (OCI Distribution Specification 1.1)."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.parse import urlencode

from envspec.errors import UsageError
from envspec.locking.errors import ResolutionError
from envspec.output import write_atomically
from envspec.stacks import Stack

__all__ = ["digest_of", "rebase"]

# Where an image without a host in its name comes from: the reference implementation's rule.
_DEFAULT_HOST: Final = ".".join(("registry-1", "docker", "io"))
_TYPES: Final = ", ".join(
    f"application/vnd.{kind}+json" for kind in ("oci.image.index.v1", "docker.distribution.manifest.list.v2", "oci.image.manifest.v1", "docker.distribution.manifest.v2")
)
_TIMEOUT: Final = 30.0


def digest_of(image: str) -> str:
    """``sha256:…`` of ``NAME:TAG`` (the index, where the tag is one for several platforms).

    Raises:
        ResolutionError: the registry cannot be reached, or does not have it.
    """
    name, _, tag = image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "latest")
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        host, path = first, rest
    else:
        host, path = _DEFAULT_HOST, name if rest else f"library/{name}"
    scheme = "http" if re.fullmatch(r"(localhost|127\.0\.0\.1)(:\d+)?", host) else "https"
    url = f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    try:
        try:
            answer = _head(url)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            answer = _head(url, _token(error.headers.get("WWW-Authenticate", "")))
    except urllib.error.HTTPError as error:
        raise ResolutionError(f"the registry {host} does not give {path}:{tag}: {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ResolutionError(f"the registry {host} cannot be read: {getattr(error, 'reason', None) or error}") from error
    found = answer.headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise ResolutionError(f"the registry {host} names no sha256 digest for {path}:{tag}")
    return found


def _head(url: str, token: str | None = None) -> HTTPResponse:
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": _TYPES})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        found: HTTPResponse = answer
        return found


def _token(challenge: str) -> str:
    """An anonymous token, as the registry's challenge asks for it."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not challenge.lower().startswith("bearer ") or not realm.startswith(("http://", "https://")):
        raise OSError("it wants a login")
    with urllib.request.urlopen(f"{realm}?{urlencode(fields)}", timeout=_TIMEOUT) as answer:
        data = json.loads(answer.read())
    token = data.get("token") or data.get("access_token")
    if not isinstance(token, str):
        raise OSError("it gives no anonymous token")
    return token


def rebase(stack: Stack) -> str:
    """Write the digest that the base's tag has now into ``stack.yaml``, and say what changed.

    Raises:
        UsageError: the stack names no base with a tag.
        ResolutionError: the registry cannot be read.
    """
    image, _, old = (stack.base or "").partition("@")
    if not image or ":" not in image.rpartition("/")[2]:
        raise UsageError(f"{stack.file}: base: there is no NAME:TAG@sha256:… whose digest could be resolved anew")
    new = digest_of(image)
    if new == old:
        return f"{stack.name}: base {image} is unchanged"
    text = stack.file.read_text(encoding="utf-8")
    write_atomically(stack.file, text.replace(f"{image}@{old}", f"{image}@{new}"))
    return f"{stack.name}: base {image} is now {new}, was {old}"
