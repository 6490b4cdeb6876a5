"""The first import of torch, which can fail and can chatter."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec

from eagle3_diag.errors import InputError


def import_torch() -> None:
    """Import torch and safetensors. Raises InputError, not a traceback, where this interpreter lacks them.

    torch warns on stderr where numpy is absent, which is no concern here: nothing uses numpy.
    """
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{sys.executable} has no {' and no '.join(missing)}; run this with the Python that has torch, or install: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        try:
            import safetensors  # noqa: F401
            import torch  # noqa: F401
        except (ImportError, OSError) as error:
            raise InputError(f"{sys.executable} cannot load torch ({error}); mend that installation, or run this with a Python whose torch works") from None
