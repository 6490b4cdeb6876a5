"""What the target hands over: which states, in which order, when, and in what precision."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_diag.catalogue.context import Context
from eagle3_diag.catalogue.explanation import Explanation

_IDS = '"eagle_aux_hidden_state_layer_ids"'


def _mend_layers(context: Context) -> str:
    """How to say the right layers to each engine; SGLang counts outputs of layers for most targets."""
    inputs = list(context.inputs)
    if min(inputs) < 0:
        return f"Write the layers the drafter was trained on into config.json ({_IDS}), and let the server read them."
    return (
        f'Set {_IDS}: {inputs} at the top level of config.json for vLLM, and in "eagle_config" for SGLang '
        f"({[i - 1 for i in inputs]} there where it counts layer outputs); eagle3-diag check says which."
    )


def explanations(context: Context) -> Iterator[Explanation]:
    inputs, layers, num = context.inputs, context.target.config.num_layers, len(context.inputs)
    known = min(inputs) >= 0
    mend, look = _mend_layers(context), "Compare the ids in config.json with what the server logs as captured layers."
    if known:
        # One layer late or early: the two conventions for one number (input or output of a layer).
        yield Explanation(
            id="layers-plus-1", title="Features are captured one layer too late", family="features",
            changes={"aux_layer_inputs": tuple(i + 1 for i in inputs)}, prior=4.0, mend=mend, check=look, incidents=("sglang PR 25454",),
        )  # fmt: skip
        yield Explanation(
            id="layers-minus-1", title="Features are captured one layer too early", family="features",
            changes={"aux_layer_inputs": tuple(i - 1 for i in inputs)}, prior=4.0, mend=mend, check=look,
        )  # fmt: skip
        default = (2, layers // 2, layers - 3)
        if num == 3 and len(set(default)) == 3 and min(default) > 0:
            # The server read no ids and took its own: nested where it looks at the top level, or the other way round.
            yield Explanation(
                id="layers-default", title=f"The server captures its default layers {list(default)} instead of the configured ones", family="features",
                changes={"aux_layer_inputs": default}, prior=4.0, mend=mend, check=look,
                incidents=("vllm PR 50170", "tokenspeed PR 526", "vllm PR 42764"),
            )  # fmt: skip
            early = tuple(i - 1 for i in default)
            yield Explanation(
                id="layers-default-minus-1", title=f"The server captures layers {list(early)}: default ids, counted as inputs", family="features",
                changes={"aux_layer_inputs": early}, prior=0.7, mend=mend, check=look,
            )  # fmt: skip
            late = tuple(i + 1 for i in default)
            yield Explanation(
                id="layers-default-plus-1", title=f"The server captures layers {list(late)}: default ids, counted as outputs", family="features",
                changes={"aux_layer_inputs": late}, prior=1.0, mend=mend, check=look,
            )  # fmt: skip
        for by, prior in ((2, 0.3), (-2, 0.3)):
            yield Explanation(
                id=f"layers-{'plus' if by > 0 else 'minus'}-2", title=f"Features are captured two layers too {'late' if by > 0 else 'early'}", family="features",
                changes={"aux_layer_inputs": tuple(i + by for i in inputs)}, prior=prior, mend=mend, check=look,
            )  # fmt: skip
        yield Explanation(
            id="embedding-as-first-state", title="The embedding is taken for the first aux state", family="features",
            changes={"aux_layer_inputs": (0, *inputs[1:])}, prior=0.5, mend=mend, check=look,
        )  # fmt: skip
    if list(inputs) != sorted(inputs) and known:
        # Every engine captures in depth order, whatever the order of the ids.
        yield Explanation(
            id="aux-order-by-depth", title="Features come in depth order, not in the order of the config", family="features",
            changes={"aux_layer_inputs": tuple(sorted(inputs))}, prior=8.0,
            mend=f"No engine captures in another order than by depth: permute fc's column blocks to {sorted(inputs)} (eagle3-diag convert) or train again.",
            check="Ids in config.json that do not ascend.",
        )  # fmt: skip
    order_mend = "Concatenate the captured states in the order of the configured ids, lowest layer first; look at where the server joins them."
    order_look = "eagle3-diag compare-hidden of a capture with a stored sample names the permutation."
    yield from _orders(num, order_mend, order_look)
    for i, name in enumerate(("first", "middle", "last") if num == 3 else [f"state-{i}" for i in range(num)]):
        if num > 1:
            yield Explanation(
                id=f"aux-{name}-repeated", title=f"The {name} aux state fills every block of fc's input", family="features",
                changes={"aux_order": (i,) * num}, prior=0.4, mend=order_mend, check=order_look,
            )  # fmt: skip
    if context.same_width:
        capture = (
            "Start SGLang with --speculative-algorithm EAGLE3 (not EAGLE), or set eagle_config.use_aux_hidden_state: true; "
            "for vLLM set method: eagle3. Without it fc is skipped without a word."
        )
        yield Explanation(
            id="aux-capture-off", title="Only the target's last state (after its norm) is handed over, and fc is skipped", family="features",
            changes={"features": "final", "fc": "skipped"}, prior=2.5, mend=capture, check="The server's start command and its log of captured layers.",
            incidents=("sglang PR 21272", "sglang PR 32334"),
        )  # fmt: skip
        yield Explanation(
            id="fc-skipped", title="Only the last aux state is handed over, and fc is skipped", family="features",
            changes={"fc": "skipped"}, prior=1.0, mend=capture, check="The server's start command and its log of captured layers.",
        )  # fmt: skip
    yield Explanation(
        id="final-state-only", title="The target's final state (after its norm) stands in for every aux state", family="features",
        changes={"features": "final"}, prior=0.7, mend=mend, check=look, incidents=("sglang PR 32334",),
    )  # fmt: skip
    pair = "Pair token x[t+1] with the features of position t when the drafter's input is made."
    yield Explanation(
        id="features-late", title="Features come one token late", family="features", changes={"feature_shift": 1}, prior=1.5, mend=pair,
        check="eagle3-diag compare-hidden finds a shift in tokens.",
    )  # fmt: skip
    yield Explanation(
        id="features-early", title="Features come one token early", family="features", changes={"feature_shift": -1}, prior=1.0, mend=pair,
        check="eagle3-diag compare-hidden finds a shift in tokens.", served=False,
    )  # fmt: skip
    for to, prior in (("fp8", 0.7), ("int8", 0.4)):
        yield Explanation(
            id=f"features-quantised-{to}", title=f"Features are rounded to {to} on their way", family="features", changes={"features_quantised": to},
            prior=prior, mend="Hand the aux states over in the target's own precision (no quantised transfer or activation quantisation of the capture).",
            check="eagle3-diag compare-hidden says what a state was quantised to.",
        )  # fmt: skip
    yield Explanation(
        id="features-rotated", title="Features are rotated: the target was rotated before it was quantised", family="features",
        changes={"features_rotated": True}, prior=0.5, exact=False,
        mend="Serve the target without rotation (QuaRot, SpinQuant and the like), or fold the inverse rotation into fc's column blocks.",
        check="Norms and singular values of captured states agree with the stored ones while directions do not (eagle3-diag compare-hidden).",
        incidents=("vllm-ascend issue 5974",),
    )  # fmt: skip


def _orders(num: int, mend: str, look: str) -> Iterator[Explanation]:
    ids = list(range(num))
    named: list[tuple[str, str, tuple[int, ...], float]] = []
    if num > 1:
        named.append(("aux-order-reversed", "Aux states come in reverse order", tuple(ids[::-1]), 1.5))
    if num > 2:
        named.append(("aux-order-rotated", "Aux states are rotated by one: the first comes last", (*ids[1:], 0), 1.0))
        named.append(("aux-order-rotated-back", "Aux states are rotated by one: the last comes first", (num - 1, *ids[:-1]), 1.0))
    for i in range(num):
        for j in range(i + 1, num):
            swapped = list(ids)
            swapped[i], swapped[j] = j, i
            named.append((f"aux-order-swapped-{i}-{j}", f"Aux states {i} and {j} are swapped", tuple(swapped), 0.8))
    seen = set()
    for name, title, order, prior in named:
        if order not in seen:
            seen.add(order)
            yield Explanation(id=name, title=title, family="features", changes={"aux_order": order}, prior=prior, mend=mend, check=look)
