"""envspec: see what differs between Python environments, on any number of hosts, before anything runs."""

from __future__ import annotations

__version__ = "0.1.0"
