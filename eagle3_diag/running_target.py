"""A target that runs, through Hugging Face Transformers: next tokens, and the states that flow between its layers.

The states are taken by hooks on the decoder layers' inputs and on the final norm's input: Transformers' own ``hidden_states[-1]`` is *after* the
final norm, where the recorded final state is before it. Tried with Transformers 4.57, 5.10 and 5.19; nothing else of this project imports it.

Dimension suffixes: N tokens of a sequence, L layer inputs, H width of the target.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from eagle3_diag.errors import InputError, OutOfMemory
from eagle3_diag.prompts import Prompt

# What Transformers' models call the list of decoder layers, and the norm behind the last of them.
_LAYERS = ("layers", "h", "blocks")
_NORMS = ("norm", "final_layernorm", "ln_f", "final_norm", "norm_f")


def require_transformers() -> None:
    """Raises InputError, not a traceback, where this interpreter has no Transformers."""
    if find_spec("transformers") is None:
        raise InputError(f"{sys.executable} has no transformers, which runs the target; run this with a Python that has it, or install: pip install transformers")


class RunningTarget:
    """A causal language model in memory. ``path`` as given; ``num_layers`` decoder layers; ``limit`` tokens at most (None: unknown)."""

    def __init__(self, path: Path, *, device: torch.device, dtype: torch.dtype | None, trust_remote_code: bool = False) -> None:
        """Load the target; ``dtype`` None is the checkpoint's own. Raises InputError where Transformers cannot."""
        require_transformers()
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.path, self.device = path, device
        self._trust = trust_remote_code
        self._tokenizer: Any = None
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        try:
            # torch_dtype is the name that every version since 4.0 knows; newer ones call it dtype as well.
            key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
            self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, **{key: dtype or "auto"}, **options)
            self.model = self.model.to(device).eval()
        except (torch.OutOfMemoryError, MemoryError):
            raise self._out_of_memory() from None
        except (OSError, ValueError, ImportError, KeyError, RuntimeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"{path}: Transformers {transformers.__version__} cannot load this target ({reason}); try another version of it") from None
        self.decoder, self.layers, self.norm = self._find()
        self.num_layers = len(self.layers)
        config = self.model.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        self.limit = limit if isinstance(limit, int) and limit > 0 else None
        self.vocab_size = int(config.vocab_size)
        generation = getattr(self.model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None) if generation is not None else None
        ends = getattr(config, "eos_token_id", None) if ends is None else ends
        self.end_ids = frozenset([ends] if isinstance(ends, int) else ends or ())
        keep = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self._last_logits: dict[str, Any] = {"logits_to_keep": 1} if keep else {}

    @property
    def dtype(self) -> torch.dtype:
        """What the target computes in."""
        dtype: torch.dtype = next(self.layers[0].parameters()).dtype
        return dtype

    def _find(self) -> tuple[Any, Any, Any]:
        """(the module that runs the layers, its decoder layers, the norm behind them)."""
        count = int(self.model.config.get_text_config().num_hidden_layers)
        for _, module in self.model.named_modules():
            for name in _LAYERS:
                layers = getattr(module, name, None)
                if isinstance(layers, torch.nn.ModuleList) and len(layers) == count:
                    norm = next((getattr(module, each) for each in _NORMS if isinstance(getattr(module, each, None), torch.nn.Module)), None)
                    if norm is not None:
                        return module, layers, norm
        raise InputError(
            f"{self.path}: no list of {count} decoder layers with a final norm beside it is in {type(self.model).__name__}; this target cannot be recorded"
        )

    def _out_of_memory(self) -> OutOfMemory:
        return OutOfMemory(f"{self.path}: out of memory on {self.device}; use --dtype bfloat16, shorter prompts, fewer --layers or a larger device")

    # ---- tokens --------------------------------------------------------------------------------------------------

    def tokens(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids. Raises InputError for a prompt that this target's tokenizer cannot take."""
        if prompt.token_ids is not None:
            ids = list(prompt.token_ids)
        elif prompt.messages is not None:
            tokenizer = self._the_tokenizer()
            if not getattr(tokenizer, "chat_template", None):
                raise InputError(f"{prompt.where}: {self.path} has no chat template for messages; give prompt or prompt_token_ids instead")
            try:
                ids = list(tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])
            except Exception as error:  # a template is a program of its own: it may fail in any way
                raise InputError(f"{prompt.where}: the chat template of {self.path} fails on these messages ({' '.join(str(error).split())[:200]})") from None
        else:
            ids = list(self._the_tokenizer()(prompt.text)["input_ids"])
        if not ids:
            raise InputError(f"{prompt.where}: the prompt has no tokens; write some text")
        beyond = [i for i in ids if not 0 <= i < self.vocab_size]
        if beyond:
            raise InputError(f"{prompt.where}: token {beyond[0]} lies outside the target's vocabulary of {self.vocab_size}; these ids are another tokenizer's")
        return ids

    def _the_tokenizer(self) -> Any:
        if self._tokenizer is None:
            import transformers

            try:
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.path, trust_remote_code=self._trust, local_files_only=True)
            except Exception as error:  # missing files, missing libraries: each tokenizer fails in its own way
                reason = " ".join(str(error).split())[:200]
                raise InputError(f"{self.path}: the tokenizer cannot be loaded ({reason}); add its files, or give prompt_token_ids") from None
        return self._tokenizer

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], *, max_new_tokens: int, temperature: float, seed: int, ignore_end: bool = False) -> list[int]:
        """The prompt's continuation: the most likely tokens at temperature 0, else sampled; up to the end token (which is kept) or the limit."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        room = max_new_tokens if self.limit is None else min(max_new_tokens, self.limit - len(prompt))
        found: list[int] = []
        fed, cache = torch.tensor([list(prompt)], device=self.device), None
        try:
            while len(found) < room:
                out = self.model(input_ids=fed, past_key_values=cache, use_cache=True, **self._last_logits)
                cache = out.past_key_values
                logits_V = out.logits[0, -1].float().cpu()
                if temperature == 0:
                    token = int(logits_V.argmax())
                else:
                    token = int(torch.multinomial(torch.softmax(logits_V / temperature, dim=-1), 1, generator=generator))
                found.append(token)
                if token in self.end_ids and not ignore_end:
                    break
                fed = torch.tensor([[token]], device=self.device)
        except torch.OutOfMemoryError:
            raise self._out_of_memory() from None
        return found

    # ---- states --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def states(self, tokens: Sequence[int], layer_inputs: Sequence[int]) -> torch.Tensor:
        """[N, L, H] on the CPU in the compute dtype: the inputs of these layers; ``num_layers`` is the final norm's input."""
        try:
            with self._watch(layer_inputs) as seen:
                self.decoder(input_ids=torch.tensor([list(tokens)], device=self.device), use_cache=False)
        except torch.OutOfMemoryError:
            raise self._out_of_memory() from None
        return torch.stack([seen[i] for i in layer_inputs], dim=1)

    @contextmanager
    def _watch(self, layer_inputs: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        seen: dict[int, torch.Tensor] = {}

        def hook(index: int) -> Any:
            def keep(_: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
                state = inputs[0] if inputs else named["hidden_states"]
                seen[index] = state.detach().reshape(-1, state.shape[-1]).cpu()

            return keep

        modules = [*self.layers, self.norm]
        handles = [modules[i].register_forward_pre_hook(hook(i), with_kwargs=True) for i in layer_inputs]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    @torch.inference_mode()
    def choices(self, tokens: Sequence[int]) -> torch.Tensor:
        """The most likely next token at every position, by the whole model: int64 [N]."""
        logits_NV: torch.Tensor = self.model(input_ids=torch.tensor([list(tokens)], device=self.device), use_cache=False).logits[0]
        return logits_NV.argmax(-1).cpu()
