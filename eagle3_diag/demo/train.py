"""Make the demo: a target that plans ahead, an EAGLE-3 drafter trained for it by the real speculators, and stored samples.

    python train.py --out DIR [--seed 7] [--target-steps N] [--drafter-steps N]
    python train.py --out DIR --target DIR [--seed 7] --more-samples N

needs torch, transformers, tokenizers and speculators (``nox -s train-demo`` has them); 2 CPU cores are enough. The same seed
gives the same bytes on the same machine and versions.

**The language** has 12 words; each word follows from the three before it by a fixed random table of 1728 entries, a
permutation of the word three places back, so that different texts stay different.

**The target** is a Llama of 8 layers that memorises the table. Beside the usual next-token loss every layer's input gets one:
read through the final norm and the LM head, the inputs of layers 2, 4 and 6 must name the tokens two, three and four places
ahead, those of layers 3, 5 and 7 tokens that are already there. So each layer holds something else, and the future can be read
off the right features only: layer, order and timing matter, as they should in a test of wiring. After training the weights are rounded to bfloat16, and everything below is made with the rounded ones.

**The drafter** is speculators' own ``Eagle3DraftModel``, trained by its own forward and loss on texts that the target wrote,
with the features that it computed. Flex attention has no backward pass on a CPU, so attention goes through
``scaled_dot_product_attention`` with the same mask. Its draft vocabulary lacks one of the 12 words, as real ones lack the
target's rare tokens, so that some drafts must fail.

**The samples** have prompts of their own, 10 to 25 words long, continued greedily by the target. ``hs_{i}.safetensors`` with the
inputs of layers 1 to 7 and the output of the last, so that one layer too early or too late can be tried on them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from speculators.models.attention import ALL_ATTENTION_FUNCTIONS
from speculators.models.eagle3 import Eagle3DraftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [consonant + vowel for consonant in "kmr" for vowel in "aeio"]
OTHER_WORDS = [consonant + vowel for consonant in "bdfghjlnpstvz" for vowel in "aeiou"]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
VOCABULARY = SPECIAL + OTHER_WORDS[:30] + WORDS + OTHER_WORDS[30:]
VOCABULARY += [f"<unused{i}>" for i in range(96 - len(VOCABULARY))]
FIRST_WORD = VOCABULARY.index(WORDS[0])
DRAFT_VOCABULARY = 20
#: A word that the draft vocabulary lacks, as real ones lack the target's rare tokens.
UNDRAFTED = WORDS[-3]
HIDDEN, INTERMEDIATE, LAYERS, LENGTH = 128, 256, 8, 96
AUX_LAYERS = (2, 4, 6)
#: Input of layer -> which token its state must name, counted from the one that the layer's position holds.
PLAN = {2: 2, 4: 3, 6: 4, 3: -1, 5: -2, 7: 0}
SAMPLES = 16
DRAFT_STEPS = 6


def _chain(generator: torch.Generator, table_CBA: torch.Tensor, count: int, length: int, noise: float) -> torch.Tensor:
    """[count, length] token ids of texts that begin with three random words; a share of words is replaced by random ones."""
    size = len(WORDS)
    words_BT = torch.randint(0, size, (count, length), generator=generator)
    keep_BT = torch.rand(count, length, generator=generator) < noise
    for t in range(3, length):
        follows_B = table_CBA[words_BT[:, t - 1], words_BT[:, t - 2], words_BT[:, t - 3]]
        words_BT[:, t] = torch.where(keep_BT[:, t], words_BT[:, t], follows_B)
    return words_BT + FIRST_WORD


def _planned(tokens_BT: torch.Tensor, ahead: int) -> tuple[slice, torch.Tensor]:
    """Positions at which the token ``ahead`` places on is determined, and those tokens."""
    length = tokens_BT.shape[1]
    first = 3 if ahead <= 0 else 2
    last = length - max(ahead, 0)
    return slice(first, last), tokens_BT[:, first + ahead : last + ahead]


def train_target(generator: torch.Generator, table_CBA: torch.Tensor, steps: int) -> LlamaForCausalLM:
    """The target, in float32 with weights that bfloat16 can hold."""
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=1024, rms_norm_eps=1e-5,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    started = time.monotonic()
    for step in range(steps):
        tokens_BT = _chain(generator, table_CBA, 24, LENGTH, noise=0.02)
        output = model(input_ids=tokens_BT, output_hidden_states=True)
        where, labels = _planned(tokens_BT, 1)
        loss = F.cross_entropy(output.logits[:, where].flatten(0, 1), labels.flatten())
        rates = [_rate(output.logits[:, where], labels)]
        for layer, ahead in PLAN.items():
            where, labels = _planned(tokens_BT, ahead)
            logits = model.lm_head(model.model.norm(output.hidden_states[layer][:, where]))
            loss = loss + 0.5 * F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            rates.append(_rate(logits, labels))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"target {step}: loss {loss.item():.3f}, rates {rates}, {time.monotonic() - started:.0f} s", flush=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model.eval()


def _rate(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return round((logits.argmax(-1) == labels).float().mean().item(), 3)


@torch.no_grad()
def read_states(model: LlamaForCausalLM, tokens_BT: torch.Tensor) -> torch.Tensor:
    """[B, T, L, H]: inputs of layers 1 to 7, then the last layer's output before the final norm."""
    last: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        last.append(output[0] if isinstance(output, tuple) else output)

    handle = model.model.layers[-1].register_forward_hook(keep)
    try:
        states = model(input_ids=tokens_BT, output_hidden_states=True).hidden_states
    finally:
        handle.remove()
    return torch.stack([*states[1:LAYERS], last[0]], dim=2)


@torch.no_grad()
def continue_greedily(model: LlamaForCausalLM, prompt_BT: torch.Tensor, length: int) -> torch.Tensor:
    """The prompts with the target's most likely continuation, [B, length]."""
    return model.generate(
        prompt_BT, do_sample=False, max_new_tokens=length - prompt_BT.shape[1],
        min_new_tokens=length - prompt_BT.shape[1], pad_token_id=3,
    )  # fmt: skip


def dense_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
    scaling: float | None = None, **ignored: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """speculators' attention with the same mask, written out: flex attention has no backward pass on a CPU."""
    rows, columns = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None]
    zero = torch.zeros((), dtype=torch.int64)
    visible_QK = attention_mask.mask_mod(zero, zero, rows, columns)
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=visible_QK[None, None], scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2).contiguous(), None


def _batches(
    model: LlamaForCausalLM, generator: torch.Generator, table_CBA: torch.Tensor, batches: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Texts by the target, packed as speculators packs them: row t holds token t + 1 and the features of position t."""
    texts = groups = 8  # per batch; batches per generation, which costs the same for 64 texts as for 8
    for number in range(batches):
        if number % groups == 0:
            length = int(torch.randint(48, LENGTH + 1, (), generator=generator))
            prompt = int(torch.randint(10, 27, (), generator=generator))
            written = continue_greedily(model, _chain(generator, table_CBA, texts * groups, prompt, noise=0.0), length)
        tokens_BT = written[number % groups :: groups]
        states_BTLH = read_states(model, tokens_BT)
        aux_BTF = states_BTLH[:, :, [layer - 1 for layer in AUX_LAYERS]].flatten(2)
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        mask_BT[:, :prompt] = False
        yield {
            "hidden_states": aux_BTF[:, :-1].flatten(0, 1)[None],
            "input_ids": tokens_BT[:, 1:].flatten()[None],
            "verifier_last_hidden_states": states_BTLH[:, 1:, -1].flatten(0, 1)[None],
            "loss_mask": mask_BT[:, 1:].flatten()[None],
            "position_ids": torch.arange(1, length).repeat(texts)[None],
            "lengths": torch.full((texts,), length - 1),
        }


def train_drafter(
    model: LlamaForCausalLM, target: Path, generator: torch.Generator, table_CBA: torch.Tensor, steps: int
) -> Eagle3DraftModel:
    """The drafter, trained by speculators' own forward, weights rounded to bfloat16."""
    ALL_ATTENTION_FUNCTIONS.register("simple_flex_attention", dense_attention)
    forward = Eagle3DraftModel.forward
    forward = getattr(forward, "__wrapped__", getattr(forward, "_torchdynamo_orig_callable", forward))
    around = range(FIRST_WORD - 4, FIRST_WORD - 3 + DRAFT_VOCABULARY)
    kept = torch.tensor([token for token in around if token != VOCABULARY.index(UNDRAFTED)])
    t2d = torch.zeros(len(VOCABULARY), dtype=torch.bool)
    t2d[kept] = True
    config = LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 1})
    drafter = Eagle3DraftModel.from_training_args(
        config, t2d=t2d, d2t=kept - torch.arange(DRAFT_VOCABULARY), draft_vocab_size=DRAFT_VOCABULARY,
        norm_before_residual=False, ttt_steps=DRAFT_STEPS, verifier_name_or_path=str(target),
        target_layer_ids=list(AUX_LAYERS),
    )  # fmt: skip
    trained = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    started = time.monotonic()
    for step, batch in enumerate(_batches(model, generator, table_CBA, steps)):
        _, loss, metrics = forward(drafter, **batch, ttt_steps=DRAFT_STEPS)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            full = [float(metrics[f"full_acc_{k}_sum"] / metrics[f"full_acc_{k}_total"]) for k in range(DRAFT_STEPS)]
            print(f"drafter {step}: loss {loss.item():.3f}, full_acc {[round(x, 3) for x in full]}, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    return drafter.eval()


def write_target(model: LlamaForCausalLM, directory: Path) -> None:
    """A complete Hugging Face checkpoint in bfloat16, with the language's tokenizer (words separated by spaces)."""
    model.to(torch.bfloat16).save_pretrained(directory)
    model.to(torch.float32)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        model_max_length=model.config.max_position_embeddings,
    ).save_pretrained(directory)  # fmt: skip
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that Transformers 4 knows as well
    path.write_text(json.dumps(config, indent=2) + "\n")


def write_drafter(drafter: Eagle3DraftModel, directory: Path) -> None:
    """speculators' own checkpoint, its floating-point tensors in bfloat16, the target named by a relative path."""
    drafter.save_pretrained(directory)
    weights = directory / "model.safetensors"
    tensors = load_file(weights)
    save_file(
        {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in tensors.items()},
        weights, metadata={"format": "pt"},
    )  # fmt: skip
    for code in directory.glob("*.py"):  # a copy of speculators' own source, which no reader needs
        code.unlink()
    config = json.loads((directory / "config.json").read_text())
    config.pop("auto_map", None)
    config["speculators_config"]["verifier"]["name_or_path"] = "../target"
    config["dtype"] = config["transformer_layer_config"]["dtype"] = "bfloat16"
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_samples(
    model: LlamaForCausalLM, generator: torch.Generator, table_CBA: torch.Tensor, directory: Path, count: int = SAMPLES
) -> None:
    """Held-out texts of different lengths, each its own greedy continuation, states in float16."""
    directory.mkdir()
    for i in range(count):
        prompt, length = 10 + i % SAMPLES, 68 + 28 * (i % SAMPLES) // SAMPLES
        tokens_BT = continue_greedily(model, _chain(generator, table_CBA, 1, prompt, noise=0.0), length)
        states_TLH = read_states(model, tokens_BT)[0]
        mask_T = torch.zeros(length, dtype=torch.int64)
        mask_T[prompt:] = 1
        save_file(
            {
                "hidden_states": states_TLH.to(torch.float16).contiguous(),
                "token_ids": tokens_BT[0].clone(),
                "loss_mask": mask_T,
                "layer_ids": torch.arange(1, LAYERS + 1),
            },
            directory / f"hs_{i}.safetensors",
        )


def main() -> None:
    """Make everything in a temporary directory, then put it in place."""
    parser = argparse.ArgumentParser(description="Train the demo's target and drafter and store samples.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where target, drafter and samples go")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--target-steps", type=int, default=600)
    parser.add_argument("--drafter-steps", type=int, default=300)
    parser.add_argument("--target", type=Path, help="take this target (made by an earlier run) instead of training one")
    parser.add_argument("--more-samples", type=int, metavar="N", help="train nothing: write N further samples of the target of an earlier run with this seed")
    arguments = parser.parse_args()
    if arguments.more_samples is not None and arguments.target is None:
        parser.error("--more-samples are of a target that is there; name it with --target")
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # sums in another order would train another pair
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(arguments.seed)
    size = len(WORDS)
    table_CBA = torch.stack([torch.randperm(size, generator=generator) for _ in range(size**2)]).view(size, size, size)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out) as name:
        made = Path(name)
        if arguments.target is None:
            write_target(train_target(generator, table_CBA, arguments.target_steps), made / "target")
        else:
            shutil.copytree(arguments.target, made / "target")
        target = LlamaForCausalLM.from_pretrained(made / "target", dtype=torch.float32).eval()
        if arguments.more_samples is not None:
            generator.manual_seed(arguments.seed + 3)
            write_samples(target, generator, table_CBA, made / "samples", arguments.more_samples)
            parts = ("samples",)
        else:
            generator.manual_seed(arguments.seed + 1)
            write_samples(target, generator, table_CBA, made / "samples")
            generator.manual_seed(arguments.seed + 2)
            torch.manual_seed(arguments.seed + 2)  # the drafter's first weights, whether the target was trained just now or not
            drafter = train_drafter(target, made / "target", generator, table_CBA, arguments.drafter_steps)
            write_drafter(drafter, made / "drafter")
            parts = ("target", "drafter", "samples")
        for part in parts:
            shutil.rmtree(arguments.out / part, ignore_errors=True)
            (made / part).rename(arguments.out / part)
    total = sum(path.stat().st_size for part in parts for path in (arguments.out / part).iterdir())
    print(f"{', '.join(parts)}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
