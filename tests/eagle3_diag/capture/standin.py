"""A server that drafts with the demo's drafter under any wiring, and calls it as vLLM and SGLang call theirs (batch of one, rejected rows left stale)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from eagle3_diag import demo
from eagle3_diag.catalogue import Catalogue, catalogue
from eagle3_diag.checkpoint import read_drafter
from eagle3_diag.drafter import Drafter, Drafts, Prefix, Weights
from eagle3_diag.samples import Sample, iter_samples
from eagle3_diag.target import read_target

DEMO = demo.paths()
CHECKPOINT, TARGET = read_drafter(DEMO.drafter), read_target(DEMO.target)
LISTED: Catalogue = catalogue(CHECKPOINT, TARGET, tuple(range(1, 8)))
DRAFTER = Drafter(Weights(CHECKPOINT, TARGET, torch.device("cpu"), torch.float32), LISTED.right)
SAMPLES: list[Sample] = list(iter_samples([DEMO.samples], max_samples=3))
STEPS = 4


class Fc(nn.Module):
    """The drafter's projection as a module of its own."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, features_RF: torch.Tensor) -> torch.Tensor:
        return self.drafter.project(list(features_RF.split(128, dim=1)))


class Layers(nn.Module):
    """``model``: fc, the layer and the norm, with the keys of one request."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.layers = drafter.rewired(fc="skipped", aux_order=None, feature_shift=0, token_shift=1, feedback="pre-norm", fc_on_feedback=False)
        self.fc = Fc(drafter)
        self.start()

    def start(self) -> None:
        self.inputs_TH = torch.zeros(0, 128)
        self.tokens_T = torch.zeros(0, dtype=torch.int64)
        self.prefix: Prefix | None = None
        self.drafts: Drafts | None = None
        self.prompt = 0

    def extend(self, tokens_R: torch.Tensor, inputs_RH: torch.Tensor, valid: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed, fed back) of every row; only the first ``valid`` are kept."""
        before = int(self.tokens_T.shape[0])
        self.prompt = self.prompt or valid
        self.tokens_T, self.inputs_TH = torch.cat([self.tokens_T, tokens_R[:valid]]), torch.cat([self.inputs_TH, inputs_RH[:valid]])
        tokens_N = torch.cat([torch.zeros(1, dtype=torch.int64), self.tokens_T])
        self.prefix, drafts = self.layers.begin(tokens_N, [self.inputs_TH], torch.arange(before, before + valid), self.prompt)
        assert drafts is not None
        last = torch.arange(valid) == valid - 1
        self.drafts = drafts.keep(last)
        normed_RH, fed_RH = torch.full((2, tokens_R.shape[0], 128), 7.0)  # stale rows hold anything
        normed_RH[:valid] = self.drafter.normed(drafts.state_RH)
        fed_RH[:valid] = self.drafter.feed_back(drafts.state_RH, inputs_RH[:valid])
        return normed_RH, fed_RH

    def decode(self, token_R: torch.Tensor, state_RH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One further draft step from the state given."""
        assert self.prefix is not None
        assert self.drafts is not None
        self.drafts = self.layers.next(self.prefix, Drafts(self.drafts.rows_R, self.drafts.step, state_RH, self.drafts.own), token_R)
        return self.drafter.normed(self.drafts.state_RH), self.drafter.feed_back(self.drafts.state_RH, self.prefix.input_TH[self.drafts.rows_R])

    def token(self, normed_H: torch.Tensor) -> int:
        return int(self.drafter.draft_ids((normed_H @ self.drafter.head_VH.float().T).argmax()[None]))


def visits(sample: Sample, draft: Callable[[int, int, int], list[int]]) -> int:
    """Walk over a sample as a server decodes it: ``draft(first row, rows, valid)`` gives the drafts. Returns how many drafts were made."""
    tokens = sample.tokens_N.tolist()
    prompt = int((~sample.mask_N).sum())
    first, rows, valid, calls = 0, prompt, prompt, 0
    while first + valid + STEPS + 2 < len(tokens):
        drafts = draft(first, rows, valid)
        calls += 1
        row = first + valid - 1
        run = next((k for k, d in enumerate(drafts) if d != tokens[row + 2 + k]), len(drafts))
        first, rows, valid = row + 1, STEPS + 1, run + 1
    return calls


def features_of(sample: Sample, layers: tuple[int, ...]) -> torch.Tensor:
    """What a target would hand on: the inputs of these layers joined."""
    return torch.cat([sample.aux_ANH[i - 1].float() for i in layers], dim=1)


class VllmModel(Layers):
    """Called as vLLM calls its draft model."""

    valid = 0

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor, inputs_embeds: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        if self.valid:
            return self.extend(input_ids.long(), hidden_states, self.valid)
        return self.decode(input_ids.long(), hidden_states)


class VllmDrafter:
    """``runner.drafter``; buffers are used again from call to call, as vLLM's are."""

    def __init__(self, drafter: Drafter) -> None:
        self.model = VllmModel(drafter)
        self.hidden_states, self.positions, self.input_ids = torch.zeros(256, 128), torch.zeros(256, dtype=torch.int64), torch.zeros(256, dtype=torch.int32)

    def propose(
        self, num_speculative_tokens: int, target_token_ids: torch.Tensor, target_positions: torch.Tensor, target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor, token_indices_to_sample: torch.Tensor | None, common_attn_metadata: Any, sampling_metadata: Any,
    ) -> torch.Tensor:  # fmt: skip
        model, wiring = self.model, self.model.drafter.wiring
        n, last = target_token_ids.shape[0], int(token_indices_to_sample[0]) if token_indices_to_sample is not None else target_token_ids.shape[0] - 1
        self.hidden_states[:n] = model.fc(target_hidden_states)
        self.input_ids[: n - 1] = target_token_ids[1:]
        self.input_ids[last] = next_token_ids[0]
        self.positions[:n] = target_positions
        model.valid = last + 1
        normed, fed = model(input_ids=self.input_ids[:n], positions=self.positions[:n], hidden_states=self.hidden_states[:n])
        normed, fed, position = normed[last : last + 1], fed[last : last + 1], int(self.positions[last])
        model.valid, tokens = 0, [model.token(normed[0])]
        for _ in range(num_speculative_tokens - 1):
            position += wiring.position_step
            self.input_ids[0], self.positions[0], self.hidden_states[:1] = tokens[-1], position, fed
            normed, fed = model(input_ids=self.input_ids[:1], positions=self.positions[:1], hidden_states=self.hidden_states[:1], inputs_embeds=None)
            tokens.append(model.token(normed[0]))
        return torch.tensor([tokens])


class Vllm:
    """A worker with a runner whose drafter is wired as told; captured layers may be others than the drafter's."""

    def __init__(self, drafter: Drafter, layers: tuple[int, ...] = (2, 4, 6)) -> None:
        self.layers = layers
        self.drafter = VllmDrafter(drafter)
        self.runner = SimpleNamespace(
            drafter=self.drafter, input_batch=SimpleNamespace(req_ids=[]), model=SimpleNamespace(model=SimpleNamespace(aux_hidden_state_layers=layers))
        )

    def serve(self, name: str, sample: Sample) -> list[list[int]]:
        """The drafts of one request."""
        self.runner.input_batch.req_ids = [name]
        self.drafter.model.start()
        features_NF, out = features_of(sample, self.layers), []

        def draft(first: int, rows: int, valid: int) -> list[int]:
            at = slice(first, first + rows)
            tokens = sample.tokens_N[at].clone()
            tokens[valid:] = 3  # rejected drafts
            drafts = self.drafter.propose(
                STEPS, tokens, torch.arange(first, first + rows), features_NF[at], sample.tokens_N[first + valid : first + valid + 1],
                token_indices_to_sample=torch.tensor([valid - 1]), common_attn_metadata=SimpleNamespace(query_start_loc=torch.tensor([0, rows])), sampling_metadata=None,
            )  # fmt: skip
            out.append(drafts[0].tolist())
            return out[-1]

        visits(sample, draft)
        return out


class SglangModel(Layers):
    """Called as SGLang calls its draft model."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, input_embeds: Any = None, pp_proxy_tensors: Any = None) -> Any:
        states = forward_batch.spec_info.hidden_states
        if states.shape[-1] != 128:
            states = self.fc(states)
        if forward_batch.forward_mode.is_decode():
            normed, fed = self.decode(input_ids, states)
        else:
            normed, fed = self.extend(input_ids, states, forward_batch.valid)
        return normed, [fed]


class SglangRoot(nn.Module):
    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.model = SglangModel(drafter)


class SglangTarget(nn.Module):
    """The target, on which SGLang registers the same hook."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Identity()


class Sglang:
    """A draft worker; ``padded``: rows of rejected drafts are computed as well (the overlapping scheduler's way); ``ids``: batches name their requests."""

    def __init__(self, drafter: Drafter, layers: tuple[int, ...] = (2, 4, 6), *, padded: bool = True, ids: bool = True, chunk: int | None = None) -> None:
        self.root, self.target, self.layers = SglangRoot(drafter), SglangTarget(), layers
        self.padded, self.ids, self.chunk = padded, ids, chunk

    def _batch(self, name: str, decode: bool, states: torch.Tensor, rows: int, valid: int) -> SimpleNamespace:
        return SimpleNamespace(
            rids=[name] if self.ids else None, req_pool_indices=torch.tensor([5]), forward_mode=SimpleNamespace(is_decode=lambda: decode),
            extend_seq_lens=None if decode else torch.tensor([rows]), spec_info=SimpleNamespace(hidden_states=states), valid=valid,
        )  # fmt: skip

    def serve(self, name: str, sample: Sample) -> list[list[int]]:
        model, wiring = self.root.model, self.root.model.drafter.wiring
        model.start()
        features_NF, out = features_of(sample, self.layers), []

        def draft(first: int, rows: int, valid: int) -> list[int]:
            self.target.model(sample.tokens_N)
            rows = rows if self.padded or first == 0 else valid
            size = self.chunk if first == 0 and self.chunk else rows
            for start in range(first, first + rows, size):
                stop = min(start + size, first + rows)
                good = min(valid, stop - first) - (start - first)
                tokens = sample.tokens_N[start + 1 : stop + 1].clone()
                tokens[good:] = 3
                positions = torch.arange(start, stop)
                normed, (fed,) = model(tokens, positions, self._batch(name, False, features_NF[start:stop], stop - start, good), None, pp_proxy_tensors=None)
            model.prompt = max(model.prompt, valid) if first == 0 else model.prompt
            normed, fed, position = normed[good - 1 : good], fed[good - 1 : good], int(positions[good - 1])
            drafts = [model.token(normed[0])]
            for _ in range(STEPS - 1):
                position += wiring.position_step
                normed, (fed,) = model(torch.tensor(drafts[-1:]), torch.tensor([position]), self._batch(name, True, fed, 1, 1), None, pp_proxy_tensors=None)
                drafts.append(model.token(normed[0]))
            out.append(drafts)
            return drafts

        visits(sample, draft)
        return out
