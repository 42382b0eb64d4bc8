# SPDX-License-Identifier: Apache-2.0
"""The table of mistakes in the arguments of attention, as calls of functions, operators and plans:
each is named, and told in the sentence of the C ABI where torch has the same words for it.
"""

import re
from pathlib import Path

import pytest
import torch

from magi_attention import Plan, masks
from magi_attention.functional import flex_flash_attn_func
from magi_attention.functional._operators import flex_backward_op, flex_forward_op

TABLE = Path(__file__).parent.parent / "data" / "attention_mistakes.tsv"
ROWS = 40
RESULTS = ("dout", "dlse", "out", "lse")
TENSORS = {"q": (ROWS, 4, 8), "k": (ROWS, 2, 8), "v": (ROWS, 2, 8), "sink": (3, 4)}
TENSORS |= {"dout": (ROWS, 4, 8), "dlse": (ROWS, 4), "out": (ROWS, 4, 8), "lse": (ROWS, 4)}
NUMBERS = {"softmax_scale": 0.7, "softcap": 3.0, "sink_layout": 0}
RANGES = torch.tensor([[0, ROWS]], dtype=torch.int32)
BOUND = Plan.from_mask(
    masks.from_cu_seqlens([0, ROWS]), cp_size=1, num_heads_q=4,
    num_heads_kv=2, head_dim=8,
).bind()  # fmt: skip


def mistakes():
    """(pass, changes, sentence) of what tensors of torch can have."""
    for line in TABLE.read_text().splitlines():
        if line[0] != "#":
            kind, changes, sentence, *_ = line.split("\t")
            names = {re.match(r"\w+", change)[0] for change in changes.split()}
            if names <= {*TENSORS, *NUMBERS} and ".data=" not in changes:
                yield kind, changes, sentence


def made(name, changes):
    """The argument of this name with the changes that are its own."""
    if name in NUMBERS:
        own = [change.split("=")[1] for change in changes if change.startswith(name + "=")]
        return type(NUMBERS[name])(float(own[0])) if own else NUMBERS[name]
    shape, dtype, device, strides = list(TENSORS[name]), torch.float32, "cpu", {}
    for change in changes:
        field, value = re.match(rf"{name}\.(.*)=(.*)", change).groups()
        if field == "dtype":
            dtype = getattr(torch, value)
        elif field == "device":
            device = "meta"
        elif field == "rank":
            shape = shape[: int(value)]
        else:
            axis = int(field[-2])
            (shape if field.startswith("shape") else strides)[axis] = int(value)
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    step = [strides.get(axis, step) for axis, step in enumerate(tensor.stride())]
    return tensor.as_strided(shape, step)


def arguments(changes):
    changes = changes.split()
    return {
        name: made(name, [c for c in changes if re.match(rf"{name}\b", c)])
        for name in (*TENSORS, *NUMBERS)
    }


def call_function(given):
    for name in RESULTS:
        del given[name]
    layout = ("sh", "ssh")[given.pop("sink_layout")]
    flex_flash_attn_func(**given, q_ranges=RANGES, k_ranges=RANGES, sink_layout=layout)


def call_plan(given):
    layout = ("sh", "ssh")[given.pop("sink_layout")]
    tensors = [given.pop(name) for name in "qkv"]
    for name in RESULTS:
        del given[name]
    BOUND.calc_attn(*tensors, **given, sink_layout=layout)


def operator_arguments(given):
    given["scale"] = given.pop("softmax_scale")
    return {**given, "q_ranges": RANGES, "k_ranges": RANGES, "types": None, "sm_margin": 0}


def call_forward(given):
    given = operator_arguments(given)
    for name in RESULTS:
        del given[name]
    flex_forward_op(**given, with_max_logits=False)


def call_backward(given):
    flex_backward_op(**operator_arguments(given), deterministic=True)


def is_same_sentence(changes):
    """Whether torch has no words of its own: it has for devices, and rows are those of ranges."""
    return "device" not in changes and re.match(
        r"([kv]|q(?!\.shape\[0\]|\.rank)|out|lse|dout|dlse)\.", changes
    )


@pytest.mark.parametrize("call", [call_function, call_plan, call_forward, call_backward])
def test_are_named(call):
    call(arguments(""))
    takes_results = call is call_backward
    is_operator = call in (call_forward, call_backward)
    count = 0
    for kind, changes, sentence in mistakes():
        is_of_results = changes.startswith(RESULTS)
        # Functions convert sinks; operators copy results with gaps, and are fakes for "meta".
        taken = r".*device|dout.stride" if is_operator else r"sink.dtype=float16"
        if kind == "forward" or (is_of_results and not takes_results) or re.match(taken, changes):
            continue
        count += 1
        with pytest.raises((ValueError, TypeError, RuntimeError)) as raised:
            call(arguments(changes))
        told = str(raised.value).split("; try: ")[0]
        told = told.replace("torch.", "").replace(", that of q", "")
        if is_same_sentence(changes) and call is not call_plan:
            assert told == sentence, changes
        elif changes != "q.shape[0]=39":
            named = tuple(re.match(r"\w+", text)[0] for text in (sentence, changes))
            assert told.startswith(named), f"{changes}: {told}"
    assert count > 25
