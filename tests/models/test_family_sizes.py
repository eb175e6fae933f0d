"""Tests published sizes, the axes of arrays, and meshes that split the axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from tiny_families import param_shapes

from bert_jax import models
from bert_jax.devices import sharding
from bert_jax.models import electra, task_heads

IDS = jax.ShapeDtypeStruct((1, 4), jnp.int32)
BATCH_SHAPES = {
  "input_ids": IDS,
  "mlm_positions": jax.ShapeDtypeStruct((1, 2), jnp.int32),
  "cls_positions": jax.ShapeDtypeStruct((1, 1), jnp.int32),
}
# Each entry has a family, a variant, what is counted, the published number of
# parameters in millions, and the tolerance. The tolerance is half a unit of the
# last published digit, or as the comment says.
PUBLISHED_COUNTS = [
  # Turc et al. 2019, Table 1, and their model cards, which count both heads.
  ("bert", "tiny", "heads", 4.4, 0.05),
  ("bert", "mini", "heads", 11.3, 0.05),
  ("bert", "small", "heads", 29.1, 0.05),
  ("bert", "medium", "heads", 41.7, 0.05),
  # Devlin et al. 2019, section 3. The paper rounds up the 336.2M of large.
  ("bert", "base", "heads", 110.0, 0.5),
  ("bert", "large", "heads", 340.0, 5.0),
  # Lan et al. 2020, Table 2. Their vocabulary of 30,000 pieces is smaller, so
  # their model has 1.1M fewer parameters.
  ("bert", "xlarge", "encoder", 1270.0, 5.0),
  # fairseq README, which counts the masked-LM head.
  ("roberta", "base", "heads", 125.0, 0.5),
  ("roberta", "large", "heads", 355.0, 0.5),
  # Lan et al. 2020; the README says 59M for xlarge, the paper 60M.
  ("albert", "base_v1", "pooler", 12.0, 0.5),
  ("albert", "large_v1", "pooler", 18.0, 0.5),
  ("albert", "xlarge_v1", "pooler", 59.0, 0.5),
  ("albert", "xxlarge_v1", "pooler", 222.6, 0.05),
  ("albert", "base_v2", "pooler", 12.0, 0.5),
  ("albert", "large_v2", "pooler", 18.0, 0.5),
  ("albert", "xlarge_v2", "pooler", 59.0, 0.5),
  ("albert", "xxlarge_v2", "pooler", 222.6, 0.05),
  # google-research/electra README. The discriminators have 13.5M, 108.9M and
  # 334.1M. The README rounds small and large up, and says that base is as large
  # as BERT.
  ("electra", "small", "encoder", 14.0, 0.6),
  ("electra", "base", "encoder", 110.0, 1.2),
  ("electra", "large", "encoder", 335.0, 1.0),
  # Sanh et al. 2019, Table 3.
  ("distilbert", "base", "encoder", 66.0, 0.5),
  # Jiao et al. 2020, Table 1; the smaller model has 14.35M.
  ("tinybert", "4x312", "pooler", 14.5, 0.2),
  ("tinybert", "6x768", "pooler", 67.0, 0.5),
  # Radford et al. 2019, Table 2.
  ("gpt", "base", "encoder", 117.0, 0.5),
]
for_every_variant = pytest.mark.parametrize(
  "name,variant", [entry[:2] for entry in PUBLISHED_COUNTS]
)


def build_for_pretraining(name, variant, **overrides):
  """Returns a published size with its pre-training heads."""
  family = models.family(name)
  return family.ForPreTraining(family.build(variant, **overrides))


def axes_by_name(tree):
  """Returns the logical axes of each array, by its name."""
  boxes = jax.tree_util.tree_flatten_with_path(
    tree, is_leaf=lambda x: hasattr(x, "names")
  )[0]
  return {
    "/".join(entry.key for entry in path): box.names for path, box in boxes
  }


def test_every_published_size_is_counted():
  variants = {
    (name, variant)
    for name, family in models.FAMILIES.items()
    for variant in family.VARIANTS
  }
  assert variants == {(name, variant) for name, variant, *_ in PUBLISHED_COUNTS}


@pytest.mark.parametrize(
  "name,variant,counted_part,published_millions,tolerance", PUBLISHED_COUNTS
)
def test_numbers_of_parameters_are_as_published(
  name, variant, counted_part, published_millions, tolerance
):
  module = models.family(name).build(variant)
  if counted_part == "heads":
    heads = models.family(name).ForPreTraining(module, pairs=name == "bert")
    tree = param_shapes(heads, BATCH_SHAPES)
  else:
    tree = param_shapes(module, IDS)
  num_parameters = sum(x.size for x in jax.tree.leaves(tree))
  if counted_part == "pooler":
    num_parameters += module.hidden * (module.hidden + 1)
  num_millions = num_parameters / 1e6
  assert abs(num_millions - published_millions) <= tolerance, num_parameters


def test_sizes_of_generators_of_electra_are_as_published():
  """Clark et al. 2020, Table 6: 1/4, 1/3 and 1/4 of the width, heads of 64."""
  sizes = {
    variant: electra.generator_sizes(electra.build(variant))
    for variant in electra.VARIANTS
  }
  assert sizes == {
    "small": dict(hidden=64, heads=1, mlp=256),
    "base": dict(hidden=256, heads=4, mlp=1024),
    "large": dict(hidden=256, heads=4, mlp=1024),
  }
  tree = nn.unbox(
    param_shapes(build_for_pretraining("electra", "base"), BATCH_SHAPES)
  )
  assert tree["generator"]["project"]["kernel"].shape == (768, 256)
  assert "project" not in tree["discriminator"]
  assert tree["generator"]["layers"]["layer"]["mlp_in"]["kernel"].shape == (
    12,
    256,
    1024,
  )
  assert tree["mlm"]["dense"]["kernel"].shape == (256, 768)


def test_the_rules_name_exactly_the_axes_that_models_use(monkeypatch):
  """The rules of devices/sharding.py say how each named axis is split.

  Models name the axes of their parameters and activations. The test builds
  models for pre-training and for a task.
  """
  used_axes = set()
  constrain = nn.with_logical_constraint

  def record(x, names):
    assert len(names) == x.ndim
    used_axes.update(names)
    return constrain(x, names)

  monkeypatch.setattr(nn, "with_logical_constraint", record)
  for name, family in models.FAMILIES.items():
    encoder = family.build(next(iter(family.VARIANTS)))
    task = task_heads.SequenceClassifier(encoder, family.POOLING, num_labels=2)
    for module in (family.ForPreTraining(encoder), task):
      for names in axes_by_name(param_shapes(module, BATCH_SHAPES)).values():
        used_axes.update(names)
    assert used_axes - {None} <= dict(sharding.AXIS_RULES).keys(), name
  assert used_axes - {None} == dict(sharding.AXIS_RULES).keys()


@for_every_variant
def test_a_mesh_of_two_by_two_splits_published_sizes_evenly(name, variant):
  """The mesh has fsdp=2 and tensor=2, or fsdp=4 if a tower has one head."""
  shape = (1, 4, 1) if (name, variant) == ("electra", "small") else (1, 2, 2)
  mesh = jax.sharding.AbstractMesh(shape, sharding.MESH_AXES)
  tree = param_shapes(
    build_for_pretraining(name, variant, vocab_multiple=shape[2]), BATCH_SHAPES
  )
  sharding.check_parameter_sizes(mesh, tree)


def test_maps_between_widths_split_only_the_width_of_the_model():
  """Each kernel maps between two widths. Only the model's width is split."""
  for name in ("albert", "electra"):
    variant = next(iter(models.family(name).VARIANTS))
    axis_names = axes_by_name(
      param_shapes(build_for_pretraining(name, variant), BATCH_SHAPES)
    )
    map_axis_names = {
      key: names for key, names in axis_names.items() if "project" in key
    }
    assert len(map_axis_names) == (2 if name == "albert" else 4)
    for key, names in map_axis_names.items():
      expected = (None, "embed") if key.endswith("kernel") else ("embed",)
      assert names == expected, key
