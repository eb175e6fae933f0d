"""Optimizers and schedules as published and as corrected, by name."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Schedule = Callable[[Any], Any]
# How far a layer's rate lies below the head's, in powers of the decay.
LAYER_RULES = ("released", "written")
# Of ELMo; by what each clips.
ADAGRADS = ("adagrad", "adagrad_each")


def decay_mask(params: Any) -> Any:
  """True where weight decay applies: kernels and embeddings.

  Decided by the leaf's role, its own name: never by rank (a scanned bias is of
  rank 2) nor by the module's name ("LayerNorm", "layer_norm", ...).

  Raises:
    ValueError: a leaf whose role is not known.
  """
  roles = {"kernel": True, "embedding": True, "bias": False, "scale": False}
  # Of ELMo: an LSTM's output; the weights of a mixture of layers.
  roles |= {"projection": True, "layer_weights": False, "gamma": False}

  def role(path, _):
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    if names[-1] not in roles:
      raise ValueError(f"parameter {'/'.join(names)}: no rule for its decay.")
    return roles[names[-1]]

  return jax.tree_util.tree_map_with_path(role, params)


class UncorrectedAdamState(NamedTuple):
  mu: Any
  nu: Any


def scale_by_uncorrected_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """Adam without bias correction (google-research/bert optimization.py)."""

  def init(params):
    return UncorrectedAdamState(
      jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
    )

  def update(grads, state, params=None):
    del params
    mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
    nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
    return updates, UncorrectedAdamState(mu, nu)

  return optax.GradientTransformation(init, update)


def scale_by_corrected_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """Adam with bias correction (Kingma & Ba 2015, algorithm 1).

  As `optax.scale_by_adam`, whose state it has, but for the corrections: there
  1 - b2**count is of the float32 nearest to b2, for 0.999 wrong by 1.3e-5 in
  the first thousand steps, and so is every update by half of that. Alone it
  was 4e-4 of the loss after 48 steps of fine-tuning on STS-B.
  """

  logarithms = [math.log(b) if b else -math.inf for b in (b1, b2)]

  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return optax.ScaleByAdamState(
      jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params)
    )

  def update(grads, state, params=None):
    del params
    count = optax.safe_increment(state.count)
    mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
    nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
    # 1 - b**count without a difference of nearly equal numbers.
    m_sum, v_sum = (-jnp.expm1(count * x) for x in logarithms)
    updates = jax.tree.map(
      lambda m, v: (m / m_sum) / (jnp.sqrt(v / v_sum) + epsilon), mu, nu
    )
    return updates, optax.ScaleByAdamState(count, mu, nu)

  return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(
  mask: Callable[[Any], Any],
) -> optax.GradientTransformation:
  """Scales each variable's update to the norm of the variable itself.

  You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2,
  with phi the identity; the ratio is 1 where either norm is 0 (google-research/
  albert lamb_optimizer.py). The layers of a stack (the groups, in ALBERT) are
  variables of their own, each with its ratio.

  Args:
    mask: parameters -> True at the leaves that are scaled.
  """

  def scale(path, update, param, scaled):
    if not scaled:
      return update
    stacked = any(getattr(key, "key", None) == "layers" for key in path)
    axes = tuple(range(int(stacked), param.ndim))
    norm = jnp.sqrt(jnp.square(param).sum(axes, keepdims=True))
    length = jnp.sqrt(jnp.square(update).sum(axes, keepdims=True))
    usable = (norm > 0) & (length > 0)
    return update * jnp.where(usable, norm / jnp.where(usable, length, 1), 1)

  def update(updates, state, params=None):
    scaled = jax.tree_util.tree_map_with_path(
      scale, updates, params, mask(params)
    )
    return scaled, state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def everything(params: Any) -> Any:
  """True at every leaf: the mask of a rule without exceptions."""
  return jax.tree.map(lambda _: True, params)


def layer_scales(params: Any, decay: float, rule: str = "released") -> Any:
  """Factor of each leaf's learning rate: smaller, the nearer to the input.

  Of n layers, the head and the pooler have 1. By the "released" rule the last
  layer has decay^2, the first decay^(n + 1), the embeddings decay^(n + 2); by
  the one as "written", decay, decay^n and decay^(n + 1) (Clark et al. 2020,
  section 3.1; google-research/electra model/optimization.py, _get_layer_lrs,
  whose authors kept the power that is one too many).

  Args:
    params: with an `encoder`; or their shapes.
    decay: in (0, 1].
    rule: of `LAYER_RULES`.

  Returns:
    A tree of floats, and for stacked layers of arrays that broadcast.

  Raises:
    ValueError: no layers.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  names = [[getattr(key, "key", None) for key in path] for path, _ in leaves]
  depths = [
    leaf.shape[0]
    for path, (_, leaf) in zip(names, leaves, strict=True)
    if path[0] == "encoder" and "layers" in path
  ]
  if not depths:
    raise ValueError("optimizer.layer_decay: the model has no encoder.layers.")
  count = depths[0]
  top = count + (2 if rule == "released" else 1)

  def scale(path, leaf):
    keys = [getattr(key, "key", None) for key in path]
    if keys[0] != "encoder":
      return 1.0
    if "layers" not in keys:
      return decay**top
    powers = decay ** (top - 1.0 - jnp.arange(count))
    return powers.reshape(-1, *[1] * (leaf.ndim - 1)).astype(jnp.float32)

  return jax.tree_util.tree_map_with_path(scale, params)


def scale_by_layer(decay: float, rule: str) -> optax.GradientTransformation:
  """Scales updates by `layer_scales`."""

  def update(updates, state, params=None):
    del params
    scales = layer_scales(updates, decay, rule)
    return jax.tree.map(jnp.multiply, updates, scales), state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


class MuonState(NamedTuple):
  """State of `scale_by_muon`.

  Attributes:
    count: int32 scalar, the number of updates done.
    mu: Muon's momentum for matrices, Adam's first moment for other leaves.
    nu: Adam's second moment; zeros for matrices, which do not use it.
  """

  count: Any
  mu: Any
  nu: Any


# The coefficients and the number of Newton-Schulz iterations (Jordan et al.).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def _is_matrix(path: Any) -> bool:
  """Returns True if a leaf holds the matrices of all layers."""
  names = [getattr(key, "key", None) for key in path]
  return "layers" in names and "kernel" in names


def _as_matrices(path: Any, stack: jax.Array) -> jax.Array:
  """Reshapes a stack of kernels to [layers, inputs, outputs], merging heads."""
  names = [getattr(key, "key", None) for key in path]
  # Heads are an input axis of attention's output kernel, and an output axis of
  # all other kernels.
  inputs = stack.ndim - 2 if "output" in names else 1
  rows = math.prod(stack.shape[1 : 1 + inputs])
  return stack.reshape(stack.shape[0], rows, -1)


def orthogonalise(matrices: jax.Array, dtype: Any = jnp.bfloat16) -> jax.Array:
  """Brings the singular values of each matrix near 1.

  Args:
    matrices: [n, rows, columns], float32.
    dtype: the dtype of the matrix products; bfloat16 as published.

  Returns:
    Matrices of the same shape, float32. Singular values that were not tiny are
    about 0.7 to 1.2 (Jordan et al. 2024).
  """
  first, third, fifth = _QUINTIC
  transposes = matrices.shape[1] > matrices.shape[2]
  if transposes:
    matrices = matrices.swapaxes(1, 2)
  norms = jnp.sqrt(jnp.square(matrices).sum((1, 2), keepdims=True))
  x = (matrices / (norms + 1e-8)).astype(dtype)
  for _ in range(_ITERATIONS):
    square = x @ x.swapaxes(1, 2)
    x = first * x + (third * square + fifth * square @ square) @ x
  x = x.swapaxes(1, 2) if transposes else x
  return x.astype(jnp.float32)


def scale_by_muon(
  b1: float,
  b2: float,
  epsilon: float,
  momentum: float = 0.95,
  dtype: Any = jnp.bfloat16,
) -> optax.GradientTransformation:
  """Muon for the matrices of layers, Adam with bias correction for the rest.

  This is the optimizer of Jordan et al. 2024, "Muon: An optimizer for hidden
  layers in neural networks", with Nesterov momentum. The update of a matrix is
  scaled by 0.2 times the square root of its longer side, so that Adam's
  learning rate and weight decay can be used for it too (Liu et al. 2025, "Muon
  is Scalable for LLM Training", section 2.2).

  Args:
    b1: Adam's decay of the first moment.
    b2: Adam's decay of the second moment.
    epsilon: Adam's epsilon.
    momentum: the decay of Muon's momentum.
    dtype: see `orthogonalise`.
  """
  adam = scale_by_corrected_adam(b1, b2, epsilon)

  def init(params):
    return MuonState(*adam.init(params))

  def matrix_update(path, grad, mu):
    """Returns the update of a stack of matrices and the new momentum."""
    mu = momentum * mu + (1 - momentum) * grad
    matrices = _as_matrices(path, momentum * mu + (1 - momentum) * grad)
    scale = 0.2 * math.sqrt(max(matrices.shape[1:]))
    return (scale * orthogonalise(matrices, dtype)).reshape(grad.shape), mu

  def update(grads, state, params=None):
    del params
    updates, new_state = adam.update(grads, optax.ScaleByAdamState(*state))
    leaves, structure = jax.tree_util.tree_flatten_with_path(grads)
    columns = [
      structure.flatten_up_to(tree)
      for tree in (updates, new_state.mu, new_state.nu, state.mu, state.nu)
    ]
    rows = []
    for (path, grad), *adam_row, mu, nu in zip(leaves, *columns, strict=True):
      if _is_matrix(path):
        rows.append((*matrix_update(path, grad, mu), nu))
      else:
        rows.append(adam_row)
    updates, mu, nu = (
      structure.unflatten(column) for column in zip(*rows, strict=True)
    )
    return updates, MuonState(new_state.count, mu, nu)

  return optax.GradientTransformation(init, update)


class AdagradState(NamedTuple):
  accumulator: Any


def scale_by_adagrad(initial: float) -> optax.GradientTransformation:
  """Duchi et al. 2011: over the root of the sum of all squares so far.

  Args:
    initial: what each sum begins with; nothing else keeps it from 0
      (tf.train.AdagradOptimizer).
  """

  def init(params):
    return AdagradState(
      jax.tree.map(lambda p: jnp.full_like(p, initial), params)
    )

  def update(grads, state, params=None):
    del params
    sums = jax.tree.map(lambda g, a: a + g * g, grads, state.accumulator)
    updates = jax.tree.map(lambda g, a: g * jax.lax.rsqrt(a), grads, sums)
    return updates, AdagradState(sums)

  return optax.GradientTransformation(init, update)


def clip_each(norm: float) -> optax.GradientTransformation:
  """Clips the gradient of every variable to a norm of its own.

  The layers of a stack are variables of their own.
  """

  def clip(path, grad):
    stacked = any(getattr(key, "key", None) == "layers" for key in path)
    axes = tuple(range(int(stacked), grad.ndim))
    length = jnp.sqrt(jnp.square(grad).sum(axes, keepdims=True))
    return grad * (norm / jnp.maximum(length, norm))

  def update(updates, state, params=None):
    del params
    return jax.tree_util.tree_map_with_path(clip, updates), state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def build_adagrad(
  schedule: Schedule,
  name: str,
  initial_accumulator: float,
  gradient_scale: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """ELMo's optimizer (allenai/bilm-tf bilm/training.py).

  Args:
    schedule: step -> learning rate (0.2 as published).
    name: "adagrad": all gradients are clipped by their global norm, as the
      released code does; "adagrad_each": the gradient of each variable by its
      own norm.
    initial_accumulator: see `scale_by_adagrad` (1.0 as published).
    gradient_scale: times the gradients; the released code has the steps of a
      row there, 20. Not without effect, as the accumulator begins above 0.
    clip_norm: largest norm of scaled gradients, 0 for none (10.0 as published).

  Raises:
    ValueError: an accumulator that is not above 0.
  """
  if initial_accumulator <= 0:
    raise ValueError(
      f"optimizer.initial_accumulator={initial_accumulator}: must be above 0."
    )
  clips = (optax.clip_by_global_norm, clip_each)
  clip = dict(zip(ADAGRADS, clips, strict=True))[name]
  # Before they are scaled: the norm is then that which the step reports.
  clip = clip(clip_norm / gradient_scale) if clip_norm else optax.identity()
  return optax.chain(
    clip,
    optax.scale(gradient_scale),
    scale_by_adagrad(initial_accumulator),
    optax.scale_by_learning_rate(schedule),
  )


def factory(name: str) -> Callable[..., optax.GradientTransformation]:
  """What builds the optimizer of a name: it has its own arguments."""
  return build_adagrad if name in ADAGRADS else build_optimizer


def build_optimizer(
  schedule: Schedule,
  name: str,
  b1: float,
  b2: float,
  epsilon: float,
  weight_decay: float,
  clip_norm: float,
  layer_decay: float = 1.0,
  layer_rule: str = "released",
) -> optax.GradientTransformation:
  """Clip by the global norm, Adam, decay, trust ratio, learning rate.

  | name | Adam's bias | decayed | trust ratio |
  |---|---|---|---|
  | adamw_bert | as it is | kernels, embeddings | none |
  | adamw | corrected | kernels, embeddings | none |
  | adamw_fairseq | corrected | everything | none |
  | lamb | as it is | kernels, embeddings | kernels, embeddings |
  | lamb_optax | corrected | kernels, embeddings | everything |
  | muon | corrected | kernels, embeddings | none; see `scale_by_muon` |

  "adamw_bert" is that of BERT and ELECTRA (google-research/bert
  optimization.py), "adamw" that of Loshchilov & Hutter 2019, "adamw_fairseq"
  RoBERTa's and SpanBERT's (fairseq optim/adam.py, one group of parameters; it
  adds epsilon before the correction of v, not after), "lamb" ALBERT's
  (google-research/albert lamb_optimizer.py), "lamb_optax" `optax.lamb`'s rule
  for each layer of a stack.

  Args:
    schedule: step -> learning rate.
    name: of the table.
    b1: and `b2`, `epsilon`: of Adam.
    weight_decay: times the learning rate; with a trust ratio, decay is part of
      the update that is scaled.
    clip_norm: largest global norm of the gradients, 0 for none. Applied after
      the reduction over devices (the paper's code: before, per device).
    layer_decay: and `layer_rule`: see `layer_scales`; 1 for one rate.

  Raises:
    ValueError: unknown name or rule, a decay out of range.
  """
  if not 0.0 < layer_decay <= 1.0:
    raise ValueError(f"optimizer.layer_decay={layer_decay}: must be in (0, 1].")
  if layer_rule not in LAYER_RULES:
    raise ValueError(
      f"optimizer.layer_rule={layer_rule!r}: not one of"
      f" {', '.join(LAYER_RULES)}."
    )
  published = scale_by_uncorrected_adam(b1, b2, epsilon)
  corrected = scale_by_corrected_adam(b1, b2, epsilon)
  rules = {
    "adamw_bert": (published, decay_mask, None),
    "adamw": (corrected, decay_mask, None),
    "adamw_fairseq": (corrected, everything, None),
    "lamb": (published, decay_mask, decay_mask),
    "lamb_optax": (corrected, decay_mask, everything),
    "muon": (scale_by_muon(b1, b2, epsilon), decay_mask, None),
  }
  if name not in rules:
    known = [*rules, *ADAGRADS]
    raise ValueError(f"optimizer.name={name!r}: not one of {known}.")
  adam, decayed, trusted = rules[name]
  clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
  decay = optax.add_decayed_weights(weight_decay, mask=decayed)
  ratio = [scale_by_trust_ratio(trusted)] if trusted else []
  if layer_decay < 1.0:
    ratio.append(scale_by_layer(layer_decay, layer_rule))
  rate = optax.scale_by_learning_rate(schedule)
  return optax.chain(clip, adam, decay, *ratio, rate)


def build_schedule(
  total_steps: int, name: str, peak: float, warmup: float, decay: float = 1.0
) -> Schedule:
  """Linear warm-up, then decay to zero, or none.

  Args:
    total_steps: optimizer steps of the run, whatever the micro-batches.
    name: "bert": linear decay from step 0, so the rate jumps down at the end of
      warm-up (google-research/bert optimization.py); "electra": the same times
      the share of warm-up, without a jump (google-research/electra
      model/optimization.py); "linear": from the peak at the end of warm-up
      (fairseq, Hugging Face); "cosine": half a cosine from there (Radford et
      al. 2018, section 4.1); "constant": the peak for good (ELMo);
      "trapezoid": flat at the peak, then linear decay to 0 over the last
      `decay` of the steps (Zhai et al. 2022, "Scaling Vision Transformers",
      section 3.5).
    peak: learning rate that warm-up aims at.
    warmup: the share of `total_steps` spent in warm-up, in [0, 1). The number
      of steps is rounded down (google-research/bert run_classifier.py, also
      ELECTRA); with "linear" it is rounded up (Hugging Face).
    decay: the share of `total_steps` in which "trapezoid" falls to 0, in
      (0, 1]; other schedules do not use it.

  Returns:
    Step (0 is the first) -> learning rate, never below 0, 0 from `total_steps`
    unless it is constant.

  Raises:
    ValueError: unknown name or a share out of range.
  """
  names = ("bert", "electra", "linear", "cosine", "constant", "trapezoid")
  if name not in names:
    raise ValueError(f"schedule.name={name!r}: not one of {', '.join(names)}.")
  if not 0.0 <= warmup < 1.0:
    raise ValueError(
      f"schedule.warmup={warmup}: a share of total_steps, in [0, 1)."
    )
  if not 0.0 < decay <= 1.0:
    raise ValueError(
      f"schedule.decay={decay}: a share of total_steps, in (0, 1]."
    )
  if name != "trapezoid" and decay != 1.0:
    raise ValueError(
      f"schedule.decay={decay}: only schedule.name=trapezoid uses it, but"
      f" schedule.name is {name}; remove schedule.decay."
    )
  warm = warmup * total_steps
  warm = math.ceil(warm) if name == "linear" else int(warm)

  def schedule(step):
    step = jnp.asarray(step, jnp.float32)
    start = 0 if name in ("bert", "electra") else warm
    left = (total_steps - step) / max(total_steps - start, 1)
    left = jnp.maximum(left, 0.0)
    if name == "constant":
      left = jnp.ones_like(left)
    if name == "trapezoid":
      falling = (total_steps - step) / max(decay * total_steps, 1)
      left = jnp.clip(falling, 0.0, 1.0)
    if name == "cosine":
      left = 0.5 - 0.5 * jnp.cos(math.pi * left)
    rising = step / max(warm, 1)
    if name == "electra":
      rising = rising * left
    return peak * jnp.where(step < warm, rising, left)

  return schedule
