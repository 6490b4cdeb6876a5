"""A predictor that predicts each explanation on each sample once: what is predicted does not depend on what was served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eagle3_diag.catalogue import Explanation
from eagle3_diag.predict import Loaded, Predictor, Runs, Walked


class Remembering(Predictor):
    """Takes over another predictor. Loaded samples must outlive it: they are told apart by identity."""

    def __init__(self, other: Predictor) -> None:
        self.__dict__.update(other.__dict__)
        self._made: dict[tuple[int, str, object], tuple[Walked, Runs]] = {}

    def predict_each(self, loaded: Sequence[Loaded], explanation: Explanation) -> Iterator[tuple[Walked, Runs]]:
        keys = [(id(one), explanation.id, explanation.changes.get("instance")) for one in loaded]
        missing = [i for i, key in enumerate(keys) if key not in self._made]
        for i, found in zip(missing, super().predict_each([loaded[i] for i in missing], explanation), strict=True):
            self._made[keys[i]] = found
        yield from (self._made[key] for key in keys)
