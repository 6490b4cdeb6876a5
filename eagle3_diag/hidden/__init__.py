"""Two dumps of the same tokens' hidden states: which state is which, and what was done to it. Pure: tensors in, findings out.

States are assigned by similarity, never by name. What then decides is the *relative error* of a token: the root mean square over channels of the
difference, each channel measured by its own usual size (the median over tokens), divided by the same of the state. A few huge channels, which every
large model has, can so not hide all others, as they do in a cosine.

A relation between a state of A and one of B is looked for in the order of the functions below, simplest first; the first under which every token's error
stays below the limit of the coarser dump's precision is the answer.

Dimension suffixes: N tokens, H width of a state.
"""

from __future__ import annotations

from eagle3_diag.hidden.compare import Comparison, Finding, compare
from eagle3_diag.hidden.matching import Dump, Match, State
from eagle3_diag.hidden.measures import LIMITS, overlap, precision_of, token_errors
from eagle3_diag.hidden.relations import RELATIONS, Norm

__all__ = [
    "LIMITS",
    "RELATIONS",
    "Comparison",
    "Dump",
    "Finding",
    "Match",
    "Norm",
    "State",
    "compare",
    "overlap",
    "precision_of",
    "token_errors",
]
