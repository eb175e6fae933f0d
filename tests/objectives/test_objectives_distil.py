"""Compares DistilBERT's objective with plain numpy, and tests its runs.

The fixture `batch` (conftest.py) has rows of 11, 6 and 0 tokens, of which 3, 2
and 0 are masked.
"""

import functools
import pathlib
import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from prepared import random_documents, write_prepared
from tiny_families import fast_jit, random_params
from tiny_runs import arrays_of_state, distillation_config, untimed_rows
from tiny_teachers import write_teacher

from bert_jax import objectives
from bert_jax.models import bert, distilbert, heads
from bert_jax.objectives import distil
from bert_jax.training import config as config_lib
from bert_jax.training import setup as setup_lib
from bert_jax.training import train
from bert_jax.weights import checkpoint, model_folder
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
ROOT = str(pathlib.Path(__file__).parents[2])
SIZES = dict(
  variant="base",
  vocab_size=37,
  hidden=16,
  num_layers=2,
  heads=2,
  mlp=32,
  max_positions=16,
  initializer_range=0.3,
)
STUDENT_OPTIONS = SIZES | {"family": "distilbert"}
TEACHER_OPTIONS = SIZES | {"family": "bert", "num_layers": 4}


def build_objective(**options):
  options = {"layers": (0, 2)} | options
  return objectives.build_function("distil")(
    STUDENT_OPTIONS, TEACHER_OPTIONS, **options
  )


@pytest.fixture(scope="module")
def model_params(batch):
  """Returns the student's and the teacher's parameters, drawn separately."""
  return tuple(
    random_params(heads.ForPreTraining(encoder, pairs=False), batch, seed=seed)
    for seed, encoder in enumerate(
      (
        distilbert.build(**SIZES),
        bert.build(**SIZES | {"num_layers": 4}),
      )
    )
  )


def measure(objective, params, teacher_params, batch, train=False):
  loss = fast_jit(objective.loss, static_argnums=5)
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, _ = loss(params, teacher_params, {}, batch, jax.random.key(0), train)
  return {name: float(total) for name, total in sums.items()}


def softmax(x):
  exponentials = np.exp(x - x.max(-1, keepdims=True))
  return exponentials / exponentials.sum(-1, keepdims=True)


def logits_of_all_positions(params, batch, encoder):
  """Returns float64 logits of all positions, and the last hidden states."""
  module = heads.ForPreTraining(encoder, pairs=False)
  shape = batch["input_ids"].shape
  columns = jnp.broadcast_to(jnp.arange(shape[1]), shape)
  outputs = fast_jit(module.apply)(
    {"params": params}, batch | {"mlm_positions": columns}
  )
  hidden, _ = fast_jit(encoder.apply)(
    {"params": params["encoder"]},
    batch["input_ids"],
    None,
    batch["sequence_ids"],
  )
  return np.asarray(outputs["mlm_logits"], np.float64), np.asarray(hidden)


@pytest.mark.parametrize("kl_tokens", ["all", "masked"])
def test_sums_agree_with_numpy(batch, model_params, kl_tokens, monkeypatch):
  monkeypatch.setattr(distil, "CHUNK_POSITIONS", 4)
  objective = build_objective(kl_tokens=kl_tokens)
  sums = measure(objective, *model_params, batch)
  student_logits, student_states = logits_of_all_positions(
    model_params[0], batch, distilbert.build(**SIZES)
  )
  teacher_logits, teacher_states = logits_of_all_positions(
    model_params[1], batch, bert.build(**SIZES | {"num_layers": 4})
  )
  teacher_probabilities, student_probabilities = (
    softmax(teacher_logits / 2.0),
    softmax(student_logits / 2.0),
  )
  kl_losses = 4.0 * (
    teacher_probabilities
    * np.log(teacher_probabilities / student_probabilities)
  ).sum(-1)
  masked_places = [(0, 1), (0, 4), (0, 8), (1, 2), (1, 3)]
  token_places = [
    (row, column) for row, count in ((0, 11), (1, 6)) for column in range(count)
  ]
  kl_places = token_places if kl_tokens == "all" else masked_places
  cosine_losses = [
    1
    - student_states[place]
    @ teacher_states[place]
    / np.linalg.norm(student_states[place])
    / np.linalg.norm(teacher_states[place])
    for place in token_places
  ]
  ids = np.asarray(batch["mlm_ids"])[[0, 0, 0, 1, 1], [0, 1, 2, 0, 1]]
  mlm_losses = [
    -np.log(softmax(student_logits[place])[i])
    for place, i in zip(masked_places, ids, strict=True)
  ]
  is_right = [
    student_logits[place].argmax() == i
    for place, i in zip(masked_places, ids, strict=True)
  ]
  expected = dict(
    kl_loss=sum(kl_losses[place] for place in kl_places),
    cosine_loss=sum(cosine_losses),
    mlm_loss=sum(mlm_losses),
    mlm_accuracy=sum(is_right),
  )
  assert sums == pytest.approx(expected, rel=2e-5)
  assert objective.divisors(batch) == dict(
    kl_loss=len(kl_places), cosine_loss=17, mlm_loss=5, mlm_accuracy=5
  )
  assert objective.coefficients == dict(
    kl_loss=5.0, mlm_loss=2.0, cosine_loss=1.0
  )


def test_an_equal_student_has_nothing_to_learn(batch, model_params):
  teacher_params = model_params[1]
  # With this option, the word table has more vectors than there are pieces.
  equal_config = TEACHER_OPTIONS | {"vocab_multiple": 8}
  objective = objectives.build_function("distil")(
    equal_config, equal_config, (0, 1, 2, 3)
  )
  teacher_params = nn.unbox(fast_jit(objective.init)(jax.random.key(3), batch))
  sums = measure(objective, teacher_params, teacher_params, batch)
  assert sums["kl_loss"] == 0.0
  assert sums["cosine_loss"] == pytest.approx(0.0, abs=1e-5)
  assert sums["mlm_loss"] > 0.0


def test_ids_of_padding_and_unused_slots_change_no_sum(batch, model_params):
  is_padding = np.asarray(batch["sequence_ids"]) == 0
  changed_ids = np.where(is_padding, 30, np.asarray(batch["input_ids"]))
  id_changes = np.where(np.asarray(batch["mlm_weights"]) > 0, 0, 7)
  changed_batch = batch | dict(
    input_ids=jnp.asarray(changed_ids, jnp.int32),
    mlm_ids=batch["mlm_ids"] + jnp.asarray(id_changes, jnp.int32),
  )
  objective = build_objective()
  sums, changed_sums = (
    measure(objective, *model_params, rows) for rows in (batch, changed_batch)
  )
  assert sums == pytest.approx(changed_sums, rel=1e-6)


def test_gradients_of_chunks_are_those_of_the_full_batch(
  batch, model_params, monkeypatch
):
  """Chunks give the full batch's gradients. The teacher gets no gradient."""

  def total(params, teacher_params):
    sums, _ = build_objective().loss(
      params, teacher_params, {}, batch, None, False
    )
    return 5.0 * sums["kl_loss"] + 2.0 * sums["mlm_loss"] + sums["cosine_loss"]

  full_gradients, _ = fast_jit(jax.grad(total, argnums=(0, 1)))(*model_params)
  monkeypatch.setattr(distil, "CHUNK_POSITIONS", 4)
  chunk_gradients, teacher_gradients = fast_jit(
    jax.grad(total, argnums=(0, 1))
  )(*model_params)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4),
    full_gradients,
    chunk_gradients,
  )
  has_gradient = {
    jax.tree_util.keystr(path): bool(np.any(x))
    for path, x in jax.tree_util.tree_leaves_with_path(full_gradients)
  }
  paths_without_gradient = [
    path for path, is_nonzero in has_gradient.items() if not is_nonzero
  ]
  assert paths_without_gradient == [
    "['encoder']['embeddings']['position']['embedding']"
  ]
  assert all(not np.any(x) for x in jax.tree.leaves(teacher_gradients))
  # The program holds the logits of 4 positions of a row at a time. It never
  # holds those of all 11 positions, or of 12, which are three chunks.
  jaxpr = str(jax.make_jaxpr(jax.grad(total))(*model_params))
  num_rows, length = batch["input_ids"].shape
  assert f"f32[{num_rows},4,37]" in jaxpr
  assert not any(f"[{num_rows},{n},37]" in jaxpr for n in (length, 12))


def test_only_the_student_has_dropout(batch, model_params):
  objective = build_objective()
  sums_without, sums_with = (
    measure(objective, *model_params, batch, train) for train in (False, True)
  )
  assert all(
    sums_without[name] != sums_with[name] for name in ("kl_loss", "cosine_loss")
  )
  objective_without_dropout = objectives.build_function("distil")(
    STUDENT_OPTIONS | dict(dropout=0.0, attention_dropout=0.0),
    TEACHER_OPTIONS,
    (0, 2),
  )
  sums = measure(objective_without_dropout, *model_params, batch, True)
  assert sums == pytest.approx(sums_without, rel=1e-6)


def test_the_student_begins_with_layers_of_its_teacher(batch, model_params):
  params, teacher_params = model_params
  initial_params = build_objective(layers=(3, 1)).inherit(
    params, teacher_params
  )
  embeddings = initial_params["encoder"]["embeddings"]
  assert "segment" not in embeddings
  for name, table in embeddings.items():
    jax.tree.map(
      np.testing.assert_array_equal,
      table,
      teacher_params["encoder"]["embeddings"][name],
    )
  jax.tree.map(
    np.testing.assert_array_equal, initial_params["mlm"], teacher_params["mlm"]
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a, b[np.array([3, 1])]),
    initial_params["encoder"]["layers"],
    teacher_params["encoder"]["layers"],
  )
  assert build_objective(layers=(), freeze_positions=False).inherit is None


@pytest.mark.parametrize(
  # Each case changes options of the student, of the teacher or of the
  # objective.
  "model, teacher, options, pattern",
  [
    (dict(family="gpt"), {}, {}, "model.family='gpt' must be .*: bert"),
    ({}, dict(family="albert"), {}, "teacher.model.family='albert'"),
    # The rows of RoBERTa have another format than those of DistilBERT.
    ({}, dict(family="roberta"), {}, "cannot learn .*choose roberta"),
    (dict(hidden=8), {}, {}, "model.hidden=8, .*model.hidden=16"),
    ({}, dict(activation="relu"), {}, "model.activation=gelu, .* is relu"),
    ({}, dict(norm_epsilon=0.1), {}, "model.norm_epsilon=1e-12, .* is 0.1"),
    (dict(mlp=8), {}, {}, r"model.mlp=8.*32.*objective.layers=\(\)"),
    ({}, dict(vocab_size=9), {}, "model.vocab_size=37, .* 9"),
    ({}, {}, dict(layers=(0, 2, 3)), "names 3 layers, but model.num_layers=2"),
    ({}, {}, dict(layers=(0, 4)), "4 is no layer.* 0 to 3"),
    ({}, {}, dict(layers=(0, True)), "True is no layer"),
    ({}, {}, dict(temperature=0), "temperature=0 must be above 0"),
    ({}, {}, dict(kl_tokens="some"), "'some' is not one of all, masked"),
    ({}, {}, dict(layers=()), "freeze_positions=True .*positions=False"),
    (
      {},
      {},
      dict(kl_weight=0, mlm_weight=0, cosine_weight=0),
      "all 0, so nothing would be learnt",
    ),
  ],
)
def test_bad_sizes_and_options_are_refused(model, teacher, options, pattern):
  with pytest.raises(ValueError, match=pattern):
    objectives.build_function("distil")(
      STUDENT_OPTIONS | model,
      TEACHER_OPTIONS | teacher,
      **{"layers": (0, 2)} | options,
    )


@pytest.fixture(scope="module")
def data_and_teacher(tmp_path_factory):
  path = tmp_path_factory.mktemp("data")
  prepared = write_prepared(
    path / "prepared", random_documents(20, seed=0), random_documents(6, seed=1)
  )
  return prepared, write_teacher(path / "teacher", prepared)


def test_a_restarted_run_equals_an_uninterrupted_run(
  data_and_teacher, tmp_path, compilation_cache, capsys
):
  """A run continues from step 4, with its teacher moved to another folder.

  Its arrays and its lines of metrics.jsonl are those of the whole run. A
  restart with a different teacher is refused. `open_model` opens the run.
  """
  full_run, restarted_run = str(tmp_path / "whole"), str(tmp_path / "again")
  state = train.run(distillation_config(data_and_teacher), full_run)
  assert "held-out KL to the teacher" in capsys.readouterr().out
  shutil.copytree(full_run, restarted_run)
  shutil.rmtree(f"{restarted_run}/checkpoints/8")
  moved_teacher = str(tmp_path / "moved")
  shutil.copytree(data_and_teacher[1], moved_teacher)
  restarted_state = train.run(
    distillation_config((data_and_teacher[0], moved_teacher)), restarted_run
  )
  expected_arrays, restarted_arrays = (
    arrays_of_state(state),
    arrays_of_state(restarted_state),
  )
  for key, array in expected_arrays.items():
    np.testing.assert_array_equal(array, restarted_arrays[key], err_msg=key)
  assert untimed_rows(full_run) == untimed_rows(restarted_run)
  train_lines = [
    line for line in untimed_rows(full_run) if line["split"] == "train"
  ]
  assert all(0 < line["padding"] < 1 for line in train_lines)
  metric_names = {"kl_loss", "mlm_loss", "cosine_loss", "mlm_accuracy"}
  assert all(metric_names <= line.keys() for line in untimed_rows(full_run))
  assert not any("teacher" in key for key in expected_arrays)
  with checkpoint.Checkpointer.for_reading(full_run) as checkpointer:
    # The metadata has the teacher's SHA-256 digest, which has 64 hex digits.
    assert len(checkpointer.read_metadata(8)["teacher"]) == 64

  shutil.rmtree(f"{restarted_run}/checkpoints/8")
  other_teacher = write_teacher(tmp_path / "other", data_and_teacher[0], seed=1)
  with pytest.raises(ValueError, match="is not the teacher .*digests differ"):
    train.run(
      distillation_config((data_and_teacher[0], other_teacher)), restarted_run
    )

  opened_model = open_model(full_run)
  assert opened_model.module.encoder.num_layers == 2
  reopened_model = open_model(full_run)
  assert reopened_model.config["family"] == "distilbert"
  word_table = state.params["encoder"]["embeddings"]["word"]["embedding"]
  np.testing.assert_array_equal(
    reopened_model.params["encoder"]["embeddings"]["word"]["embedding"],
    word_table,
  )


@pytest.mark.slow
def test_a_run_can_be_a_teacher_and_losses_of_weight_0_are_only_logged(
  data_and_teacher, tmp_path, compilation_cache
):
  """A run saves its student, which can be the teacher of a second run.

  A loss of weight 0 is in the log, but not in the total loss.
  """
  first_run = str(tmp_path / "first")
  mlm_changes = {
    "objective.kl_weight": 0.0,
    "objective.cosine_weight": 0.0,
    "objective.mlm_weight": 1.0,
    "total_steps": 4,
  }
  train.run(distillation_config(data_and_teacher, **mlm_changes), first_run)
  last_heldout_line = [
    line for line in untimed_rows(first_run) if line["split"] == "heldout"
  ][-1]
  assert last_heldout_line["loss"] == pytest.approx(
    last_heldout_line["mlm_loss"]
  )
  assert (
    last_heldout_line["kl_loss"] > 0 and last_heldout_line["cosine_loss"] > 0
  )
  config = distillation_config(
    (data_and_teacher[0], first_run),
    **mlm_changes,
    **{
      "objective.layers": (1, 0),
      "teacher.model.family": "distilbert",
      "teacher.model.num_layers": 2,
    },
  )
  setup = setup_lib.build(config_lib.parse(config))
  teacher = setup.config.teacher
  assert setup.teacher_digest and teacher.model.dropout == 0.1
  with checkpoint.Checkpointer.for_reading(first_run) as checkpointer:
    saved_params, _ = checkpointer.restore_params(None, setup.teacher_params)
  jax.tree.map(
    np.testing.assert_array_equal, saved_params, setup.teacher_params
  )


def test_teachers_that_do_not_fit_are_refused(data_and_teacher, tmp_path):
  prepared, teacher = data_and_teacher
  raises_error = functools.partial(pytest.raises, ValueError)
  with raises_error(match="teacher.path is empty; pass --config.teacher.path"):
    setup_lib.build(config_lib.parse(distillation_config((prepared, ""))))
  with raises_error(match="there is no folder /no/such"):
    setup_lib.build(
      config_lib.parse(distillation_config((prepared, "/no/such")))
    )
  with raises_error(
    match="has hidden=16, num_layers=4, but .*hidden=8.*--config"
  ):
    sizes = {"teacher.model.hidden": 8, "teacher.model.num_layers": 3}
    setup_lib.build(
      config_lib.parse(distillation_config(data_and_teacher, **sizes))
    )
  with raises_error(match="write hidden=16, num_layers=4.* into teacher.model"):
    config = distillation_config(data_and_teacher)
    config["teacher"]["model"] = {"family": "bert", "variant": "base"}
    setup_lib.build(config_lib.parse(config))
  with raises_error(
    match="weight_decay=0.1 would shrink .*freeze_positions=True"
  ):
    setup_lib.build(
      config_lib.parse(
        distillation_config(data_and_teacher, **{"optimizer.weight_decay": 0.1})
      )
    )
  with raises_error(match="teacher.model.variant='nope' is not one of"):
    setup_lib.build(
      config_lib.parse(
        distillation_config(
          data_and_teacher, **{"teacher.model.variant": "nope"}
        )
      )
    )
  with raises_error(match="family=bert, but .*teacher.model.family=roberta"):
    setup_lib.build(
      config_lib.parse(
        distillation_config(
          data_and_teacher, **{"teacher.model.family": "roberta"}
        )
      )
    )
  other_teacher = str(tmp_path / "other")
  shutil.copytree(teacher, other_teacher)
  # With its digests, the changed folder would be refused as damaged.
  tiny_models.delete_digests(other_teacher)
  vocab_path = pathlib.Path(other_teacher, "vocab.txt")
  vocab_path.write_text(vocab_path.read_text().replace("w9\n", "x9\n"))
  with raises_error(
    match="prepared: its piece 9 is 'w9', but in teacher.* it is 'x9'"
  ):
    setup_lib.build(
      config_lib.parse(distillation_config((prepared, other_teacher)))
    )
  vocab_path.unlink()
  with raises_error(match="has no vocabulary"):
    setup_lib.build(
      config_lib.parse(distillation_config((prepared, other_teacher)))
    )
  config = distillation_config(data_and_teacher)
  del config["teacher"]
  with raises_error(match="config.teacher is missing, but objective 'distil'"):
    setup_lib.make_objective_and_optimizer(config_lib.parse(config))
  config = distillation_config(data_and_teacher) | {
    "objective": {"name": "mlm", "pairs": False}
  }
  with raises_error(match="objective 'mlm' learns from no teacher; remove"):
    setup_lib.make_objective_and_optimizer(config_lib.parse(config))


@pytest.mark.parametrize(
  "name, num_rows, num_pieces",
  [
    # num_rows counts the vectors of the teacher's word table, and num_pieces
    # its pieces. The data have 64 pieces. (72, 64): the table has 8 vectors
    # without a piece. (70, 70): the teacher has 6 pieces that the data lack.
    # (72, 70): both.
    ("distilbert:base", 72, 64),
    ("distilbert:base", 70, 70),
    ("distilbert:roberta", 72, 70),
    ("tinybert:4x312", 72, 64),
  ],
)
def test_a_teacher_is_cut_to_the_pieces_of_the_data(
  data_and_teacher, tmp_path, capsys, name, num_rows, num_pieces
):
  prepared, _ = data_and_teacher
  family = "roberta" if "roberta" in name else "bert"
  options = {"padding_id": 0} if family == "roberta" else {}
  larger_folder = write_teacher(
    tmp_path / "larger", prepared, family, vocab_size=num_rows, **options
  )
  tiny_models.delete_digests(larger_folder)
  with pathlib.Path(larger_folder, "vocab.txt").open("a") as vocab_file:
    vocab_file.writelines(f"more{i}\n" for i in range(num_pieces - 64))
  weights = model_folder.read(larger_folder)
  arrays = dict(weights.arrays)
  word_path = "encoder/embeddings/word/embedding"
  assert arrays[word_path].shape == (num_rows, 16)
  arrays |= {path: arrays[path][:64] for path in (word_path, "mlm/bias")}
  cut_model = weights.config["model"] | {"vocab_size": 64}
  files = {"vocab.txt": pathlib.Path(prepared, "vocab.txt").read_bytes()}
  exact_folder = str(tmp_path / "exact")
  model_folder.write(
    exact_folder,
    model_folder.Weights(weights.config | {"model": cut_model}, arrays, files),
  )
  changes = {"teacher.model.family": family}
  if family == "roberta":
    changes |= {"objective.layers": (), "objective.freeze_positions": False}
    changes |= {"model.padding_id": 0, "model.max_positions": 34}
  if name.startswith("tiny"):
    changes |= {"model.num_layers": 2, "model.heads": 2}
  setups = []
  for teacher in (exact_folder, larger_folder):
    config = distillation_config((prepared, teacher), name, **changes)
    if name.startswith("tiny"):
      del config["objective"]["layers"]
    setups.append(setup_lib.build(config_lib.parse(config)))
    assert setups[-1].config.teacher.model.vocab_size == 64
    message = f"the teacher has {num_rows:,} rows, and the data has 64 pieces"
    assert (message in capsys.readouterr().out) == (teacher == larger_folder)
  jax.tree.map(
    np.testing.assert_array_equal,
    setups[0].teacher_params,
    setups[1].teacher_params,
  )
  assert setups[0].teacher_digest == setups[1].teacher_digest


def test_a_teacher_with_too_few_vectors_or_pieces_is_refused(
  data_and_teacher, tmp_path
):
  prepared, _ = data_and_teacher
  smaller_teacher = write_teacher(tmp_path / "rows", prepared, vocab_size=60)
  with pytest.raises(ValueError, match="has 60 rows for the 64 pieces of"):
    setup_lib.build(
      config_lib.parse(distillation_config((prepared, smaller_teacher)))
    )
  tiny_models.delete_digests(smaller_teacher)
  vocab_path = pathlib.Path(smaller_teacher, "vocab.txt")
  pieces = vocab_path.read_text().split()
  vocab_path.write_text("\n".join(pieces[:60]) + "\n")
  with pytest.raises(
    ValueError, match="piece 60 is 'w60', and teacher.*only 60"
  ):
    setup_lib.build(
      config_lib.parse(distillation_config((prepared, smaller_teacher)))
    )
