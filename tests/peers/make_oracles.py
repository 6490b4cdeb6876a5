"""Make the stored oracle values from the real packages, or check them.

    python -m tests.peers.make_oracles [--check] [NAME ...]

Without --check, makes pairs anew and writes ``oracles/NAME.safetensors``. With it, feeds the stored pairs to the packages again and
exits 1 when anything they say differs from what is stored: tokens and counts must be equal, logits and ratios within 1e-5.
Packages that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from functools import partial

import torch

from tests.peers import eagle_peer, mla_peer, model_optimizer_peer, specforge_peer, speculators_peer
from tests.peers.cases import ORACLES, Case

CASES: dict[str, tuple[str, Callable[[], Case]]] = {
    name: (package, partial(make, name, seed=seed, **options))
    for seed, (name, package, make, options) in enumerate(
        [
            ("speculators-llama", "speculators", speculators_peer.make, {}),
            ("speculators-residual-yarn", "speculators", speculators_peer.make, {"norm_before_residual": True, "draft_vocab": False, "rope": "yarn"}),
            ("speculators-qwen3-2-layers", "speculators", speculators_peer.make, {"model": "qwen3", "layers": 2, "rope": "llama3", "lengths": (40, 24)}),
            ("speculators-2-layers-fc-norm", "speculators", speculators_peer.make, {"layers": 2, "norm_before_fc": True, "norm_before_residual": True}),
            ("speculators-packed-bias", "speculators", speculators_peer.make, {"packed": True, "bias": True, "heads": (4, 1, 8), "lengths": (37, 9, 30, 21)}),
            ("speculators-qwen3-residual", "speculators", speculators_peer.make, {"model": "qwen3", "norm_before_residual": True, "heads": (4, 4, 12)}),
            ("speculators-0.9", "speculators>=0.7", speculators_peer.make, {"norm_output": True, "fc_norm": True}),
            ("speculators-0.9-qwen3-2-layers", "speculators>=0.7", speculators_peer.make, {"model": "qwen3", "layers": 2, "norm_output": True, "rope": "yarn"}),
            ("specforge-yarn", "specforge", specforge_peer.make, {"rope": "yarn"}),
            ("specforge-fc-norm-llama3", "specforge", specforge_peer.make, {"rope": "llama3", "fc_norm": True, "draft_vocab": False}),
            ("eagle", "eagle", eagle_peer.make, {}),
            ("model-optimizer", "modelopt", model_optimizer_peer.make, {}),
            ("model-optimizer-2-layers", "modelopt", model_optimizer_peer.make, {"layers": 2, "rope": "llama3", "draft_vocab": False}),
            ("mla-yarn", "transformers", mla_peer.make, {"rope": "yarn"}),
            ("mla-no-q-rank", "transformers", mla_peer.make, {"q_lora_rank": None}),
        ],
        start=11,
    )
}
OBSERVE: dict[str, Callable[[Case], Case]] = {
    "speculators": speculators_peer.observe,
    "specforge": specforge_peer.observe,
    "eagle": eagle_peer.observe,
    "model-optimizer": model_optimizer_peer.observe,
    "mla": mla_peer.observe,
}


def available(package: str) -> bool:
    """Whether a case's package is here, in the version meant (EAGLE is a checkout that ``EAGLE_SOURCE`` names)."""
    if package.startswith("speculators"):
        if importlib.util.find_spec("speculators") is None:
            return False
        return speculators_peer.teacher_forces() == (package != "speculators")
    return eagle_peer.source() is not None if package == "eagle" else importlib.util.find_spec(package) is not None


def differences(stored: Case, fresh: Case) -> list[str]:
    """What a package says now and did not say then."""
    found = []
    for i, (old, new) in enumerate(zip(stored.expected, fresh.expected, strict=True)):
        for key in sorted(set(old) | set(new)):
            a, b = old.get(key), new.get(key)
            if a is None or b is None or a.shape != b.shape:
                found.append(f"sample {i}, {key}: not the same shape")
            elif a.dtype.is_floating_point:
                worst = float((a - b).abs().max() / a.abs().max().clamp(min=1e-12))
                if not worst < 1e-5:
                    found.append(f"sample {i}, {key}: differs by {worst:.2g} of its largest value")
            elif not torch.equal(a, b):
                found.append(f"sample {i}, {key}: {int((a != b).sum())} of {a.numel()} values differ")
    old_sums, new_sums = (c.about.get("packed_metrics") for c in (stored, fresh))
    for key in old_sums or {}:
        if not key.startswith("loss") and old_sums[key] != (new_sums or {}).get(key):
            found.append(f"{key}: {old_sums[key]} stored, {(new_sums or {}).get(key)} now")
    return found


def check(name: str) -> list[str]:
    """Differences of one stored case; the stored pair is fed to the package again."""
    stored = Case.load(ORACLES / f"{name}.safetensors")
    again = Case.load(ORACLES / f"{name}.safetensors")
    return differences(stored, OBSERVE[stored.kind](again))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make or check the stored oracle values.")
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="cases (default: all)")
    parser.add_argument("--check", action="store_true", help="compare the packages with what is stored; write nothing")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names or CASES:
        package, make = CASES[name]
        if not available(package):
            print(f"{name}: left out, {'speculators<0.7' if package == 'speculators' else package} is not here", flush=True)
        elif options.check:
            found = check(name)
            failed += bool(found)
            print(f"{name}: {'; '.join(found) or 'as stored'}", flush=True)
        else:
            case = make()
            ORACLES.mkdir(exist_ok=True)
            case.save(ORACLES / f"{name}.safetensors")
            print(f"{name}: {(ORACLES / f'{name}.safetensors').stat().st_size} bytes, {case.about['made_by']}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
