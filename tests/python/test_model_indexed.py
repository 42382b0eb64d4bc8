# SPDX-License-Identifier: Apache-2.0
"""Models whose layers attend to keys that an indexer chooses, under plans, beside one process with
transformers' own code, in float64.
"""

import itertools
from unittest import mock

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")

import model_zoo as zoo
from magi_attention import Plan, masks
from magi_attention.integrations import _model_indexed as indexed
from magi_attention.integrations import _model_latents as latents
from magi_attention.integrations import transformers as ours
from ranks import over

MODELS = ("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2")
WAYS = ("expanded", "latent")  # in which keys and values of a layer travel
RELEASED = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
RELEASED |= dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 128)
ALLOWED = 0.05  # of bfloat16, relative to the norms
TOLERANCE = 1e-6  # norms of models compute in float32, whatever the model is of


def worst_error(group, model_type, documents, **options) -> float:
    """Of logits, loss and gradients. The models' own choice among equal scores is the first too, so
    that a model of few index heads, which give many keys the score 0, is compared as well.
    """
    lengths = mock.patch.multiple(zoo, DOCUMENTS=documents, TOKENS=sum(documents) - len(documents))
    with lengths, mock.patch.dict(zoo._SIZES, options):
        model = zoo.make(model_type)
        with indexed._FirstOfEqual():
            wanted, gradients = zoo._alone(model)
        logits, found, loss = zoo._under_a_plan(model, group)
        errors = [zoo.error_of(logits, wanted), zoo.error_of(loss, zoo.loss_of_tokens(wanted))]
        return max(errors + [zoo.error_of(found[name], g) for name, g in gradients.items()])


def error_in_bfloat16(group, model_type, **sizes) -> float:
    """The worst of gradients of attention's weights where all keys are chosen."""
    with mock.patch.dict(zoo._SIZES, index_topk=sum(zoo.DOCUMENTS), **sizes):
        model = zoo.make(model_type)
        wanted = {name: x for name, x in zoo._alone(model)[1].items() if "self_attn" in name}
        found = zoo._under_a_plan(model.bfloat16(), group)[1]
    return max(((found[name] - x).norm() / x.norm()).item() for name, x in wanted.items())


def worst_errors(group, models=MODELS) -> dict[str, float]:
    """Strips of a few rows, rows of padding, and lists that are longer than what a query sees, by
    keys and values and by latents.
    """
    ours.register()
    given, found = {"index_n_heads": 2, "index_topk": 4}, dict.fromkeys(models, 0.0)
    for name, way in itertools.product(models, WAYS):
        with mock.patch.object(indexed, "_STRIP_SCORES", 300), zoo.by(way):
            found[name] = max(found[name], worst_error(group, name, (13, 18), **given))
    return found


@over(1, 2, 4)
def test_over_ranks(group):
    models = MODELS if group.size() == 4 else MODELS[group.size() :: 2]
    for model_type, error in worst_errors(group, models).items():
        assert error < TOLERANCE, f"{model_type}: {error}"


@over(1, 2)
def test_dims_that_kernels_do_not_take(group):
    """Of a GPU, where torch attends to the chosen keys: with sinks, and in strips of a few rows."""
    ours.register()
    small = mock.patch.object(indexed, "_STRIP_SCORES", 300)
    with small, mock.patch.object(indexed, "takes_lists", lambda *_: False):
        assert worst_error(group, "hy_v4", (13, 18), index_topk=4) < TOLERANCE


@over(1, 2)
def test_released_dims(group):
    """In bfloat16, where kernels take lists of latents alone, whatever the plan finds faster."""
    ours.register()
    taken = mock.patch.object(latents, "takes_lists", lambda bound, x, dims: dims == (576, 512))
    with taken, zoo.by("expanded", takes_latents=True):
        assert error_in_bfloat16(group, "deepseek_v32", **RELEASED) < ALLOWED


def test_lists_that_a_gpu_takes(monkeypatch):
    sizes, types = ((576, 512), (96, 96), (192, 128)), (torch.bfloat16, torch.half, torch.float)
    taken = [(9, None, *kind) for kind in itertools.product(types[:2], sizes[:2])]
    taken.remove((9, None, torch.half, (576, 512)))
    for case in itertools.product((8, 9), (None, "fa3"), types, sizes):
        major, backend, dtype, dims = case
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, major=major: (major, 0))
        bound, x = mock.Mock(), mock.Mock(is_cuda=True, dtype=dtype, itemsize=dtype.itemsize)
        bound.attention.local_shape.backend = backend
        assert indexed.takes_lists(bound, x, dims) == (case in taken), case


def test_layers_that_are_no_mere_projections():
    """One with a hook, and one of a class that adds to the projection, keep keys and values."""
    ours.register()
    make = zoo.make

    def changed(model_type):
        model = make(model_type)
        hooked, derived = (layer.self_attn for layer in model.model.layers)
        hooked.kv_b_proj.register_forward_hook(lambda module, given, out: 2 * out)
        kind = type(derived)
        latents.route_latents(kind)
        twice = {"expand_kv": lambda self, *given: [2 * x for x in kind.expand_kv(self, *given)]}
        derived.__class__ = type(kind.__name__, (kind,), twice)
        return model

    with mock.patch.object(zoo, "make", changed), zoo.by("latent", takes_latents=False):
        assert worst_error(None, "deepseek_v32", (13, 19)) < TOLERANCE


def test_sinks_of_layers_that_attend_to_all_latents():
    """Without a choice, as models that have no indexer."""
    ours.register()
    own = ours.attend_to_latents
    to_all = mock.Mock(side_effect=lambda *given: own(*given[:3], None, given[4]))
    with mock.patch.object(ours, "attend_to_latents", to_all), zoo.by("latent"):
        assert worst_error(None, "hy_v4", (13, 19), index_topk=19) < TOLERANCE


@pytest.mark.parametrize("way", WAYS)
def test_shared_choices(way):
    """Layers without an indexer attend to what the layer before them has chosen."""
    ours.register()
    config = {"indexer_types": ["full", "shared"]}
    with mock.patch.dict(zoo._SPECIAL, glm_moe_dsa=config), zoo.by(way):
        assert worst_error(None, "glm_moe_dsa", (13, 19)) < TOLERANCE


@pytest.mark.parametrize("way", WAYS)
def test_recomputed_layers(way):
    ours.register()
    model = zoo.make("deepseek_v32")
    model.train()
    with zoo.by(way):
        plain = zoo._under_a_plan(model, None)[1]
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        again = zoo._under_a_plan(model, None)[1]
    assert all(torch.equal(again[name], gradient) for name, gradient in plain.items())


def test_padding_beside_a_plan_is_refused():
    ours.register()
    model = zoo.make("deepseek_v32")
    model.set_attn_implementation("magi")
    mask = masks.from_cu_seqlens([0, 13, 32])
    plan = Plan.from_mask(mask, cp_size=1, num_heads_q=4, num_heads_kv=4, head_dim=16).bind()
    ids, positions = zoo.batch()
    hidden = torch.ones_like(ids)
    hidden[0, :3] = 0
    with pytest.raises(ValueError, match="attention_mask, which hides 3 rows, is not in magi_plan"):
        model(**ours.shard(plan, ids, None, positions, model), attention_mask=hidden)
    batch = ids.view(2, 16)
    with pytest.raises(ValueError, match="the batch is 2 sequences; allowed: 1 with magi_plan"):
        model(input_ids=batch, position_ids=positions.view(2, 16), use_cache=False, magi_plan=plan)


def test_generation_without_a_plan():
    """Steps with a cache choose as "sdpa" does."""
    ours.register()
    ids = zoo.batch()[0]
    found = []
    for implementation in ("sdpa", "magi"):
        model = zoo.make("deepseek_v32")
        model.set_attn_implementation(implementation)
        found.append(model.generate(input_ids=ids, max_new_tokens=4, do_sample=False))
    assert torch.equal(*found)
