"""Tests train and evaluation steps: micro-batches, empty rows, logging."""

import functools
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax import objectives
from bert_jax.devices import sharding
from bert_jax.objectives.base import Objective, cross_entropy
from bert_jax.training import evaluate, logging, optim, steps
from bert_jax.training.state import TrainState, init_state

MODEL = dict(family="bert", variant="tiny", vocab_size=40, hidden=32, mlp=64)
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)


def make_batch(target_counts, length=12, seed=0):
  """Returns a batch of random rows; row i has target_counts[i] targets."""
  rng = np.random.default_rng(seed)
  num_rows, num_slots = len(target_counts), max(max(target_counts), 1)
  ids = rng.integers(5, 40, (num_rows, length), dtype=np.int32)
  positions = np.stack(
    [rng.permutation(length)[:num_slots] for _ in target_counts]
  )
  is_target = np.arange(num_slots) < np.array(target_counts)[:, None]
  return {
    "input_ids": ids,
    "segment_ids": np.tile(np.int32(np.arange(length) >= 6), (num_rows, 1)),
    "sequence_ids": np.ones_like(ids),
    "mlm_positions": positions.astype(np.int32),
    "mlm_ids": rng.integers(5, 40, (num_rows, num_slots), dtype=np.int32),
    "mlm_weights": is_target.astype(np.float32),
    "pair_labels": rng.integers(0, 2, (num_rows, 1), dtype=np.int32),
    "pair_weights": np.ones((num_rows, 1), np.float32),
    "cls_positions": np.zeros((num_rows, 1), np.int32),
  }


@pytest.fixture(scope="module")
def objective():
  return objectives.build("mlm", MODEL | NO_DROPOUT, options={})


@pytest.fixture(scope="module")
def params(objective):
  boxed_params = fast_jit(objective.init)(jax.random.key(0), make_batch([1, 1]))
  return nn.unbox(boxed_params)


# id(objective) -> the objective and its jitted `accumulate_gradients`. The
# objective is kept so that no later object gets its id.
JITTED_BY_OBJECTIVE = {}


def accumulated_gradients(objective, params, batch, micro_batches=1):
  state = TrainState(jnp.int32(0), params, opt_state={}, carry={})
  if id(objective) not in JITTED_BY_OBJECTIVE:
    accumulate = functools.partial(steps.accumulate_gradients, objective)
    JITTED_BY_OBJECTIVE[id(objective)] = (
      objective,
      fast_jit(accumulate, static_argnums=4),
    )
  _, accumulate = JITTED_BY_OBJECTIVE[id(objective)]
  return accumulate(state, {}, batch, jax.random.key(0), micro_batches)


def assert_close(a, b, atol):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_micro_batches_add_up_to_the_batch(objective, params, micro_batches):
  """The rows have unequal numbers of targets, and one row has no target."""
  batch = make_batch([11, 1, 2, 7, 0, 3, 1, 10])
  result_of_batch = accumulated_gradients(objective, params, batch)
  result_of_micro_batches = accumulated_gradients(
    objective, params, batch, micro_batches
  )
  assert_close(result_of_batch[0], result_of_micro_batches[0], atol=1e-6)
  assert_close(result_of_batch[1], result_of_micro_batches[1], atol=1e-6)


def toy_objective():
  """Returns an objective with the loss `kernel` times the sum of `sum`."""
  return Objective(
    init=lambda rng, batch: {"kernel": jnp.ones(())},
    divisors=lambda batch: {"loss_a": batch["count"].sum()},
    loss=lambda params, teacher_params, carry, batch, rng, train: (
      {"loss_a": params["kernel"] * batch["sum"].sum()},
      carry,
    ),
    coefficients={"loss_a": 1.0},
    flops=lambda batch: 0.0,
  )


@pytest.mark.parametrize(
  "sums, counts, mean",
  [((11.0, 303.0), (11.0, 101.0), 2.803571), ((2.0, 12.0), (2.0, 3.0), 2.8)],
)
def test_tokens_have_the_same_weight_in_every_micro_batch(sums, counts, mean):
  """A mean of the means of the two micro-batches would be 2.0 or 2.5."""
  batch = {"sum": jnp.array(sums), "count": jnp.array(counts)}
  grads, means, _ = accumulated_gradients(
    toy_objective(), {"kernel": jnp.ones(())}, batch, micro_batches=2
  )
  assert float(means["loss_a"]) == pytest.approx(mean, abs=1e-6)
  assert float(grads["kernel"]) == pytest.approx(mean, abs=1e-6)


def test_batch_without_targets_has_zero_loss_and_gradient(objective, params):
  """The mean over no targets is 0, not 0/0."""
  batch = make_batch([0, 0]) | {"pair_weights": np.zeros((2, 1), np.float32)}
  grads, means, _ = accumulated_gradients(objective, params, batch)
  assert all(float(mean) == 0.0 for mean in means.values())
  assert all(
    not np.asarray(gradient).any() for gradient in jax.tree.leaves(grads)
  )


def test_row_without_targets_adds_nothing(objective, params):
  """A row whose weights are all 0 changes no mean and no gradient."""
  batch = make_batch([0, 5])
  batch["pair_weights"][0] = 0.0
  sums_with_row = accumulated_gradients(objective, params, batch)
  sums_without_row = accumulated_gradients(
    objective, params, {key: array[1:] for key, array in batch.items()}
  )
  assert_close(sums_with_row[:2], sums_without_row[:2], atol=1e-6)


def sign_optimizer(schedule):
  """Returns an optimizer whose update is minus the rate times the sign."""
  return optim.build_optimizer(
    schedule,
    "adamw_bert",
    b1=0.0,
    b2=0.0,
    epsilon=1e-9,
    weight_decay=0.0,
    clip_norm=0.0,
  )


def test_the_schedule_counts_steps_not_micro_batches():
  """Makes 3 steps of 4 micro-batches; the rates must be 0, 0.1 and 0.2."""
  schedule = optim.build_schedule(11, "linear", peak=1.0, warmup=10 / 11)
  optimizer = sign_optimizer(schedule)
  batch = {key: jnp.ones(4) for key in ("sum", "count", "sequence_ids")}
  params = {"kernel": jnp.zeros(())}
  state = TrainState(
    jnp.int32(0), params, opt_state=optimizer.init(params), carry={}
  )
  step = steps.make_train_step(
    toy_objective(), optimizer, schedule, num_micro_batches=4
  )
  rates, kernels = [], []
  for _ in range(3):
    state, metrics = step(state, {}, batch, jax.random.key(0))
    rates.append(float(metrics["learning_rate"]))
    kernels.append(float(state.params["kernel"]))
    assert float(metrics["tokens"]) == 4
  np.testing.assert_allclose(rates, [0.0, 0.1, 0.2], atol=1e-6)
  # Each update is the rate times -1, since the gradient is 1.
  np.testing.assert_allclose(kernels, [0.0, -0.1, -0.3], atol=1e-6)
  assert int(state.step) == 3


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_padding_is_a_share_of_all_positions(micro_batches):
  """The metric `padding` is the share of the padding in the whole batch."""
  schedule = optim.build_schedule(11, "linear", peak=1.0, warmup=0.5)
  optimizer = sign_optimizer(schedule)
  lengths = np.array([8, 1, 3, 0])
  # As in packed rows, some tokens have sequence numbers above 1.
  sequences = (np.arange(8) < lengths[:, None]) * np.array([[2], [1], [3], [1]])
  batch = {key: jnp.ones(4) for key in ("sum", "count")}
  batch["sequence_ids"] = jnp.asarray(sequences, jnp.int32)
  params = {"kernel": jnp.zeros(())}
  state = TrainState(
    jnp.int32(0), params, opt_state=optimizer.init(params), carry={}
  )
  step = steps.make_train_step(
    toy_objective(), optimizer, schedule, micro_batches
  )
  _, metrics = jax.jit(step)(state, {}, batch, jax.random.key(0))
  assert float(metrics["tokens"]) == 12
  assert float(metrics["padding"]) == 1 - 12 / 32


def test_padding_is_logged(tmp_path, capsys, monkeypatch):
  """Logs the padding of two steps.

  metrics.jsonl, the printed line and TensorBoard must have its mean.
  """
  step_sums = logging.StepSums()
  row = {"loss": 1.0, "grad_norm": 1.0, "learning_rate": 0.1, "tokens": 5.0}
  row["flops_per_step"] = 1.0
  step_sums.add(1, row | {"padding": 0.125})
  step_sums.add(2, row | {"padding": 0.5, "tokens": 7.0})
  log, board_values = (
    logging.Logger(str(tmp_path), start_step=0, total_steps=10),
    {},
  )
  monkeypatch.setattr(
    log._event_writer,
    "write_event",
    lambda event: board_values.update(
      {scalar.tag: scalar.simple_value for scalar in event.summary.value}
    ),
  )
  log.log_training(2, *step_sums.take_means())
  log.close()
  (logged_row,) = logging.read_rows(str(tmp_path / "metrics.jsonl"))
  assert logged_row["padding"] == board_values["train/padding"] == 0.3125
  rate = logged_row["steps_per_second"]
  assert logged_row["tokens_per_second"] == pytest.approx(6 * rate)
  assert " tokens/s padding 31.2% " in capsys.readouterr().out


def test_dropout_differs_by_step_seed_and_micro_batch():
  objective = objectives.build("mlm", MODEL | dict(dropout=0.5), options={})
  batch = make_batch([3, 3])
  params = nn.unbox(fast_jit(objective.init)(jax.random.key(0), batch))
  sums_of = fast_jit(
    lambda key: objective.loss(params, {}, {}, batch, key, True)[0]
  )

  def loss(key):
    return float(sums_of(key)["mlm_loss"])

  key = jax.random.key(0)
  losses = [loss(jax.random.fold_in(key, step)) for step in range(3)]
  assert len(set(losses)) == 3
  assert loss(jax.random.fold_in(key, 1)) == losses[1]
  other_key = jax.random.fold_in(jax.random.key(1), 0)
  assert loss(other_key) != losses[0]


def test_cross_entropy_of_simple_logits():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
  losses = cross_entropy(logits + 3.0, jnp.array([0, 2]))
  np.testing.assert_allclose(losses, [np.log(2), -np.log(0.8)], rtol=1e-6)


class HeldoutRows:
  """Holds the rows of a batch as held-out rows; all later rows are zeros."""

  def __init__(self, batch):
    self._batch = batch

  def __len__(self):
    return len(self._batch["input_ids"])

  def read(self, first, count):
    def rows(x):
      slice_of_x = x[first : first + count]
      padding = [(0, count - len(slice_of_x))] + [(0, 0)] * (x.ndim - 1)
      return np.pad(slice_of_x, padding)

    return {key: rows(x) for key, x in self._batch.items()}


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7, 10, 16])
def test_the_means_of_an_evaluation_do_not_depend_on_the_batch_size(
  objective, params, batch_size
):
  """The means are equal even if the last batch is incomplete."""
  batch = make_batch([4, 1, 2, 0, 3, 5, 1, 1, 2, 4])
  state = TrainState(jnp.int32(0), params, opt_state={}, carry={})
  mesh = sharding.make_mesh(data=1) if jax.device_count() == 1 else None
  with sharding.use_mesh(mesh):
    step = fast_jit(steps.make_eval_step(objective))
    metrics = evaluate.evaluate(
      step,
      objective.coefficients,
      state,
      teacher_params={},
      heldout=HeldoutRows(batch),
      batch_size=batch_size,
      mesh=mesh,
    )
  _, means, _ = accumulated_gradients(objective, params, batch)
  for name, mean in means.items():
    assert metrics[name] == pytest.approx(float(mean), abs=1e-5), name
  assert metrics["loss"] == pytest.approx(
    metrics["mlm_loss"] + metrics["nsp_loss"]
  )


def test_the_unigram_baseline_equals_its_formula():
  # After one is added to each count, the shares are 1/6, 2/6 and 3/6.
  counts = np.array([0, 1, 2])
  batch = {
    "input_ids": np.zeros((1, 2), np.int32),
    "mlm_ids": np.array([[2, 0, 1]]),
    "mlm_weights": np.array([[1.0, 1.0, 0.0]]),
  }
  expected = -(np.log(3 / 6) + np.log(1 / 6)) / 2
  baseline = evaluate.unigram_baseline(HeldoutRows(batch), counts)
  assert baseline == pytest.approx(expected)


def test_summary_compares_each_loss_with_guessing():
  batch = {
    "input_ids": np.zeros((1, 3), np.int32),
    "lm_ids": np.array([[0, 1, 0]]),
    "lm_weights": np.array([[1.0, 1.0, 0.0]]),
  }
  means = dict(lm_loss=0.25, rtd_loss=0.29, rtd_replaced=0.1)
  means |= dict(rtd_flagged=0.08, rtd_found=0.06, sop_loss=0.6)
  means |= dict(sop_accuracy=0.75)
  assert evaluate.summary_lines(
    HeldoutRows(batch), np.array([1, 1]), means
  ) == [
    "unigram cross-entropy: 0.6931 nats",
    "held-out LM loss: 0.2500 nats",
    "held-out SOP loss: 0.6000 nats, accuracy 0.7500",
    "share of replaced tokens: 0.1000; its entropy, the loss of guessing:"
    " 0.3251 nats",
    "held-out RTD loss: 0.2900 nats, 10.8% below this entropy",
    "replaced tokens: precision 0.7500, recall 0.6000",
  ]
  assert evaluate.binary_entropy(0.0) == evaluate.binary_entropy(1.0) == 0.0


def test_step_sums_names_the_step_of_a_loss_that_is_not_finite():
  step_sums = logging.StepSums()
  metrics = {"loss": 1.0, "grad_norm": 1.0, "learning_rate": 0.1, "tokens": 5.0}
  step_sums.add(7, metrics)
  step_sums.add(8, metrics | {"loss": float("nan")})
  with pytest.raises(FloatingPointError, match="step 8"):
    step_sums.value_to_save()


def test_step_sums_continue_after_a_restart():
  metrics = [
    {"loss": loss, "grad_norm": 1.0, "learning_rate": loss / 10, "tokens": 5.0}
    for loss in (1.0, 2.0, 6.0)
  ]
  step_sums = logging.StepSums()
  step_sums.add(1, metrics[0])
  restored_sums = logging.StepSums(step_sums.value_to_save())
  restored_sums.add(2, metrics[1])
  restored_sums.add(3, metrics[2])
  means, tokens = restored_sums.take_means()
  assert means == {"loss": 3.0, "grad_norm": 1.0, "learning_rate": 0.6}
  assert tokens == 5.0


def test_every_axis_of_the_state_has_a_rule():
  """Every axis of a parameter has a rule for sharding.

  The other rules are for axes of activations, and for ALBERT's groups.
  """
  objective = objectives.build("mlm", MODEL, options={})
  boxed_params = jax.eval_shape(
    objective.init, jax.random.key(0), make_batch([1, 1])
  )
  specs = jax.tree.leaves(
    nn.get_partition_spec(boxed_params), is_leaf=lambda x: hasattr(x, "index")
  )
  parameter_axes = {axis for axes in specs for axis in axes if axis}
  axes_with_rules = {axis for axis, _ in sharding.AXIS_RULES}
  assert parameter_axes <= axes_with_rules
  assert axes_with_rules - parameter_axes == {
    "batch",
    "length",
    "embed_activation",
    "layer_groups",
  }
  optimizer = optim.build_optimizer(
    lambda s: 0.1,
    "adamw_bert",
    b1=0.9,
    b2=0.999,
    epsilon=1e-6,
    weight_decay=0.01,
    clip_norm=1.0,
  )
  mesh = sharding.make_mesh()
  with sharding.use_mesh(mesh):
    state = init_state(
      objective, optimizer, mesh, seed=0, batch=make_batch([1, 1])
    )
  assert int(state.step) == 0


def test_a_step_is_added_after_all_earlier_steps_are_done():
  computed_steps = []

  def slow_loss(number):
    time.sleep(0.02)
    computed_steps.append(int(number))
    return np.float32(1.0)

  @jax.jit
  def step(number):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    loss = jax.pure_callback(slow_loss, shape, number)
    names = ("loss", "grad_norm", "learning_rate", "tokens")
    return dict.fromkeys(names, loss)

  step_sums = logging.StepSums()
  for number in range(1, 7):
    step_sums.add(number, step(number))
    # After a step is added, all steps before it are done.
    assert set(range(1, number)) <= set(computed_steps)
  assert step_sums.value_to_save()["count"] == 6
