"""Builds optimizers and learning rate schedules by name.

Some optimizers are the published optimizers of the models. The others correct
known faults of the published optimizers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey, KeyPath, tree_map_with_path
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float
from optax import Params, Updates

# Number of an optimizer step, counted from 0 -> learning rate.
Schedule = Callable[[ArrayLike], ArrayLike]
# The names of the rules of `layer_scales`.
LAYER_RULES = ("released", "written")
# The names of the two variants of ELMo's optimizer; see `build_adagrad`.
ADAGRAD_NAMES = ("adagrad", "adagrad_each")


def _names_on_path(path: KeyPath) -> list[str]:
  """Returns the names on the path to a leaf; the leaf's name is the last."""
  return [key.key for key in path if isinstance(key, DictKey)]


def _axes_of_variable(path: KeyPath, x: jax.Array) -> tuple[int, ...]:
  """Returns the axes over which the norm of one variable is computed.

  Each layer of a stack is a variable. So the first axis of a stack, which
  counts layers, is left out.
  """
  return tuple(range(int("layers" in _names_on_path(path)), x.ndim))


def decay_mask(params: Params) -> Params:
  """Returns a tree that is True at each leaf with weight decay.

  These leaves are kernels, embeddings and ELMo's projections.

  The name of the leaf decides. The rank cannot decide, because the bias of a
  stack of layers has rank 2. The module's name cannot decide either, because
  modules with one purpose have several names ("LayerNorm", "layer_norm", ...).

  Raises:
    ValueError: a leaf's name has no rule.
  """
  decays_by_name = {"kernel": True, "embedding": True, "bias": False}
  decays_by_name["scale"] = False
  # ELMo: the projections of the LSTMs' outputs, and the weighted sum of layers.
  decays_by_name |= {"projection": True, "layer_weights": False, "gamma": False}

  def decide(path: KeyPath, _: jax.Array) -> bool:
    names = _names_on_path(path)
    if names[-1] not in decays_by_name:
      raise ValueError(
        f"parameter {'/'.join(names)} has no rule for weight decay; add its"
        " name to `optim.decay_mask`."
      )
    return decays_by_name[names[-1]]

  return tree_map_with_path(decide, params)


def _zeros_like(params: Params) -> Params:
  return jax.tree.map(jnp.zeros_like, params)


class UncorrectedAdamState(NamedTuple):
  """Holds the state of `scale_by_uncorrected_adam`.

  Attributes:
    mu: the first moment, with the shapes of the parameters.
    nu: the second moment, with the shapes of the parameters.
  """

  mu: Updates
  nu: Updates


def _new_moments(
  grads: Updates,
  state: UncorrectedAdamState | optax.ScaleByAdamState,
  b1: float,
  b2: float,
) -> tuple[Updates, Updates]:
  """Returns Adam's moments mu and nu after this step."""
  mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
  nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
  return mu, nu


def scale_by_uncorrected_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """Builds Adam without bias correction.

  This is the optimizer of google-research/bert optimization.py.
  """

  def init(params: Params) -> UncorrectedAdamState:
    return UncorrectedAdamState(_zeros_like(params), _zeros_like(params))

  def update(
    grads: Updates, state: UncorrectedAdamState, params: Params | None = None
  ) -> tuple[Updates, UncorrectedAdamState]:
    del params
    mu, nu = _new_moments(grads, state, b1, b2)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
    return updates, UncorrectedAdamState(mu, nu)

  return optax.GradientTransformation(init, update)


def scale_by_corrected_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """Builds Adam with bias correction (Kingma & Ba 2015, algorithm 1).

  This is `optax.scale_by_adam` with more exact corrections and the same state.
  optax computes 1 - b2**count from b2 rounded to float32. For b2=0.999 the
  result is wrong by a factor of 1 + 1.3e-5 in the first thousand steps, and
  every update has half of this error. This error alone changed the loss by 4e-4
  after 48 steps of fine-tuning on STS-B.
  """
  log_decays = [math.log(b) if b else -math.inf for b in (b1, b2)]

  def init(params: Params) -> optax.ScaleByAdamState:
    count = jnp.zeros((), jnp.int32)
    return optax.ScaleByAdamState(
      count, _zeros_like(params), _zeros_like(params)
    )

  def update(
    grads: Updates, state: optax.ScaleByAdamState, params: Params | None = None
  ) -> tuple[Updates, optax.ScaleByAdamState]:
    del params
    count = optax.safe_increment(state.count)
    mu, nu = _new_moments(grads, state, b1, b2)
    # `expm1` computes 1 - b**count without subtracting nearly equal numbers.
    mu_divisor, nu_divisor = (-jnp.expm1(count * x) for x in log_decays)
    updates = jax.tree.map(
      lambda m, v: (m / mu_divisor) / (jnp.sqrt(v / nu_divisor) + epsilon),
      mu,
      nu,
    )
    return updates, optax.ScaleByAdamState(count, mu, nu)

  return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(
  mask: Callable[[Params], Params],
) -> optax.GradientTransformation:
  """Scales each variable's update to the norm of the variable.

  This is algorithm 2 of You et al. 2020, "Large Batch Optimization for Deep
  Learning", with the identity as phi. The ratio is 1 if one of the norms is 0
  (google-research/albert lamb_optimizer.py). Each layer of a stack (in ALBERT
  each group) is a variable with its own ratio.

  Args:
    mask: parameters -> True at the leaves that are scaled.
  """

  def scale(
    path: KeyPath, update: jax.Array, param: jax.Array, is_scaled: bool
  ) -> jax.Array:
    if not is_scaled:
      return update
    axes = _axes_of_variable(path, param)
    param_norm = jnp.sqrt(jnp.square(param).sum(axes, keepdims=True))
    update_norm = jnp.sqrt(jnp.square(update).sum(axes, keepdims=True))
    has_ratio = (param_norm > 0) & (update_norm > 0)
    ratio = param_norm / jnp.where(has_ratio, update_norm, 1)
    return update * jnp.where(has_ratio, ratio, 1)

  def update(updates: Updates, params: Params | None) -> Updates:
    return tree_map_with_path(scale, updates, params, mask(params))

  return optax.stateless(update)


def mask_of_all(params: Params) -> Params:
  """Returns the mask of a rule without exceptions: True at every leaf."""
  return jax.tree.map(lambda _: True, params)


def layer_scales(
  params: Params, decay: float, rule: str = "released"
) -> Params:
  """Returns a factor for each leaf's learning rate.

  The factor falls from the head to the embeddings. The factors for n layers and
  decay d are:

  | leaf | "released" | "written" |
  |---|---|---|
  | head and pooler | 1 | 1 |
  | last layer | d^2 | d |
  | first layer | d^(n + 1) | d^n |
  | embeddings | d^(n + 2) | d^(n + 1) |

  "written" is the rule of the paper (Clark et al. 2020, section 3.1). The
  released code multiplies by one d more than the paper (google-research/electra
  model/optimization.py, _get_layer_lrs), and the authors kept the code's rule.

  Args:
    params: parameters with an `encoder`, or their shapes.
    decay: the factor d between a layer and the layer below it, in (0, 1].
    rule: one of `LAYER_RULES`.

  Returns:
    A tree of floats. For stacked layers, the tree has float32 arrays that
    broadcast against the parameters.

  Raises:
    ValueError: the encoder has no layers.
  """
  layer_counts = [
    leaf.shape[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if _names_on_path(path)[0] == "encoder" and "layers" in _names_on_path(path)
  ]
  if not layer_counts:
    raise ValueError(
      "optimizer.layer_decay needs a model with a stack of layers, but this"
      " model has no encoder.layers; remove optimizer.layer_decay."
    )
  num_layers = layer_counts[0]
  highest_power = num_layers + (2 if rule == "released" else 1)

  def scale(path: KeyPath, leaf: jax.Array) -> float | jax.Array:
    names = _names_on_path(path)
    if names[0] != "encoder":
      return 1.0
    if "layers" not in names:
      return decay**highest_power
    layer_factors = decay ** (highest_power - 1.0 - jnp.arange(num_layers))
    return layer_factors.reshape(-1, *[1] * (leaf.ndim - 1)).astype(jnp.float32)

  return tree_map_with_path(scale, params)


def scale_by_layer(decay: float, rule: str) -> optax.GradientTransformation:
  """Scales updates by the factors of `layer_scales`."""

  def update(updates: Updates, params: Params | None) -> Updates:
    del params
    scales = layer_scales(updates, decay, rule)
    return jax.tree.map(jnp.multiply, updates, scales)

  return optax.stateless(update)


class MuonState(NamedTuple):
  """Holds the state of `scale_by_muon`.

  Attributes:
    count: int32 scalar, the number of updates done.
    mu: Muon's momentum of matrices, and Adam's first moment of all other
      leaves.
    nu: Adam's second moment; zeros for matrices, which do not use it.
  """

  count: Any
  mu: Updates
  nu: Updates


# The coefficients of a Newton-Schulz iteration, and the number of iterations
# (Jordan et al. 2024).
_QUINTIC_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5


def _is_matrix(path: KeyPath) -> bool:
  """Returns True if a leaf is a stack of the kernels of all layers."""
  names = _names_on_path(path)
  return "layers" in names and "kernel" in names


def _as_matrices(
  path: KeyPath, stack: Float[Array, "n ..."]
) -> Float[Array, "n rows columns"]:
  """Reshapes a stack of n kernels to [n, inputs, outputs], merging heads."""
  # Attention's output kernel has two input axes: heads and head size. All other
  # kernels have one input axis.
  num_input_axes = stack.ndim - 2 if "output" in _names_on_path(path) else 1
  num_inputs = math.prod(stack.shape[1 : 1 + num_input_axes])
  return stack.reshape(stack.shape[0], num_inputs, -1)


def orthogonalise(
  matrices: Float[Array, "n rows columns"], dtype: DTypeLike = jnp.bfloat16
) -> Float[Array, "n rows columns"]:
  """Brings the singular values of each matrix near 1.

  Args:
    matrices: float32 matrices.
    dtype: the dtype of the matrix products; bfloat16 as published.

  Returns:
    float32 matrices. Singular values that were not tiny are now about 0.7 to
    1.2 (Jordan et al. 2024).
  """
  c1, c3, c5 = _QUINTIC_COEFFICIENTS
  is_tall = matrices.shape[1] > matrices.shape[2]
  if is_tall:
    matrices = matrices.swapaxes(1, 2)
  norms = jnp.sqrt(jnp.square(matrices).sum((1, 2), keepdims=True))
  x = (matrices / (norms + 1e-8)).astype(dtype)
  for _ in range(_NUM_ITERATIONS):
    gram = x @ x.swapaxes(1, 2)
    x = c1 * x + (c3 * gram + c5 * gram @ gram) @ x
  x = x.swapaxes(1, 2) if is_tall else x
  return x.astype(jnp.float32)


def scale_by_muon(
  b1: float,
  b2: float,
  epsilon: float,
  momentum: float = 0.95,
  dtype: DTypeLike = jnp.bfloat16,
) -> optax.GradientTransformation:
  """Builds Muon for the layers' matrices, and Adam for all other leaves.

  Adam has bias correction. This is the optimizer of Jordan et al. 2024, "Muon:
  An optimizer for hidden layers in neural networks", with Nesterov momentum.
  The update of a matrix is scaled by 0.2 times the square root of its longer
  side, so that Adam's learning rate and weight decay fit Muon too (Liu et al.
  2025, "Muon is Scalable for LLM Training", section 2.2).

  Args:
    b1: Adam's decay of the first moment.
    b2: Adam's decay of the second moment.
    epsilon: Adam's epsilon.
    momentum: the decay of Muon's momentum.
    dtype: the dtype of Muon's matrix products, see `orthogonalise`.
  """
  adam = scale_by_corrected_adam(b1, b2, epsilon)

  def init(params: Params) -> MuonState:
    return MuonState(*adam.init(params))

  def update_matrices(
    path: KeyPath, grad: jax.Array, mu: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the update of a stack of matrices, and its new momentum."""
    mu = momentum * mu + (1 - momentum) * grad
    matrices = _as_matrices(path, momentum * mu + (1 - momentum) * grad)
    scale = 0.2 * math.sqrt(max(matrices.shape[1:]))
    return (scale * orthogonalise(matrices, dtype)).reshape(grad.shape), mu

  def update(
    grads: Updates, state: MuonState, params: Params | None = None
  ) -> tuple[Updates, MuonState]:
    del params
    adam_updates, adam_state = adam.update(
      grads, optax.ScaleByAdamState(*state)
    )

    def choose(
      path: KeyPath,
      grad: jax.Array,
      mu: jax.Array,
      nu: jax.Array,
      *adam_leaves: jax.Array,
    ) -> tuple[jax.Array, ...]:
      """Returns the update, mu and nu of a leaf, from Muon or from Adam."""
      if _is_matrix(path):
        return (*update_matrices(path, grad, mu), nu)
      return adam_leaves

    # Turn the tree of (update, mu, nu) into three trees.
    updates, mu, nu = jax.tree.transpose(
      jax.tree.structure(grads),
      jax.tree.structure((0, 0, 0)),
      tree_map_with_path(
        choose,
        grads,
        state.mu,
        state.nu,
        adam_updates,
        adam_state.mu,
        adam_state.nu,
      ),
    )
    return updates, MuonState(adam_state.count, mu, nu)

  return optax.GradientTransformation(init, update)


class AdagradState(NamedTuple):
  """Holds the state of `scale_by_adagrad`.

  Attributes:
    accumulator: the sums of the squared gradients, with the shapes of the
      parameters.
  """

  accumulator: Updates


def scale_by_adagrad(initial_sum: float) -> optax.GradientTransformation:
  """Divides gradients by the root of their accumulated squares.

  The squares of each element are added up over all steps so far. This is the
  method of Duchi et al. 2011, as in tf.train.AdagradOptimizer.

  Args:
    initial_sum: the initial value of each sum. There is no epsilon, so only
      this value keeps the sums above 0.
  """

  def init(params: Params) -> AdagradState:
    return AdagradState(
      jax.tree.map(lambda p: jnp.full_like(p, initial_sum), params)
    )

  def update(
    grads: Updates, state: AdagradState, params: Params | None = None
  ) -> tuple[Updates, AdagradState]:
    del params
    sums = jax.tree.map(lambda g, a: a + g * g, grads, state.accumulator)
    updates = jax.tree.map(lambda g, a: g * jax.lax.rsqrt(a), grads, sums)
    return updates, AdagradState(sums)

  return optax.GradientTransformation(init, update)


def clip_each_variable(max_norm: float) -> optax.GradientTransformation:
  """Scales each variable's gradient down to a norm of at most `max_norm`.

  Each layer of a stack is a variable.
  """

  def clip(path: KeyPath, grad: jax.Array) -> jax.Array:
    axes = _axes_of_variable(path, grad)
    grad_norm = jnp.sqrt(jnp.square(grad).sum(axes, keepdims=True))
    return grad * (max_norm / jnp.maximum(grad_norm, max_norm))

  def update(updates: Updates, params: Params | None) -> Updates:
    del params
    return tree_map_with_path(clip, updates)

  return optax.stateless(update)


def build_adagrad(
  schedule: Schedule,
  name: str,
  initial_accumulator: float,
  gradient_scale: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """Builds ELMo's optimizer (allenai/bilm-tf bilm/training.py).

  Args:
    schedule: step -> learning rate (0.2 as published).
    name: "adagrad" clips by the global norm of all gradients, as the released
      code does; "adagrad_each" clips each variable's gradient by its norm.
    initial_accumulator: see `scale_by_adagrad` (1.0 as published).
    gradient_scale: the gradients are multiplied by this number. In the released
      code, the number is the length of a row, 20. It changes the updates,
      because the accumulator does not begin at 0.
    clip_norm: the largest norm of scaled gradients (10.0 as published); 0 means
      no clipping.

  Raises:
    ValueError: the initial accumulator is not above 0.
  """
  if initial_accumulator <= 0:
    raise ValueError(
      f"optimizer.initial_accumulator={initial_accumulator} must be above 0."
    )
  clip = optax.identity()
  if clip_norm:
    clip_functions = {
      "adagrad": optax.clip_by_global_norm,
      "adagrad_each": clip_each_variable,
    }
    # `clip_norm` is a norm of scaled gradients. The gradients are scaled only
    # after they are clipped, so divide `clip_norm` by the scale.
    clip = clip_functions[name](clip_norm / gradient_scale)
  return optax.chain(
    clip,
    optax.scale(gradient_scale),
    scale_by_adagrad(initial_accumulator),
    optax.scale_by_learning_rate(schedule),
  )


def optimizer_factory(name: str) -> Callable[..., optax.GradientTransformation]:
  """Returns the function that builds an optimizer.

  The arguments of the returned function are `schedule`, and the keys of the
  config's section `optimizer`.

  Args:
    name: the optimizer's name.
  """
  return build_adagrad if name in ADAGRAD_NAMES else build_optimizer


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
  decay_mask: Callable[[Params], Params] = decay_mask,
) -> optax.GradientTransformation:
  """Builds an optimizer of the Adam family.

  An update has these steps: clip by the global norm, Adam, weight decay, trust
  ratio, factors of the layers, learning rate.

  | name | Adam's bias | decayed | trust ratio |
  |---|---|---|---|
  | adamw_bert | not corrected | kernels, embeddings | no |
  | adamw | corrected | kernels, embeddings | no |
  | adamw_fairseq | corrected | all | no |
  | lamb | not corrected | kernels, embeddings | kernels, embeddings |
  | lamb_optax | corrected | kernels, embeddings | all |
  | muon | corrected | kernels, embeddings | no; see `scale_by_muon` |

  | name | source |
  |---|---|
  | adamw_bert | BERT and ELECTRA (google-research/bert optimization.py) |
  | adamw | Loshchilov & Hutter 2019 |
  | adamw_fairseq | RoBERTa and SpanBERT (fairseq optim/adam.py) |
  | lamb | ALBERT (google-research/albert lamb_optimizer.py) |
  | lamb_optax | `optax.lamb`, applied to each layer of a stack |

  fairseq has one group of parameters, so it decays all parameters. fairseq adds
  epsilon before the second moment's bias is corrected, and this code adds
  epsilon after the correction.

  Args:
    schedule: step -> learning rate.
    name: a name in the first table.
    b1: Adam's decay of the first moment.
    b2: Adam's decay of the second moment.
    epsilon: Adam's epsilon.
    weight_decay: the product of this number and the parameters is added to the
      update, before the trust ratio and the learning rate scale the sum.
    clip_norm: the largest global norm of the gradients; 0 means no clipping.
      The gradients are first reduced over all devices. BERT's code clips
      earlier, on each device.
    layer_decay: the decay of `layer_scales`; 1 means one rate for all layers.
    layer_rule: the rule of `layer_scales`.
    decay_mask: parameters -> a tree of bools, which is True at the parameters
      that the table calls kernels and embeddings. The default knows the names
      of this package's parameters.

  Raises:
    ValueError: the name or the rule is unknown, or `layer_decay` is out of
      range.
  """
  if not 0.0 < layer_decay <= 1.0:
    raise ValueError(f"optimizer.layer_decay={layer_decay} must be in (0, 1].")
  if layer_rule not in LAYER_RULES:
    raise ValueError(
      f"optimizer.layer_rule={layer_rule!r} is not one of"
      f" {', '.join(LAYER_RULES)}."
    )
  uncorrected_adam = scale_by_uncorrected_adam(b1, b2, epsilon)
  corrected_adam = scale_by_corrected_adam(b1, b2, epsilon)
  # Name -> Adam, the mask of weight decay, and the mask of the trust ratio
  # (None if there is no trust ratio).
  rules = {
    "adamw_bert": (uncorrected_adam, decay_mask, None),
    "adamw": (corrected_adam, decay_mask, None),
    "adamw_fairseq": (corrected_adam, mask_of_all, None),
    "lamb": (uncorrected_adam, decay_mask, decay_mask),
    "lamb_optax": (corrected_adam, decay_mask, mask_of_all),
    "muon": (scale_by_muon(b1, b2, epsilon), decay_mask, None),
  }
  if name not in rules:
    names = [*rules, *ADAGRAD_NAMES]
    raise ValueError(f"optimizer.name={name!r} is not one of {names}.")
  adam, mask_of_decay, mask_of_ratio = rules[name]
  clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
  decay = optax.add_decayed_weights(weight_decay, mask=mask_of_decay)
  scales = [scale_by_trust_ratio(mask_of_ratio)] if mask_of_ratio else []
  if layer_decay < 1.0:
    scales.append(scale_by_layer(layer_decay, layer_rule))
  rate = optax.scale_by_learning_rate(schedule)
  return optax.chain(clip, adam, decay, *scales, rate)


def build_schedule(
  total_steps: int, name: str, peak: float, warmup: float, decay: float = 1.0
) -> Schedule:
  """Builds a schedule: a linear warm-up, then the decay with the given name.

  * "bert": linear decay from the peak at step 0 to 0 at `total_steps`. The
    warm-up ends at the peak, so the rate then jumps down to the decayed rate
    (google-research/bert optimization.py).
  * "electra": the decay of "bert". During warm-up, the decayed rate is
    multiplied by the share of warm-up that is done, so there is no jump
    (google-research/electra model/optimization.py).
  * "linear": linear decay from the peak at the end of warm-up (fairseq, Hugging
    Face).
  * "cosine": half a cosine from the peak at the end of warm-up (Radford et al.
    2018, section 4.1).
  * "constant": the peak until the end (ELMo).
  * "trapezoid": the peak, then linear decay to 0 over the last steps, whose
    share is `decay` (Zhai et al. 2022, "Scaling Vision Transformers", section
    3.5).

  Args:
    total_steps: the run's number of optimizer steps, not of micro-batches.
    name: the name of a decay in this list.
    peak: the learning rate to which warm-up rises.
    warmup: the share of `total_steps` spent in warm-up, in [0, 1). "linear"
      rounds the number of warm-up steps up (Hugging Face). All other schedules
      round it down (google-research/bert run_classifier.py, also ELECTRA).
    decay: the share of `total_steps` in which "trapezoid" falls to 0, in
      (0, 1]. For every other schedule `decay` must be 1.

  Returns:
    Step -> learning rate; steps are counted from 0. The rate is never below 0.
    Unless the schedule is "constant", the rate is 0 from `total_steps` on.

  Raises:
    ValueError: the name is unknown, or a share is not allowed.
  """
  names = ("bert", "electra", "linear", "cosine", "constant", "trapezoid")
  if name not in names:
    raise ValueError(
      f"schedule.name={name!r} is not one of {', '.join(names)}."
    )
  if not 0.0 <= warmup < 1.0:
    raise ValueError(
      f"schedule.warmup={warmup} must be a share of total_steps, in [0, 1)."
    )
  if not 0.0 < decay <= 1.0:
    raise ValueError(
      f"schedule.decay={decay} must be a share of total_steps, in (0, 1]."
    )
  if name != "trapezoid" and decay != 1.0:
    raise ValueError(
      f"schedule.decay={decay} is only for schedule.name=trapezoid, but"
      f" schedule.name is {name}; remove schedule.decay."
    )
  unrounded_warmup = warmup * total_steps
  warmup_steps = (
    math.ceil(unrounded_warmup) if name == "linear" else int(unrounded_warmup)
  )
  decay_start = 0 if name in ("bert", "electra") else warmup_steps

  def schedule(step: ArrayLike) -> jax.Array:
    step = jnp.asarray(step, jnp.float32)
    decay_factor = (total_steps - step) / max(total_steps - decay_start, 1)
    decay_factor = jnp.maximum(decay_factor, 0.0)
    if name == "constant":
      decay_factor = jnp.ones_like(decay_factor)
    elif name == "trapezoid":
      decay_factor = (total_steps - step) / max(decay * total_steps, 1)
      decay_factor = jnp.clip(decay_factor, 0.0, 1.0)
    elif name == "cosine":
      decay_factor = 0.5 - 0.5 * jnp.cos(math.pi * decay_factor)
    warmup_factor = step / max(warmup_steps, 1)
    if name == "electra":
      warmup_factor = warmup_factor * decay_factor
    return peak * jnp.where(step < warmup_steps, warmup_factor, decay_factor)

  return schedule
