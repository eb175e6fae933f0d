"""Compares LAMB with a plain version in numpy, variable by variable."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_families

from bert_jax import models
from bert_jax.training import optim

OPTIMIZER_OPTIONS = dict(
  b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.1, clip_norm=0.0
)
# Path -> shape, for a stack of three layers, a stack of one shared layer, and
# variables outside of stacks. `draw_tree` gives the layers different scales, so
# that one ratio for a whole stack would be wrong by far.
SHAPE_BY_PATH = {
  ("encoder", "layers", "layer", "mlp_in", "kernel"): (3, 4, 5),
  ("encoder", "layers", "layer", "mlp_in", "bias"): (3, 5),
  ("encoder", "layers", "layer", "mlp_norm", "scale"): (3, 4),
  ("generator", "layers", "layer", "attention", "query", "kernel"): (
    1,
    4,
    2,
    2,
  ),
  ("encoder", "embeddings", "word", "embedding"): (7, 4),
  ("mlm", "dense", "kernel"): (4, 4),
  ("mlm", "norm", "bias"): (4,),
}
RATE, NUM_STEPS = 0.01, 4


def draw_tree(seed):
  """Returns a tree of random arrays; layer i of a stack is scaled by 4**i."""
  rng = np.random.default_rng(seed)
  tree = {}
  for path, shape in SHAPE_BY_PATH.items():
    array = rng.normal(size=shape)
    if "layers" in path:
      array *= 4.0 ** np.arange(len(array)).reshape(-1, *[1] * (array.ndim - 1))
    node = tree
    for name in path[:-1]:
      node = node.setdefault(name, {})
    node[path[-1]] = jnp.asarray(array, jnp.float32)
  return tree


def arrays_of_variables(tree):
  """Returns {(path, i): array}; i is the layer in a stack, and 0 elsewhere."""
  arrays = {}
  for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
    path = tuple(key.key for key in keys)
    layers = leaf if "layers" in path else [leaf]
    arrays |= {(path, i): np.float64(layer) for i, layer in enumerate(layers)}
  return arrays


def norm(x):
  return np.sqrt((x * x).sum())


def lamb_in_numpy(name, params, grads):
  """Runs the published algorithm on one variable, step by step.

  Args:
    name: a key of the dicts from `arrays_of_variables`.
    params: the first parameters, from `arrays_of_variables`.
    grads: the gradients of each step, from `arrays_of_variables`.
  """
  path = name[0]
  is_excluded = path[-1] in ("bias", "scale")
  weights, mean, mean_of_squares = params[name].copy(), 0.0, 0.0
  for grad in (step[name] for step in grads):
    mean = 0.9 * mean + 0.1 * grad
    mean_of_squares = 0.999 * mean_of_squares + 0.001 * grad * grad
    update = mean / (np.sqrt(mean_of_squares) + 1e-6)
    ratio = 1.0
    if not is_excluded:
      update = update + 0.1 * weights
      ratio = norm(weights) / norm(update)
    weights = weights - RATE * ratio * update
  return weights


def train_params(name, params, grads):
  optimizer = optim.build_optimizer(
    lambda step: RATE, name, **OPTIMIZER_OPTIONS
  )
  state, update = (
    optimizer.init(params),
    tiny_families.fast_jit(optimizer.update),
  )
  for step_grads in grads:
    updates, state = update(step_grads, state, params)
    params = optax.apply_updates(params, updates)
  return params


def test_lamb_equals_the_published_rule_layer_by_layer():
  params, grads = (
    draw_tree(0),
    [draw_tree(seed) for seed in range(1, NUM_STEPS + 1)],
  )
  trained_arrays = arrays_of_variables(train_params("lamb", params, grads))
  initial_arrays, grads_by_step = (
    arrays_of_variables(params),
    [arrays_of_variables(step_grads) for step_grads in grads],
  )
  for name in initial_arrays:
    np.testing.assert_allclose(
      trained_arrays[name],
      lamb_in_numpy(name, initial_arrays, grads_by_step),
      rtol=2e-5,
      err_msg=str(name),
    )


def test_lamb_optax_equals_optax_on_unstacked_layers():
  """Unlike `lamb`, `lamb_optax` corrects the bias of the moments.

  It also scales the updates of norms and biases by their trust ratios.
  """
  params, grads = (
    draw_tree(0),
    [draw_tree(seed) for seed in range(1, NUM_STEPS + 1)],
  )
  trained_arrays = arrays_of_variables(
    train_params("lamb_optax", params, grads)
  )

  def unstack(tree):
    return {
      name: jnp.asarray(array, jnp.float32)
      for name, array in arrays_of_variables(tree).items()
    }

  reference_params = unstack(params)
  mask = {
    name: name[0][-1] not in ("bias", "scale") for name in reference_params
  }
  reference = optax.lamb(
    RATE, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.1, mask=mask
  )
  state, update = (
    reference.init(reference_params),
    tiny_families.fast_jit(reference.update),
  )
  for step_grads in grads:
    updates, state = update(unstack(step_grads), state, reference_params)
    reference_params = optax.apply_updates(reference_params, updates)
  for name, array in reference_params.items():
    np.testing.assert_allclose(
      trained_arrays[name], array, rtol=2e-5, err_msg=str(name)
    )


@pytest.mark.parametrize("family", tiny_families.FAMILY_NAMES)
def test_every_stack_is_recognised_by_its_path(family):
  """An array whose first axis is "layers" has one ratio for each layer."""
  module = models.family(family).ForPreTraining(
    tiny_families.build_encoder(family)
  )
  ids = jnp.zeros((1, 3), jnp.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids[:, :1])
  specs = nn.get_partition_spec(tiny_families.param_shapes(module, batch))
  shapes = nn.unbox(tiny_families.param_shapes(module, batch))
  params = jax.tree.map(lambda x: np.full(x.shape, 2.0, np.float32), shapes)

  def scale_layers(x):
    """Multiplies index i of the first axis, counted from 0, by i + 1."""
    scales = np.arange(1, len(x) + 1, dtype=np.float32)
    return x * scales.reshape(-1, *[1] * (x.ndim - 1))

  updates = jax.tree.map(scale_layers, params)
  scale_by_ratio = optim.scale_by_trust_ratio(optim.mask_of_all)
  scaled_updates, _ = tiny_families.fast_jit(scale_by_ratio.update)(
    updates, (), params
  )

  def check(path, x, spec, update):
    ratios = np.asarray(x) / update
    if spec and spec[0] == "layers":
      expected_ratios = 1 / np.arange(1.0, len(x) + 1)
      expected_ratios = expected_ratios.reshape(-1, *[1] * (x.ndim - 1))
    else:
      expected_ratios = 1 / np.sqrt(np.mean(np.arange(1.0, len(x) + 1) ** 2))
    np.testing.assert_allclose(
      ratios,
      np.broadcast_to(expected_ratios, x.shape),
      rtol=1e-4,
      err_msg=str(path),
    )

  jax.tree_util.tree_map_with_path(check, scaled_updates, specs, updates)


@pytest.mark.parametrize("name", ["lamb", "lamb_optax"])
def test_variables_and_updates_of_zero_norm_stay_finite(name):
  """The trust ratio is 1 for zero parameters, and for a zero update."""
  params = {"a": {"kernel": jnp.zeros((2, 2))}, "b": {"kernel": jnp.ones(2)}}
  grads = jax.tree.map(jnp.zeros_like, params)
  grads["a"]["kernel"] = jnp.ones((2, 2))
  optimizer = optim.build_optimizer(
    lambda step: RATE, name, **OPTIMIZER_OPTIONS | {"weight_decay": 0.0}
  )
  updates, _ = optimizer.update(grads, optimizer.init(params), params)
  adam_update = 0.1 / (0.001**0.5 + 1e-6) if name == "lamb" else 1.0
  np.testing.assert_allclose(
    updates["a"]["kernel"], -RATE * adam_update, rtol=1e-4
  )
  assert not np.asarray(updates["b"]["kernel"]).any()


def test_fairseq_decays_norms_and_biases_too():
  params = draw_tree(0)
  zeros = jax.tree.map(jnp.zeros_like, params)
  optimizer = optim.build_optimizer(
    lambda step: RATE, "adamw_fairseq", **OPTIMIZER_OPTIONS
  )
  updates, _ = optimizer.update(zeros, optimizer.init(params), params)
  jax.tree.map(
    lambda u, p: np.testing.assert_allclose(u, -RATE * 0.1 * p, rtol=1e-6),
    updates,
    params,
  )
