"""How far two states are apart, and what precision they were stored in."""

from __future__ import annotations

from collections.abc import Mapping

import torch

#: Largest relative error of a token that rounding and another order of sums explain, by the precision of the coarser dump.
LIMITS: Mapping[str, float] = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 6e-2}
#: Half a unit in the last place, relative.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
#: Tokens on which relations are looked for, and how far a shift is looked for. Errors are taken over all tokens.
WINDOW, SHIFTS = 512, 8
# A relation with free numbers must explain at least three quarters of the difference to be believed over a simpler one.
EXPLAINS = 0.25
# Likeness from which a state is looked at, and from which it needs no search for a shift; tokens that rule a sum of two states out.
LIKE, ALIKE, FEW = 0.5, 0.995, 16


def precision_of(x: torch.Tensor) -> str:
    """The coarsest of bfloat16, float16 and float32 that holds every value exactly: what a dump was stored or computed in, whatever its dtype says."""
    x32 = x.to(torch.float32)
    return next((name for name, dtype in DTYPES.items() if torch.equal(x32.to(dtype).to(torch.float32), x32)), "float32")


def token_errors(expected_NH: torch.Tensor, found_NH: torch.Tensor) -> torch.Tensor:
    """Relative error of every token, float32 [N]; infinite where only one of the two is finite."""
    size_H = expected_NH.abs().median(dim=0).values
    size_H = size_H.clamp(min=max(float(size_H.mean()) * 1e-3, 1e-30))
    rms = (((found_NH - expected_NH) / size_H).square().mean(-1) / (expected_NH / size_H).square().mean(-1).clamp(min=1e-30)).sqrt()
    return torch.where(torch.isfinite(rms), rms, torch.full_like(rms, torch.inf))


def overlap(a_NH: torch.Tensor, b_NH: torch.Tensor, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that belong together when b[t] = a[t - shift]."""
    n = min(a_NH.shape[0], b_NH.shape[0])
    return (a_NH[: n - shift], b_NH[shift:n]) if shift >= 0 else (a_NH[-shift:n], b_NH[: n + shift])


def shape(x_NH: torch.Tensor) -> torch.Tensor:
    """x without what a norm or a scale changes: tokens of length one, channels of mean zero and length one."""
    z = x_NH / x_NH.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)
    z = z - z.mean(0)
    return z / z.square().mean(0).sqrt().clamp(min=1e-6)


def likeness(a_NH: torch.Tensor, b_NH: torch.Tensor) -> float:
    """Correlation of two shapes over the same tokens, 0 to 1."""
    product = (a_NH * b_NH).sum() / (a_NH.norm() * b_NH.norm()).clamp(min=1e-30)
    return float(product.abs())


def inner_products(x_NH: torch.Tensor) -> torch.Tensor:
    """Every token with every token, [N, N]: what a rotation of the channels does not change."""
    return x_NH @ x_NH.T


def apart(a_NN: torch.Tensor, b_NN: torch.Tensor) -> float:
    """How far two matrices of inner products differ, both scaled to length one."""
    return float((a_NN / a_NN.norm().clamp(min=1e-30) - b_NN / b_NN.norm().clamp(min=1e-30)).norm())


def window(x_NH: torch.Tensor) -> torch.Tensor:
    return x_NH[:WINDOW]


def short(x: float) -> float:
    """Four significant digits: what is said is what is stored."""
    return float(f"{x:.4g}")
