"""Reading TOML on every Python that the package runs on."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_toml"]


def read_toml(text: str) -> dict[str, Any]:
    """The document.

    Raises:
        ValueError: it is not TOML; the message is one phrase, with the line and column where the parser knows them.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    except ValueError as error:  # the parser leaves numbers and dates to Python
        raise ValueError(str(error).partition(";")[0]) from error
    return document
