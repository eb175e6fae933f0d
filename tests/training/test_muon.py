"""Compares Muon with optax; tests trapezoid schedules and mask rates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_families

from bert_jax import models
from bert_jax.cli import configs
from bert_jax.training import config as config_lib
from bert_jax.training import optim, phases

OPTIMIZER_OPTIONS = dict(
  b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0, clip_norm=0.0
)
RATE = 0.01


def draw_tree(seed):
  """Returns random parameters: kernels, a bias and an embedding."""
  keys = iter(jax.random.split(jax.random.key(seed), 6))
  shapes = {
    "query": (3, 8, 2, 4),
    "output": (3, 2, 4, 8),
    "mlp_in": (3, 8, 32),
    "mlp_out": (3, 32, 8),
  }
  layers = {
    name: {"kernel": jax.random.normal(next(keys), shape)}
    for name, shape in shapes.items()
  }
  layers["mlp_in"]["bias"] = jax.random.normal(next(keys), (3, 32))
  word = {"embedding": jax.random.normal(next(keys), (16, 8))}
  return {"layers": layers, "word": word}


def optax_axes(params):
  """Returns optax's input and output axes of each leaf; None means Adam."""
  axis_numbers = optax.contrib.MuonDimensionNumbers
  leaves = jax.tree.map(lambda _: None, params)
  layers = leaves["layers"]
  layers["query"]["kernel"] = axis_numbers((1,), (2, 3))
  layers["output"]["kernel"] = axis_numbers((1, 2), (3,))
  layers["mlp_in"]["kernel"] = axis_numbers((1,), (2,))
  layers["mlp_out"]["kernel"] = axis_numbers((1,), (2,))
  return leaves


def test_matrices_are_orthogonalised_as_by_optax():
  """The test computes the momentum of three steps; optax does the rest.

  optax multiplies in another order than `scale_by_muon`, so the relative
  distance of float32 updates is up to 1e-4.
  """
  params = draw_tree(0)
  muon = optim.scale_by_muon(b1=0.9, b2=0.98, epsilon=1e-6, dtype=jnp.float32)
  # With beta=0, optax orthogonalises the momentum that it gets as gradient.
  reference = optax.contrib.muon(
    RATE,
    beta=0.0,
    consistent_rms=0.2,
    muon_weight_dimension_numbers=optax_axes,
  )
  state = muon.init(params)
  momentum = jax.tree.map(jnp.zeros_like, params)
  for seed in range(1, 4):
    grads = draw_tree(seed)
    momentum = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, momentum, grads)
    nesterov_momentum = jax.tree.map(
      lambda m, g: 0.95 * m + 0.05 * g, momentum, grads
    )
    expected_updates, _ = reference.update(
      nesterov_momentum, reference.init(params), params
    )
    updates, state = jax.jit(muon.update)(grads, state, params)
    for name in ("query", "output", "mlp_in", "mlp_out"):
      computed_update = -RATE * updates["layers"][name]["kernel"]
      expected_update = expected_updates["layers"][name]["kernel"]
      distance = optax.tree.norm(
        computed_update - expected_update
      ) / optax.tree.norm(expected_update)
      assert distance < 1e-4, (seed, name, distance)


def test_parameters_that_are_no_matrices_use_adam():
  params = draw_tree(0)
  names = ("muon", "adamw")
  muon, adam = (
    optim.build_optimizer(lambda _: RATE, name, **OPTIMIZER_OPTIONS)
    for name in names
  )
  states = [muon.init(params), adam.init(params)]
  for seed in range(1, 4):
    grads = draw_tree(seed)
    muon_updates, states[0] = muon.update(grads, states[0], params)
    adam_updates, states[1] = adam.update(grads, states[1], params)
    np.testing.assert_array_equal(
      muon_updates["word"]["embedding"], adam_updates["word"]["embedding"]
    )
    np.testing.assert_array_equal(
      muon_updates["layers"]["mlp_in"]["bias"],
      adam_updates["layers"]["mlp_in"]["bias"],
    )
  kernels = [
    tree["layers"]["mlp_in"]["kernel"] for tree in (muon_updates, adam_updates)
  ]
  assert not np.allclose(*kernels)


@pytest.mark.parametrize("shape", [(2, 8, 32), (2, 32, 8), (1, 16, 16)])
def test_singular_values_become_about_one(shape):
  """Jordan et al. 2024 give the bounds 0.68 and 1.13; the test allows more."""
  matrices = jax.random.normal(jax.random.key(3), shape)
  singular_values = np.linalg.svd(np.asarray(optim.orthogonalise(matrices)))[1]
  # A random square matrix has singular values near 0, which five iterations do
  # not raise to 1. So only its larger half is compared.
  singular_values = (
    singular_values
    if shape[1] != shape[2]
    else singular_values[:, : shape[1] // 2]
  )
  assert singular_values.min() > 0.6 and singular_values.max() < 1.25, (
    singular_values
  )


@pytest.mark.parametrize("family", ["bert", "albert", "electra", "gpt"])
def test_every_kernel_of_a_layer_is_a_matrix(family):
  """Kernels of attention become square matrices. Those of the MLP do not."""
  module = models.family(family).ForPreTraining(
    tiny_families.build_encoder(family)
  )
  ids = jnp.zeros((1, 3), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids[:, :1])
  sizes = tiny_families.param_shapes(module, batch)
  leaves = jax.tree_util.tree_leaves_with_path(sizes)
  shapes = {
    jax.tree_util.keystr(path): jax.eval_shape(
      lambda x, path=path: optim._as_matrices(path, x), leaf
    ).shape
    for path, leaf in leaves
    if optim._is_matrix(path)
  }
  assert len(shapes) >= 6
  for name, (_, rows, columns) in shapes.items():
    is_attention = "attention" in name
    assert (rows == columns) == is_attention, (name, rows, columns)


def test_a_trapezoid_rises_stays_and_falls():
  schedule = optim.build_schedule(
    1000, "trapezoid", peak=2.0, warmup=0.1, decay=0.2
  )
  steps = [0, 50, 100, 500, 800, 900, 1000, 1001]
  rates = [float(schedule(step)) for step in steps]
  np.testing.assert_allclose(rates, [0, 1, 2, 2, 2, 1, 0, 0], atol=1e-6)


def test_decay_is_refused_by_schedules_that_ignore_it():
  with pytest.raises(
    ValueError, match="decay=0.3 is only for schedule.name=trapezoid"
  ):
    optim.build_schedule(10, "linear", peak=1.0, warmup=0.1, decay=0.3)
  with pytest.raises(ValueError, match="schedule.decay=0"):
    optim.build_schedule(10, "trapezoid", peak=1.0, warmup=0.1, decay=0.0)


def test_a_phase_may_have_its_own_mask_rate():
  phase_options = dict(fraction=0.5, length=32, batch_scale=1.0, micro_scale=1)
  run_config = dataclasses.replace(
    config_lib.parse(configs.load_defaults("bert:tiny")),
    total_steps=10,
    batch_size=4,
    micro_batches=1,
    phases=dict(
      phase1=config_lib.Phase(
        **phase_options, max_predictions=13, mask_rate=0.4
      ),
      phase2=config_lib.Phase(**phase_options, max_predictions=5),
    ),
    data=config_lib.Data(path="x", builder="full_sentences", mask_rate=0.15),
  )
  rates = [phase.data_options["mask_rate"] for phase in phases.plan(run_config)]
  assert rates == [0.4, 0.15]
