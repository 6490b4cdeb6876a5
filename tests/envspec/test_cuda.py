"""CUDA decisions as tables: no GPU is needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec import cuda

ARCHS_28 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("runtime", "driver", "driver_cuda", "expected"),
    [
        ("12.8", "570.124.06", "12.8", "full"),
        ("12.8", "580.65.06", "13.0", "full"),
        ("12.8", "535.104.05", "12.2", "minor"),
        ("12.9", "525.60.13", None, "minor"),
        ("12.8", "570.26", None, "full"),
        ("12.8", "525.60.12", None, "too-old"),
        ("12.8", "470.199.02", "11.4", "too-old"),
        ("13.0", "570.124.06", "12.8", "too-old"),
        ("13.0", "565.57.01", "12.7", "too-old"),
        ("13.0", "580.65.06", "13.0", "full"),
        ("13.1", "580.65.06", "13.0", "minor"),
        ("11.8", "450.80.02", "11.0", "minor"),
        ("11.8", "550.54.15", "12.4", "full"),
        ("12.8", None, "12.4", "minor"),
        ("13.0", None, "12.8", "too-old"),
        ("12.8", None, None, "unknown"),
        (None, "570.26", "12.8", "unknown"),
        ("42.0", "570.26", None, "unknown"),
        # A forward-compatibility package: libcuda offers more than the kernel driver's own CUDA.
        ("12.8", "535.104.05", "12.8", "full"),
    ],
)
def test_support(runtime: str | None, driver: str | None, driver_cuda: str | None, expected: str) -> None:
    assert cuda.support(runtime, driver, driver_cuda) == expected


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (ARCHS_28, "9.0", "sass"),
        (ARCHS_28, "12.0", "sass"),
        (ARCHS_28, "12.1", "sass"),
        (ARCHS_28, "10.3", "sass"),
        (ARCHS_28, "8.9", "sass"),
        (ARCHS_28, "6.1", "none"),
        (("sm_75", "sm_80", "sm_90"), "7.0", "none"),
        (("sm_80", "sm_90"), "12.0", "none"),
        (("sm_86",), "8.0", "none"),
        (("sm_90a",), "9.0", "sass"),
        (("sm_90a",), "10.0", "none"),
        (("sm_100a",), "10.3", "none"),
        (("sm_100f",), "10.3", "sass"),
        (("sm_80", "compute_80"), "12.0", "ptx"),
        (("compute_90",), "8.0", "none"),
        (("compute_90a",), "10.0", "none"),
        (("compute_90a",), "9.0", "ptx"),
        ((), "9.0", "unknown"),
        (ARCHS_28, None, "unknown"),
        (ARCHS_28, "[N/A]", "unknown"),
        (("gfx942",), "9.0", "none"),
    ],
)
def test_covers(archs: tuple[str, ...], capability: str | None, expected: str) -> None:
    assert cuda.covers(archs, capability) == expected


REQUIRE = (
    "cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=grid,driver>=470,driver<471 brand=tesla,driver>=470,driver<471 "
    "brand=nvidia,driver>=535,driver<536 brand=quadro,driver>=535,driver<536"
)


@pytest.mark.parametrize(
    ("text", "facts", "met", "failed"),
    [
        (REQUIRE, {"driver_cuda": "12.8", "driver": "570.26"}, True, None),
        (REQUIRE, {"driver_cuda": "12.4", "driver": "550.54.15", "gpu": "NVIDIA H200"}, False, "cuda>=12.8"),
        (REQUIRE, {"driver_cuda": "12.2", "driver": "535.104.05", "gpu": "NVIDIA H200"}, True, None),
        (REQUIRE, {"driver_cuda": "11.4", "driver": "470.199.02", "gpu": "Tesla V100-SXM2-16GB"}, True, None),
        # GeForce is in no alternative: there is no forward-compatibility path.
        (
            REQUIRE,
            {"driver_cuda": "12.2", "driver": "535.104.05", "gpu": "NVIDIA GeForce RTX 4090"},
            False,
            "cuda>=12.8",
        ),
        (REQUIRE, {"driver": "550.54.15", "gpu": "NVIDIA H200"}, None, None),
        ("cuda>=12.8 brand=tesla,driver>=535,driver<536", {"driver_cuda": "12.2", "driver": "535.1"}, None, None),
        ("arch>=9.0", {"capability": "8.0"}, False, "arch>=9.0"),
        ("driver!=550.54", {"driver": "550.54.15"}, False, "driver!=550.54"),
        ("!cuda<12", {"driver_cuda": "12.2"}, True, None),
        ("nonsense", {}, None, None),
        ("", {}, True, None),
    ],
)
def test_image_requirements(text: str, facts: dict[str, str], met: bool | None, failed: str | None) -> None:
    known = {"driver_cuda": None, "driver": None, "capability": None, "gpu": None, **facts}
    result = cuda.evaluate_requirement(text, **known)
    assert (result.met, result.failed) == (met, failed)


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=12))
def test_any_text_is_taken(text: str, other: str) -> None:
    cuda.evaluate_requirement(text, driver_cuda=other, driver=other, capability=other, gpu=other)
    cuda.support(text, other, other)
    cuda.covers([text], other)


@settings(deadline=None)
@given(st.integers(1, 19), st.integers(0, 9))
def test_integers(major: int, minor: int) -> None:
    assert cuda.decode(major * 1000 + minor * 10) == f"{major}.{minor}"


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("cu128", "12.8"),
        ("cu130", "13.0"),
        ("cu.12.8.torch.2.11", "12.8"),
        ("cpu", None),
        ("cu12torch2.6", None),
        (None, None),
    ],
)
def test_cuda_of_a_variant(variant: str | None, expected: str | None) -> None:
    assert cuda.of_variant(variant) == expected
