"""A pod, through ``kubectl exec`` with the user's own context."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from envspec.errors import UsageError
from envspec.hosts.interface import ProcessHost, find_python, flags_from_stdin, last_line
from envspec.hosts.process import Exchange

__all__ = ["KubernetesHost"]

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # RFC 1123


class KubernetesHost(ProcessHost):
    """``pod:NAMESPACE/NAME[/CONTAINER][#PYTHON]``.

    ``ENVSPEC_KUBECTL`` replaces the command ``kubectl``, with options.
    """

    transport = "kubernetes"

    def __init__(
        self,
        target: str,
        namespace: str,
        pod: str,
        container: str | None = None,
        python: str | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(target, label)
        for name in (namespace, pod, *((container,) if container else ())):
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} in {target!r} is not a Kubernetes name; write pod:NAMESPACE/NAME[/CONTAINER]"
                )
        self.namespace = namespace
        self.pod = pod
        self.container = container
        self.python = python

    def command(self) -> Sequence[str]:
        """See :class:`ProcessHost`."""
        kubectl = shlex.split(os.environ.get("ENVSPEC_KUBECTL", "")) or ["kubectl"]
        container = ["-c", self.container] if self.container else []
        inner = find_python(self.python, flags_from_stdin())
        return (*kubectl, "exec", "-i", "-n", self.namespace, self.pod, *container, "--", *inner)

    def explain(self, result: Exchange) -> str:
        """See :class:`ProcessHost`."""
        said = last_line(result.stderr)
        return said.replace("envspec: ", "") or f"kubectl exec ended with status {result.status} and gave no answer"
