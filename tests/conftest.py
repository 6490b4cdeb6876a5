"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A deadline is a timed assertion: it fails on a busy machine and says nothing about the code.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
