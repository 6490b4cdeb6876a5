from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Reference

from eagle3_diag.engines.versions import parse

PARTS = st.integers(0, 30)


@st.composite
def versions(draw: st.DrawFn) -> str:
    text = ".".join(str(draw(PARTS)) for _ in range(draw(st.integers(1, 4))))
    if draw(st.booleans()):
        text += draw(st.sampled_from(["a", "b", "rc"])) + str(draw(PARTS))
    if draw(st.booleans()):
        text += f".post{draw(PARTS)}"
    if draw(st.booleans()):
        text += f".dev{draw(PARTS)}"
    return text + draw(st.sampled_from(["", "", "+cu128", "+cpu"]))


@given(versions(), versions())
def test_orders_as_packaging_does(a: str, b: str) -> None:
    mine = (parse(a) > parse(b)) - (parse(a) < parse(b))
    left, right = Reference(Reference(a).public), Reference(Reference(b).public)
    assert mine == (left > right) - (left < right)


@pytest.mark.parametrize("text", ["", "newest", "0.5.x", "1..2", "1.2.3abc", "==1"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        parse(text)
