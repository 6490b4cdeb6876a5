"""One case: a small random drafter, its target, samples, and what a real package says about them. Torch and safetensors only.

A case travels as one ``.safetensors`` file: tensors ``drafter/NAME``, ``target/NAME``, ``sample/I/FIELD``, ``expected/I/FIELD``, and two
JSON documents in the file's metadata (``configs`` and ``about``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.eagle3_diag.reference import Mla, ReferenceDrafter, Shape

ORACLES = Path(__file__).parent / "oracles"
STEPS = 6


@dataclass
class StoredSample:
    """``tokens`` int64 [n], ``mask`` bool [n], ``aux`` [A, n, H] and ``final`` [n, H] (before the target's norm) in bfloat16."""

    tokens: torch.Tensor
    mask: torch.Tensor
    aux: torch.Tensor
    final: torch.Tensor

    @property
    def length(self) -> int:
        return int(self.tokens.shape[0])


@dataclass
class Case:
    """``drafter`` and ``target`` are checkpoints (config.json and tensors under the file's own names).

    ``weights`` are the drafter's tensors under internal names, ``ids`` its vocabulary as target ids. ``expected`` holds, per sample, what
    the package says; ``about`` says which package, and anything else its check needs.
    """

    name: str
    kind: str
    shape: Shape
    drafter_config: dict[str, Any]
    drafter: dict[str, torch.Tensor]
    target_config: dict[str, Any]
    target: dict[str, torch.Tensor]
    samples: list[StoredSample]
    expected: list[dict[str, torch.Tensor]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        tensors = {f"drafter/{k}": v for k, v in self.drafter.items()} | {f"target/{k}": v for k, v in self.target.items()}
        for i, s in enumerate(self.samples):
            tensors |= {f"sample/{i}/{k}": getattr(s, k) for k in ("tokens", "mask", "aux", "final")}
        for i, e in enumerate(self.expected):
            tensors |= {f"expected/{i}/{k}": v for k, v in e.items()}
        for name in [n for n, t in tensors.items() if t.dtype == torch.int64 and not n.startswith("drafter/")]:
            tensors[name] = tensors[name].to(torch.int32)
        configs = {"drafter": self.drafter_config, "target": self.target_config}
        shape = {k: (v.__dict__ if isinstance(v, Mla) else v) for k, v in self.shape.__dict__.items()}
        about = {"name": self.name, "kind": self.kind, "shape": shape, **self.about}
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"configs": json.dumps(configs), "about": json.dumps(about)})

    @classmethod
    def load(cls, path: Path) -> Case:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        configs, about = json.loads(meta["configs"]), json.loads(meta["about"])
        parts: dict[str, dict[str, torch.Tensor]] = {"drafter": {}, "target": {}}
        numbered: dict[str, dict[int, dict[str, torch.Tensor]]] = {"sample": {}, "expected": {}}
        for name, tensor in tensors.items():
            part, rest = name.split("/", 1)
            if part in parts:
                parts[part][rest] = tensor
            else:
                i, key = rest.split("/", 1)
                numbered[part].setdefault(int(i), {})[key] = tensor.to(torch.int64) if tensor.dtype == torch.int32 else tensor
        shape = about.pop("shape")
        if shape["mla"] is not None:
            shape["mla"] = Mla(**shape["mla"])
        return cls(
            name=about.pop("name"),
            kind=about.pop("kind"),
            shape=Shape(**shape),
            drafter_config=configs["drafter"],
            drafter=parts["drafter"],
            target_config=configs["target"],
            target=parts["target"],
            samples=[StoredSample(**numbered["sample"][i]) for i in sorted(numbered["sample"])],
            expected=[numbered["expected"][i] for i in sorted(numbered["expected"])],
            about=about,
        )

    @property
    def ids(self) -> torch.Tensor:
        """Target ids of the draft vocabulary, int64 [D]."""
        if "d2t" not in self.drafter:
            return torch.arange(self.target["model.embed_tokens.weight"].shape[0])
        return self.drafter["d2t"] + torch.arange(self.drafter["d2t"].shape[0])

    def write(self, folder: Path) -> tuple[Path, Path, Path]:
        """(drafter, target, samples) as directories in the layouts that their makers write."""
        drafter, target, samples = folder / "drafter", folder / "target", folder / "samples"
        for path, config, tensors in ((drafter, self.drafter_config, self.drafter), (target, self.target_config, self.target)):
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps(config))
            save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})
        samples.mkdir()
        for i, sample in enumerate(self.samples):
            _WRITERS[self.kind](self, i, sample, samples)
        return drafter, target, samples


def normed_final(case: Case, sample: StoredSample) -> torch.Tensor:
    """The final state after the target's norm, float32 [n, H]."""
    x = sample.final.float()
    return case.target["model.norm.weight"] * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + case.target_config["rms_norm_eps"]))


def target_argmax(case: Case, sample: StoredSample, ids: torch.Tensor | None = None) -> torch.Tensor:
    """The target's choice at every position, int64 [n] target ids, among ``ids`` or all."""
    logits = normed_final(case, sample) @ case.target["lm_head.weight"].T
    return logits.argmax(-1) if ids is None else ids[logits[:, ids].argmax(-1)]


def _write_speculators(case: Case, i: int, s: StoredSample, folder: Path) -> None:
    states = [*s.aux, s.final]
    torch.save({"input_ids": s.tokens, "loss_mask": s.mask.to(torch.int64), "hidden_states": [x.clone() for x in states]}, folder / f"data_{i}.pt")


def _write_specforge(case: Case, i: int, s: StoredSample, folder: Path) -> None:
    """The final state of these files is after the norm; kept in float32 so that it carries the same argmax."""
    aux = torch.cat(list(s.aux), dim=-1)[None]
    rows = folder / "rows_0-5000"
    rows.mkdir(exist_ok=True)
    data = {"input_ids": s.tokens, "loss_mask": s.mask.to(torch.int64), "aux_hidden_state": aux, "hidden_state": normed_final(case, s)[None]}
    torch.save(data, rows / f"data_{i}.ckpt")


def _write_model_optimizer(case: Case, i: int, s: StoredSample, folder: Path) -> None:
    aux = torch.cat(list(s.aux), dim=-1)
    data = {"input_ids": s.tokens, "loss_mask": s.mask.to(torch.int64), "aux_hidden_states": aux, "hidden_states": normed_final(case, s)}
    torch.save(data | {"conversation_id": f"c{i}"}, folder / f"c{i}.pt")


_WRITERS: dict[str, Callable[[Case, int, StoredSample, Path], None]] = {
    "speculators": _write_speculators,
    "specforge": _write_specforge,
    "eagle": _write_speculators,
    "model-optimizer": _write_model_optimizer,
    "mla": _write_speculators,
}


# ---- random pairs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sizes:
    vocab: int = 96
    draft_vocab: int = 48
    hidden: int = 32
    intermediate: int = 64
    num_aux: int = 3
    attention_bias: bool = False
    mlp_bias: bool = False


def random_weights(shape: Shape, sizes: Sizes, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A drafter's tensors under internal names, norm weights far from 1 so that a norm left out or swapped shows."""

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / columns**0.5

    def norm(size: int) -> torch.Tensor:
        return 0.5 + torch.rand(size, generator=generator)

    H, N, G, D = sizes.hidden, shape.num_heads, shape.num_kv_heads, shape.head_dim
    w = {"embed_tokens.weight": torch.randn(sizes.vocab, H, generator=generator), "fc.weight": matrix(H, sizes.num_aux * H)}
    if shape.norm_before_fc:
        w["input_norm.weight"] = norm(sizes.num_aux * H)
    if shape.fc_norm:
        w |= {f"fc_norm.{a}.weight": norm(H) for a in range(sizes.num_aux)}
    for i in range(shape.num_layers):
        layer, wide = f"layers.{i}", 2 * H if i == 0 else H
        w[f"{layer}.input_layernorm.weight"] = norm(H)
        if i == 0:
            w[f"{layer}.hidden_norm.weight"] = norm(H)
        w[f"{layer}.post_attention_layernorm.weight"] = norm(H)
        out = N * D
        if shape.mla is not None:
            m = shape.mla
            if m.q_lora_rank is None:
                w[f"{layer}.self_attn.q_proj.weight"] = matrix(N * (m.nope + m.rope), wide, 2)
            else:
                w[f"{layer}.self_attn.q_a_proj.weight"] = matrix(m.q_lora_rank, wide)
                w[f"{layer}.self_attn.q_a_layernorm.weight"] = norm(m.q_lora_rank)
                w[f"{layer}.self_attn.q_b_proj.weight"] = matrix(N * (m.nope + m.rope), m.q_lora_rank, 2)
            w[f"{layer}.self_attn.kv_a_proj_with_mqa.weight"] = matrix(m.kv_lora_rank + m.rope, wide)
            w[f"{layer}.self_attn.kv_a_layernorm.weight"] = norm(m.kv_lora_rank)
            w[f"{layer}.self_attn.kv_b_proj.weight"] = matrix(N * (m.nope + m.value), m.kv_lora_rank, 2)
            out = N * m.value
        else:
            for part, heads in (("q", N), ("k", G), ("v", G)):
                w[f"{layer}.self_attn.{part}_proj.weight"] = matrix(heads * D, wide, 1.5)
                if sizes.attention_bias:
                    w[f"{layer}.self_attn.{part}_proj.bias"] = 0.3 * torch.randn(heads * D, generator=generator)
            if sizes.attention_bias:
                w[f"{layer}.self_attn.o_proj.bias"] = 0.3 * torch.randn(H, generator=generator)
            if shape.qk_norm:
                w |= {f"{layer}.self_attn.{part}_norm.weight": 2 * norm(D) for part in "qk"}
        w[f"{layer}.self_attn.o_proj.weight"] = matrix(H, out, 2)
        for part, rows, columns in (("gate", sizes.intermediate, H), ("up", sizes.intermediate, H), ("down", H, sizes.intermediate)):
            w[f"{layer}.mlp.{part}_proj.weight"] = matrix(rows, columns)
            if sizes.mlp_bias:
                w[f"{layer}.mlp.{part}_proj.bias"] = 0.3 * torch.randn(rows, generator=generator)
    return w | {"norm.weight": norm(H), "lm_head.weight": matrix(sizes.draft_vocab, H, 4)}


def random_vocabulary(sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """Ascending target ids of the draft vocabulary, int64 [D]; token 0 is in it (SpecForge and EAGLE pad with it)."""
    if sizes.draft_vocab == sizes.vocab:
        return torch.arange(sizes.vocab)
    rest = 1 + torch.randperm(sizes.vocab - 1, generator=generator)[: sizes.draft_vocab - 1]
    return torch.cat((torch.zeros(1, dtype=torch.int64), rest.sort().values))


def random_target(sizes: Sizes, generator: torch.Generator, embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    head = torch.randn(sizes.vocab, sizes.hidden, generator=generator)
    return {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": 0.5 + torch.rand(sizes.hidden, generator=generator),
        "lm_head.weight": head / head.norm(dim=-1, keepdim=True),
    }


def target_config(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.hidden,
        "vocab_size": sizes.vocab,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 2 * sizes.hidden,
        "rms_norm_eps": 1e-5,  # speculators gives the target's norm the drafter's epsilon
        "tie_word_embeddings": False,
    }


def random_sample(
    drafter: ReferenceDrafter, target: dict[str, torch.Tensor], sizes: Sizes, length: int, generator: torch.Generator, *, prompt: int, turns: bool
) -> StoredSample:
    """A sequence on which the drafter is right in runs of every length from 0 to STEPS, so that every step has rows that count.

    The target's choices follow a random number of the drafts made from a row, then part from them; now and then the stored token is not
    the target's choice (text that was sampled), and now and then the choice lies outside the draft vocabulary.
    """

    def below(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    aux = torch.randn(sizes.num_aux, length, sizes.hidden, generator=generator).to(torch.bfloat16)
    tokens = [below(sizes.vocab) for _ in range(2)]
    choices = [tokens[1]]
    row = 0
    while len(choices) < length:
        agreed = drafter.draft([*tokens[: row + 2], 0], list(aux.float()), row, STEPS)[0][: (0, 1, 2, 3, 4, 5, 6, 6)[below(8)]]
        for choice in [*agreed, below(sizes.vocab)]:
            choices.append(choice)
            tokens.append(choice if below(12) else below(sizes.vocab))
        row = len(tokens) - 2
    tokens_N, choices_N = torch.tensor(tokens[:length]), torch.tensor(choices[:length])
    state = target["lm_head.weight"][choices_N] * 3 / target["model.norm.weight"] + 0.05 * torch.randn(length, sizes.hidden, generator=generator)
    mask = torch.ones(length, dtype=torch.bool)
    mask[:prompt] = False
    if turns:  # a second prompt inside, and a tail that is nobody's response
        mask[length // 2 : length // 2 + 4] = False
        mask[-2:] = False
    return StoredSample(tokens_N, mask, aux, (state * 2).to(torch.bfloat16))


def random_samples(
    shape: Shape, weights: dict[str, torch.Tensor], ids: torch.Tensor, target: dict[str, torch.Tensor], sizes: Sizes, lengths: list[int], seed: int
) -> list[StoredSample]:
    generator = torch.Generator().manual_seed(seed)
    drafter = ReferenceDrafter(shape, weights, ids.tolist())
    return [
        random_sample(drafter, target, sizes, n, generator, prompt=(5, 1, 0)[i % 3], turns=i % 2 == 1) for i, n in enumerate(lengths)
    ]
