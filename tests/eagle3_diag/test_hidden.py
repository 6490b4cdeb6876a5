"""Two dumps compared: everything that can be done to real states is found and named, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_diag import demo
from eagle3_diag.drafter import quantise, rms_norm
from eagle3_diag.hidden import Comparison, Dump, Norm, State, compare, precision_of, token_errors
from eagle3_diag.samples import iter_samples
from eagle3_diag.target import read_target

DEMO = demo.paths()
SAMPLES = list(iter_samples([DEMO.samples]))
TARGET = read_target(DEMO.target)
WEIGHT = TARGET.norm_weight().float()
NORMS = [Norm(name="the target's final norm", weight_H=WEIGHT)]
CALLED = ("layer 2", "layer 4", "layer 6", "final state")

samples = st.integers(0, len(SAMPLES) - 1)


def whole(i: int) -> Dump:
    """Sample i with its seven layer inputs and the final state."""
    sample = SAMPLES[i]
    assert sample.layer_ids is not None
    states = [State(name=f"layer {layer}", x_NH=x, layer=layer) for layer, x in zip(sample.layer_ids, sample.aux_ANH, strict=True)]
    assert sample.final_NH is not None
    return Dump(name="A", states=(*states, State(name="final state", x_NH=sample.final_NH, final=True)), tokens_N=sample.tokens_N)


def taken(a: Dump, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x, held: Sequence[int] = (2, 4, 6, 8), named: bool = True) -> Dump:
    """A dump that is called layers 2, 4, 6 and the final one, and holds what is said, changed."""
    states = []
    for name, index in zip(CALLED, held, strict=True):
        layer = int(name.split()[1]) if name.startswith("layer") and named else None
        states.append(State(name=name, x_NH=change(a.states[index - 1].x_NH.float()), layer=layer, final=name == "final state"))
    return Dump(name="B", states=tuple(states), tokens_N=a.tokens_N)


def codes(found: Comparison) -> list[str]:
    assert (found.verdict == "differs") == bool(found.findings)
    return [finding.code for finding in found.findings]


def detail(found: Comparison, key: str) -> set[object]:
    return {match.detail[key] for match in found.matches}


# ---- the same ----------------------------------------------------------------------------------------------------------


@given(samples)
@settings(max_examples=3)
def test_a_dump_is_identical_to_itself(i: int) -> None:
    found = compare(whole(i), whole(i))
    assert (found.verdict, codes(found)) == ("identical", [])
    assert {m.relation for m in found.matches} == {"identical"}
    assert [m.a for m in found.matches] == [m.b for m in found.matches]


@given(samples, st.sampled_from(["bfloat16", "float16"]), st.booleans())
@settings(max_examples=3)
def test_rounding_is_named_and_is_no_difference(i: int, to: str, other_way: bool) -> None:
    a = whole(i)
    a = replace(a, states=tuple(replace(s, x_NH=s.x_NH.float() * 1.0001) for s in a.states))  # so that float16 is rounding as well
    b = replace(a, states=tuple(replace(s, x_NH=s.x_NH.to(getattr(torch, to))) for s in a.states))
    found = compare(b, a) if other_way else compare(a, b)
    assert (found.verdict, codes(found), found.precision) == ("rounding", [], to)
    assert {(m.relation, m.detail["to"], m.detail["which"]) for m in found.matches} == {("rounded", to, "a" if other_way else "b")}


@given(samples, st.integers(0, 1000))
@settings(max_examples=3)
def test_sums_in_another_order_are_no_difference(i: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = whole(i)
    b = taken(a, lambda x: x + 1e-6 * x.abs().mean() * torch.randn(x.shape, generator=generator))
    found = compare(replace(a, states=tuple(replace(s, x_NH=s.x_NH.float() * 1.0001) for s in a.states)), taken(a, lambda x: x))
    assert codes(found) == []
    found = compare(a, b)
    assert (found.verdict, codes(found)) == ("rounding", [])


def test_what_bfloat16_explains_float32_does_not() -> None:
    a = whole(3)
    a = replace(a, states=tuple(replace(s, x_NH=s.x_NH.float() * 1.0001) for s in a.states))
    noise = torch.randn(a.states[0].x_NH.shape, generator=torch.Generator().manual_seed(1))

    def off(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.01 * noise)

    fine, coarse = compare(a, taken(a, off)), compare(a, taken(a, lambda x: off(x).to(torch.bfloat16)))
    assert (fine.precision, fine.verdict, codes(fine)) == ("float32", "differs", ["drift"])
    assert (coarse.precision, coarse.verdict) == ("bfloat16", "rounding")


# ---- which state is which ----------------------------------------------------------------------------------------------


@given(samples, st.permutations([2, 4, 6]), st.booleans())
@settings(max_examples=8)
def test_an_order_is_read_off(i: int, order: list[int], named: bool) -> None:
    found = compare(whole(i), taken(whole(i), held=(*order, 8), named=named), expected=None if named else (2, 4, 6))
    assert codes(found) == ([] if order == [2, 4, 6] else ["order"])
    assert [m.a for m in found.matches] == [*(f"layer {n}" for n in order), "final state"]
    if order != [2, 4, 6]:
        assert "the same states in another order" in found.findings[0].text


@given(samples, st.sampled_from([-1, 1]), st.booleans())
@settings(max_examples=3)
def test_a_layer_early_or_late(i: int, step: int, named: bool) -> None:
    found = compare(whole(i), taken(whole(i), held=(2 + step, 4 + step, 6 + step, 8), named=named), expected=None if named else (2, 4, 6))
    assert codes(found) == ["layer-off"]
    assert found.findings[0].text.endswith("1 layer late" if step > 0 else "1 layer early")


def test_one_wrong_layer_and_one_repeated() -> None:
    assert codes(compare(whole(2), taken(whole(2), held=(2, 4, 7, 8)))) == ["other-layers"]
    assert codes(compare(whole(2), taken(whole(2), held=(2, 2, 6, 8)))) == ["repeated"]


def test_without_names_and_expectation_the_states_are_only_identified() -> None:
    b = taken(whole(2), held=(7, 3, 1, 8), named=False)
    found = compare(whole(2), replace(b, states=b.states[:3]))
    assert (found.verdict, [m.a for m in found.matches]) == ("identical", ["layer 7", "layer 3", "layer 1"])


# ---- what was done to a state ------------------------------------------------------------------------------------------


@given(samples, st.integers(-5, 5))
@settings(max_examples=5)
def test_shifted_by_tokens(i: int, n: int) -> None:
    found = compare(whole(i), taken(whole(i), lambda x: torch.roll(x, n, dims=0)))
    assert codes(found) == ([] if n == 0 else ["shifted"])
    assert {m.shift for m in found.matches} == {n}
    if n:
        assert f"{abs(n)} token{'s' if abs(n) > 1 else ''} {'late' if n > 0 else 'early'}" in found.findings[0].text


@given(samples, st.sampled_from([0.5, 0.97, 1.02, 2.0, 8.0, -1.0]))
@settings(max_examples=5)
def test_scaled(i: int, by: float) -> None:
    found = compare(whole(i), taken(whole(i), lambda x: by * x), norms=NORMS)
    assert codes(found) == ["scaled"]
    assert all(abs(float(str(n)) - by) < 1e-3 * abs(by) for n in detail(found, "by"))


@given(samples, st.sampled_from(["target", "none", "unknown"]), st.booleans())
@settings(max_examples=5)
def test_normed_by_which_norm(i: int, which: str, other_way: bool) -> None:
    weight_H = {"target": WEIGHT, "none": torch.ones(128), "unknown": WEIGHT.flip(0) + 0.3}[which]
    a, b = whole(i), taken(whole(i), lambda x: rms_norm(x, weight_H, 1e-6))
    found = compare(b, taken(a), norms=NORMS) if other_way else compare(a, b, norms=NORMS)
    assert codes(found) == ["un-normed" if other_way else "normed"]
    assert detail(found, "by") == {{"target": "the target's final norm", "none": "no weight", "unknown": "a weight that is not known"}[which]}


def test_a_final_state_that_its_format_calls_normed_is_no_finding() -> None:
    """SpecForge's final state against a recorded one: a norm apart, as both say."""
    a = whole(4)
    final = replace(a.states[-1], x_NH=rms_norm(a.states[-1].x_NH.float(), WEIGHT, 1e-5), normed=True)
    b = replace(a, states=(*a.states[:-1], final))
    assert codes(compare(a, b, norms=NORMS)) == []
    assert codes(compare(b, a, norms=NORMS)) == []
    assert codes(compare(a, replace(a, states=(*a.states[:-1], replace(a.states[-1], normed=True))), norms=NORMS)) == ["said-normed"]


@given(samples)
@settings(max_examples=3)
def test_channels_scaled_each_by_its_own(i: int) -> None:
    found = compare(whole(i), taken(whole(i), lambda x: x * torch.linspace(0.2, 3, 128)), norms=NORMS)
    assert codes(found) == ["channel-scaled"]


def _e4m3(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


@given(
    samples,
    st.sampled_from(["fp8 tensor", "fp8 token", "fp8 none", "int8 token", "int8 channel", "int4 token", "int4 group"]),
    st.booleans(),
)
@settings(max_examples=8)
def test_quantised_to_what(i: int, how: str, stored_in_bfloat16: bool) -> None:
    to, per = how.split()

    def change(x: torch.Tensor) -> torch.Tensor:
        if to == "fp8":
            amax = {"tensor": x.abs().max(), "token": x.abs().amax(-1, keepdim=True), "none": torch.tensor(448.0)}[per]
            y = _e4m3(x, amax / 448.0)
        elif per == "channel":
            y = quantise(x.T.contiguous(), to).T
        else:
            y = quantise(x, to)
        return y.to(torch.bfloat16).float() if stored_in_bfloat16 else y

    found = compare(whole(i), taken(whole(i), change))
    assert codes(found) == ["quantised"]
    assert detail(found, "to") == {to}
    if to != "int4":  # the demo is 128 wide: one group is a whole token
        assert detail(found, "per") == {per}


@given(samples, st.sampled_from([2, 4, 8]), st.integers(1, 7))
@settings(max_examples=5)
def test_shards_in_another_order(i: int, parts: int, turn: int) -> None:
    order = [(p + turn) % parts for p in range(parts)]
    found = compare(whole(i), taken(whole(i), lambda x: torch.cat([x.chunk(parts, 1)[p] for p in order], 1)))
    assert codes(found) == ([] if turn % parts == 0 else ["shards-swapped"])
    if turn % parts:
        m = found.matches[0]
        again = torch.cat([whole(i).states[1].x_NH.chunk(int(m.detail["parts"]), 1)[p] for p in m.detail["order"]], 1)
        assert torch.equal(again, torch.cat([whole(i).states[1].x_NH.chunk(parts, 1)[p] for p in order], 1))


def test_one_rank_twice_is_shards_as_well() -> None:
    found = compare(whole(1), taken(whole(1), lambda x: torch.cat([x.chunk(2, 1)[0]] * 2, 1)))
    assert codes(found) == ["shards-swapped"]
    assert found.matches[0].detail["order"] == [0, 0]


@given(samples, st.integers(0, 100), st.integers(-2, 2))
@settings(max_examples=3)
def test_rotated(i: int, seed: int, shift: int) -> None:
    turn_HH = torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(seed)))[0]
    found = compare(whole(i), taken(whole(i), lambda x: torch.roll(x @ turn_HH, shift, 0)))
    assert codes(found) == (["rotated"] if shift == 0 else ["shifted", "rotated"])
    assert [m.a for m in found.matches] == list(CALLED)


@given(samples, st.integers(2, 3), st.integers(0, 100))
@settings(max_examples=3)
def test_parts_that_nobody_summed(i: int, ranks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = whole(i).states[3].x_NH.float()
    parts = [x.std() * torch.randn(x.shape, generator=generator) for _ in range(ranks - 1)]
    parts.append(x - torch.stack(parts).sum(0))
    b = Dump(name="B", states=tuple(State(name=f"rank {r}", x_NH=part) for r, part in enumerate(parts)), tokens_N=whole(i).tokens_N)
    found = compare(whole(i), b)
    assert codes(found) == ["unsummed"]
    assert {m.a for m in found.matches} == {"layer 4"}


def test_the_residual_stream_left_out_or_added_twice() -> None:
    x, y = whole(6).states[4].x_NH.float(), whole(6).states[3].x_NH.float()
    b = Dump(name="B", states=(State(name="s0", x_NH=x - y), State(name="s1", x_NH=x + y)))
    found = compare(whole(6), b)
    assert codes(found) == ["without-residual", "sum-of-states"]
    assert (found.matches[0].a, found.matches[0].detail["other"]) == ("layer 5", "layer 4")


@given(samples, st.integers(2, 60))
@settings(max_examples=3)
def test_the_first_token_that_differs(i: int, token: int) -> None:
    found = compare(whole(i), taken(whole(i), lambda x: torch.cat([x[:token], x[token:].flip(0) * 3 + 1])))
    assert codes(found) == ["diverges"]
    assert {m.first for m in found.matches} == {token}
    assert f"up to token {token}, where layer 2 differs first" in found.findings[0].text


def test_a_single_token_that_differs() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[31] *= 1.2
        return x

    found = compare(whole(0), taken(whole(0), change))
    assert codes(found) == ["diverges"]
    assert {(m.first, m.detail["tokens"]) for m in found.matches} == {(31, 1)}


def test_the_layer_at_which_it_begins() -> None:
    a = whole(0)
    b = replace(a, states=tuple(replace(s, x_NH=torch.cat([s.x_NH[:20], -s.x_NH[20:]])) if k >= 4 else s for k, s in enumerate(a.states)))
    found = compare(a, b)
    assert codes(found) == ["diverges"]
    assert found.findings[0].states == ("layer 5", "layer 6", "layer 7", "final state")


@given(samples, st.integers(0, 100))
@settings(max_examples=3)
def test_what_nothing_explains_gets_no_name(i: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert codes(compare(whole(i), taken(whole(i), lambda x: torch.randn(x.shape, generator=generator)), norms=NORMS)) == ["unexplained"]


def test_a_few_per_cent_everywhere_is_drift() -> None:
    generator = torch.Generator().manual_seed(3)
    found = compare(whole(0), taken(whole(0), lambda x: x + 0.07 * x.std() * torch.randn(x.shape, generator=generator)))
    assert codes(found) == ["drift"]
    assert "more than rounding" in found.findings[0].text


# ---- several at once, tokens, sizes ------------------------------------------------------------------------------------


@given(samples, st.permutations([2, 4, 6]).filter(lambda p: p != [2, 4, 6]), st.sampled_from([-1, 1]), st.sampled_from(["scaled", "normed", "quantised"]))
@settings(max_examples=5)
def test_faults_add_up(i: int, order: list[int], shift: int, more: str) -> None:
    change = {"scaled": lambda x: 2 * x, "normed": lambda x: rms_norm(x, WEIGHT, 1e-6), "quantised": lambda x: _e4m3(x, x.abs().max() / 448)}[more]
    found = compare(whole(i), taken(whole(i), lambda x: change(torch.roll(x, shift, 0)), held=(*order, 8)), norms=NORMS)
    assert sorted(codes(found)) == sorted(["order", "shifted", more])


def test_tokens_that_differ_are_said_first() -> None:
    a = whole(0)
    assert a.tokens_N is not None
    b = taken(a)
    other = a.tokens_N.clone()
    other[30] += 1
    found = compare(a, replace(b, tokens_N=other))
    assert (codes(found), found.tokens) == (["tokens-differ"], 30)
    more = replace(b, tokens_N=torch.cat([torch.tensor([1]), a.tokens_N]), states=tuple(replace(s, x_NH=torch.cat([s.x_NH[:1], s.x_NH])) for s in b.states))
    found = compare(a, more)
    assert codes(found) == ["tokens-shifted"]
    assert found.findings[0].text.startswith("B has 1 token more in front than A")
    other[0] += 1
    found = compare(a, replace(b, tokens_N=other))
    assert (codes(found), found.tokens, found.matches) == (["tokens-differ"], 0, ())


def test_a_shorter_dump_is_compared_as_far_as_it_goes() -> None:
    b = taken(whole(0))
    assert b.tokens_N is not None
    found = compare(whole(0), replace(b, tokens_N=b.tokens_N[:17], states=tuple(replace(s, x_NH=s.x_NH[:17]) for s in b.states)))
    assert (found.verdict, found.tokens) == ("identical", 17)


def test_infinite_and_missing_values_are_a_difference() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[12, 3] = torch.inf
        return x

    found = compare(whole(0), taken(whole(0), change))
    assert codes(found) == ["diverges"]
    assert {m.first for m in found.matches} == {12}


def test_huge_channels_hide_nothing() -> None:
    """One channel a thousand times the others: cosine reads 0.9999, the relative error does not."""
    a = whole(0)
    big = replace(a, states=tuple(replace(s, x_NH=torch.cat([1000 * s.x_NH.float()[:, :1].abs() + 1000, s.x_NH.float()[:, 1:]], 1)) for s in a.states))
    b = taken(big, held=(3, 5, 7, 8))
    x, y = big.states[1].x_NH, b.states[0].x_NH
    assert float(torch.nn.functional.cosine_similarity(x, y).median()) > 0.9999
    assert codes(compare(big, b)) == ["layer-off"]


def test_errors_and_precision() -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    assert token_errors(x, x).tolist() == [0.0] * 5
    assert torch.allclose(token_errors(x, 1.1 * x), torch.full((5,), 0.1), atol=1e-5)
    assert [precision_of(x), precision_of(x.half()), precision_of(x.bfloat16().float()), precision_of(x.half().float())] == ["float32", "float16", "bfloat16", "float16"]
