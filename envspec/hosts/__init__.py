"""Hosts: every place an environment can be, behind one interface."""

from __future__ import annotations

from envspec.hosts.interface import CaptureOptions, Host
from envspec.hosts.parse import HostName, open_host, parse_host

__all__ = ["CaptureOptions", "Host", "HostName", "open_host", "parse_host"]
