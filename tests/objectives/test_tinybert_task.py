"""Compares losses of TinyBERT's task stages with numpy; runs both stages."""

import copy
import functools
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_families
import tiny_tasks
from tiny_families import fast_jit, random_params

from bert_jax import objectives
from bert_jax.cli import configs
from bert_jax.models import bert, task_heads, tinybert
from bert_jax.objectives import tinybert_task
from bert_jax.tasks import batches
from bert_jax.training import config as config_lib
from bert_jax.training import logging, teacher, train
from bert_jax.use import predict
from bert_jax.weights import model_folder, runs

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
ROOT = str(pathlib.Path(__file__).parents[2])
CONFIG_NAME = "tinybert:sst2"
SIZES = dict(vocab_size=37, heads=2, max_positions=16, initializer_range=0.3)
STUDENT_OPTIONS = SIZES | dict(variant="4x312", hidden=8, num_layers=2, mlp=16)
TEACHER_OPTIONS = SIZES | dict(variant="base", hidden=12, num_layers=4, mlp=24)
LENGTHS = (9, 5, 7, 0)


def build_objective(
  kind="classification", student=None, teacher=None, **options
):
  return objectives.build_function("tinybert_task")(
    STUDENT_OPTIONS | {"family": "tinybert"} | (student or {}),
    TEACHER_OPTIONS | {"family": "bert"} | (teacher or {}),
    kind=kind,
    labels=("a", "b", "c") if kind == "classification" else (),
    **options,
  )


def build_module(build_encoder, sizes, kind):
  head = task_heads.head_options(kind, bert.POOLING, num_labels=3, dropout=None)
  return task_heads.build(
    task_heads.TASK_BY_KIND[kind], build_encoder(**sizes), head
  )


@pytest.fixture(scope="module")
def batch():
  """Returns rows of 9, 5, 7 and 0 tokens; only the first two have a label."""
  rng = np.random.default_rng(0)
  is_token = np.arange(9) < np.array(LENGTHS)[:, None]
  in_second_text = is_token & (np.arange(9) >= 4)
  arrays = dict(
    input_ids=rng.integers(1, 37, is_token.shape) * is_token,
    segment_ids=in_second_text,
    sequence_ids=is_token,
    labels=np.array([2, 0, 0, 0]),
  )
  arrays = {key: jnp.asarray(x, jnp.int32) for key, x in arrays.items()}
  return arrays | {"label_weights": jnp.array([1.0, 1.0, 0.0, 0.0])}


@functools.cache
def objective_and_loss(has_teacher_sizes=False, **options):
  """Returns an objective and its jitted loss.

  If `has_teacher_sizes`, the student has the teacher's family and sizes.
  """
  student = TEACHER_OPTIONS | {"family": "bert"} if has_teacher_sizes else None
  objective = build_objective(student=student, **options)
  return objective, fast_jit(objective.loss, static_argnums=5)


def loss_sums(objective_and_jitted_loss, params, teacher_params, batch):
  _, loss = objective_and_jitted_loss
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, _ = loss(params, teacher_params, {}, batch, jax.random.key(0), False)
  return {name: float(total) for name, total in sums.items()}


@pytest.fixture(scope="module")
def models_by_kind(batch):
  """Returns kind -> [student, teacher]; each is a pair (module, parameters)."""
  models_of_kind = {}
  for kind in tinybert_task.KINDS:
    modules = (
      build_module(tinybert.build, STUDENT_OPTIONS, kind),
      build_module(bert.build, TEACHER_OPTIONS, kind),
    )
    models_of_kind[kind] = [
      (module, random_params(module, batch, seed=seed))
      for seed, module in enumerate(modules)
    ]
  return models_of_kind


@pytest.fixture(scope="module")
def layer_stage_params(batch, models_by_kind):
  """Returns the student's and the teacher's parameters in stage "layers"."""
  student = tinybert.ForDistillation(
    tinybert.build(**STUDENT_OPTIONS), width=12, maps="shared"
  )
  teacher_params = {
    "encoder": models_by_kind["classification"][1][1]["encoder"]
  }
  return random_params(student, batch), teacher_params


def model_logits(model, batch):
  logits = fast_jit(model[0].apply)({"params": model[1]}, batch)
  return np.asarray(logits, np.float64)


def softmax(x):
  exponentials = np.exp(x - x.max(-1, keepdims=True))
  return exponentials / exponentials.sum(-1, keepdims=True)


def test_losses_of_class_predictions_agree_with_numpy(batch, models_by_kind):
  student, teacher_model = models_by_kind["classification"]
  objective, _ = objective_with_loss = objective_and_loss(stage="prediction")
  sums = loss_sums(objective_with_loss, student[1], teacher_model[1], batch)
  logits_of_both = [
    model_logits(model, batch) for model in (student, teacher_model)
  ]

  def divergence(temperature):
    student_probabilities, teacher_probabilities = (
      softmax(x / temperature) for x in logits_of_both
    )
    return (
      teacher_probabilities
      * (np.log(teacher_probabilities) - np.log(student_probabilities))
    ).sum(-1)

  expected = divergence(1.0)[:3].sum()
  assert sums["prediction_loss"] == pytest.approx(expected, rel=1e-4)
  losses_at_2 = tinybert_task.soft_losses(
    *map(jnp.asarray, logits_of_both), 2.0
  )
  np.testing.assert_allclose(losses_at_2, divergence(2.0), rtol=1e-3)
  probabilities = softmax(logits_of_both[0])
  expected = -np.log(probabilities[[0, 1], [2, 0]]).sum()
  assert sums["task_loss"] == pytest.approx(expected, rel=1e-5)
  num_right = (probabilities.argmax(-1) == np.array([2, 0, -1, -1])).sum()
  assert sums["task_accuracy"] == num_right
  assert objective.divisors(batch) == dict(
    prediction_loss=3, task_loss=2, task_accuracy=2
  )
  assert objective.coefficients == {"prediction_loss": 1.0}


def test_losses_of_number_predictions_agree_with_numpy(batch, models_by_kind):
  batch = batch | {"labels": jnp.array([2.5, -1.0, jnp.nan, 0.0])}
  student, teacher_model = models_by_kind["regression"]
  options = dict(kind="regression", stage="prediction")
  objective, _ = objective_with_loss = objective_and_loss(**options)
  sums = loss_sums(objective_with_loss, student[1], teacher_model[1], batch)
  student_numbers, teacher_numbers = (
    model_logits(x, batch) for x in (student, teacher_model)
  )
  loss_to_labels = np.square(
    student_numbers[:2, 0] - np.array([2.5, -1.0])
  ).sum()
  loss_to_teacher = np.square(student_numbers - teacher_numbers)[:3].sum()
  expected = dict(prediction_loss=loss_to_teacher, task_loss=loss_to_labels)
  assert sums == pytest.approx(expected, rel=1e-4)
  # The released program learns from the gold labels instead.
  numbers_of_both = map(jnp.asarray, (student_numbers, teacher_numbers))
  loss_with_labels = tinybert_task.prediction_sum(
    "regression", *numbers_of_both, batch, "labels"
  )
  np.testing.assert_allclose(loss_with_labels, loss_to_labels, rtol=1e-5)
  objective_of_labels = build_objective(**options, targets="labels")
  for built_objective, num_rows in ((objective, 3), (objective_of_labels, 2)):
    assert built_objective.divisors(batch)["prediction_loss"] == num_rows


def test_losses_of_layers_equal_those_of_general_distillation(
  batch, layer_stage_params
):
  """The general objective gives equal losses if no token is masked."""
  sums = loss_sums(objective_and_loss(), *layer_stage_params, batch)
  general_objective = objectives.build_function("tinybert")(
    STUDENT_OPTIONS | {"family": "tinybert"},
    TEACHER_OPTIONS | {"family": "bert"},
  )
  zeros = jnp.zeros((4, 1), jnp.int32)
  masks = dict(mlm_positions=zeros, mlm_ids=zeros, mlm_weights=zeros * 0.0)
  objective_with_loss = (
    general_objective,
    fast_jit(general_objective.loss, static_argnums=5),
  )
  assert sums == loss_sums(
    objective_with_loss, *layer_stage_params, batch | masks
  )
  assert min(sums.values()) > 0
  divisors = objective_and_loss()[0].divisors(batch)
  assert divisors == general_objective.divisors(batch | masks)
  assert divisors["hidden_loss"] == sum(LENGTHS)


@pytest.mark.parametrize("stage", tinybert_task.STAGES)
def test_an_equal_student_has_nothing_to_learn(batch, models_by_kind, stage):
  params = teacher_params = models_by_kind["classification"][1][1]
  if stage == "layers":
    teacher_params = {"encoder": params["encoder"]}
    identity = dict(kernel=jnp.eye(12), bias=jnp.zeros(12))
    params = teacher_params | {"fit": identity}
  objective, _ = objective_with_loss = objective_and_loss(
    has_teacher_sizes=True, stage=stage
  )
  sums = loss_sums(objective_with_loss, params, teacher_params, batch)
  losses = {name: sums[name] for name in objective.coefficients}
  assert losses == pytest.approx(dict.fromkeys(losses, 0.0), abs=1e-7)
  scaled_params = jax.tree.map(lambda x: 1.1 * x, params)
  sums_of_scaled = loss_sums(
    objective_with_loss, scaled_params, teacher_params, batch
  )
  assert min(sums_of_scaled[name] for name in losses) > 1e-4


@pytest.mark.parametrize("stage", tinybert_task.STAGES)
def test_padding_enters_no_loss(
  batch, models_by_kind, layer_stage_params, stage
):
  student, teacher_model = models_by_kind["classification"]
  params = (
    layer_stage_params if stage == "layers" else (student[1], teacher_model[1])
  )
  is_padding = batch["sequence_ids"] == 0
  other_batch = batch | {
    "input_ids": jnp.where(is_padding, 30, batch["input_ids"])
  }
  objective_with_loss = (
    objective_and_loss()
    if stage == "layers"
    else objective_and_loss(stage=stage)
  )
  expected = loss_sums(objective_with_loss, *params, batch)
  assert loss_sums(objective_with_loss, *params, other_batch) == pytest.approx(
    expected, rel=1e-6
  )


@pytest.mark.parametrize(
  "options, pattern",
  [
    (dict(student=dict(heads=4)), "model.heads=4, .* is 2.*model.heads=2"),
    (dict(student=dict(num_layers=3)), "does not divide .* 4 layers.* 1, 2, 4"),
    (
      dict(student=dict(vocab_size=9), stage="prediction"),
      "model.vocab_size=9, .* 37",
    ),
    (dict(stage="both"), "stage='both' .* layers, prediction"),
    (dict(kind="tagging"), "kind='tagging' .* classification, regression"),
    (dict(targets="labels"), "targets='labels' is only for a regression"),
    (dict(temperature=0.0), "temperature=0.0"),
    (dict(maps="three"), "'three' is not one of shared, two"),
    (
      dict(student=dict(family="gpt")),
      "'gpt' must be .* objective 'tinybert_task'",
    ),
  ],
)
def test_bad_sizes_and_options_are_refused(options, pattern):
  with pytest.raises(ValueError, match=pattern):
    build_objective(**options)


def test_the_stage_prediction_allows_any_heads_and_layers():
  build_objective(student=dict(heads=4, num_layers=3), stage="prediction")


def write_with_reversed_labels(path, weights):
  """Writes a model with its labels in the reverse order."""
  arrays = {
    name: x[..., ::-1] if name.startswith("classifier/") else x
    for name, x in weights.arrays.items()
  }
  config = weights.config | {"labels": weights.config["labels"][::-1]}
  model_folder.write(str(path), weights._replace(config=config, arrays=arrays))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with a task, three teachers and a student."""
  path = tmp_path_factory.mktemp("folder")
  tiny_tasks.write_task(path / "task")
  weights = tiny_tasks.write_fine_tuned(
    path / "teacher", "classification", seed=1
  )
  write_with_reversed_labels(path / "turned", weights)
  tiny_tasks.write_fine_tuned(path / "number", "regression")
  tiny_tasks.write_model(path / "student")
  return path


def open_teacher(folder, name, **model):
  task_folder = batches.open_folder(str(folder / "task"))
  task = batches.encoded_rows.task_of(task_folder.meta["task"])
  section = config_lib.Teacher(
    str(folder / name), config_lib.Model.from_values(model)
  )
  return teacher.open_teacher(section, task_folder, task)


def test_labels_of_a_teacher_are_matched_by_name(folder):
  opened_teacher, reversed_teacher = (
    open_teacher(folder, "teacher"),
    open_teacher(folder, "turned"),
  )
  assert (
    opened_teacher.digest == reversed_teacher.digest
    and opened_teacher.model.family == "bert"
  )
  name = "classifier/dense/kernel"
  np.testing.assert_array_equal(
    opened_teacher.arrays[name], reversed_teacher.arrays[name]
  )
  assert opened_teacher.model.num_layers == tiny_families.LAYERS
  arrays = opened_teacher.arrays | {
    name: opened_teacher.arrays[name][..., ::-1]
  }
  weights = model_folder.Weights({}, arrays, {})
  assert (
    teacher._digest(weights, ("encoder/", "classifier/"))
    != opened_teacher.digest
  )


@pytest.mark.parametrize(
  "name, model, pattern",
  [
    (
      "student",
      {},
      "is a model for pretraining, but the task animals is of the kind class",
    ),
    ("number", {}, "is a model for regression, but the task animals"),
    ("teacher", dict(hidden=8), "has hidden=32, .* teacher.model.hidden=8"),
    ("teacher", dict(variant="base"), "teacher.model.hidden=768"),
    ("teacher", dict(family="roberta"), "has family=bert"),
    ("nowhere", {}, "there is no folder .*nowhere"),
  ],
)
def test_a_teacher_that_does_not_fit_is_refused(folder, name, model, pattern):
  with pytest.raises(ValueError, match=pattern):
    open_teacher(folder, name, **model)


def test_a_teacher_with_labels_that_the_task_lacks_is_refused(folder, tmp_path):
  tiny_tasks.write_fine_tuned(tmp_path / "t", "classification")
  weights = model_folder.read(str(tmp_path / "t"))
  config = weights.config | {"labels": ["cat", "cow"]}
  model_folder.write(str(tmp_path / "cow"), weights._replace(config=config))
  pattern = "labels cat, cow, but the task animals has cat"
  with pytest.raises(ValueError, match=pattern):
    open_teacher(folder, tmp_path / "cow")


def make_config(folder, stage, **changes):
  config = configs.load_defaults(CONFIG_NAME)
  config["data"] |= dict(path=str(folder / "task"), buckets=(16,), epochs=2.0)
  config |= dict(init_from=str(folder / "student"), batch_size=8)
  config["teacher"]["path"] = str(folder / "teacher")
  config["model"]["dtype"] = "float32"
  config["objective"]["stage"] = stage
  config["schedule"]["peak"] = 1e-2
  config["log"]["every"] = 1
  config["checkpoint"] |= dict(every=3, keep=3)
  for key, options in changes.items():
    config[key] |= options
  config_lib.parse(config)
  return config


@pytest.fixture(scope="module")
def trained_folder(folder, compilation_cache, fast_compilation):
  """Returns `folder` with a run of each stage.

  The run "prediction" begins with the student of the run "layers".
  """
  train.run(make_config(folder, "layers"), str(folder / "layers"))
  prediction_config = make_config(folder, "prediction") | {
    "init_from": str(folder / "layers")
  }
  train.run(prediction_config, str(folder / "prediction"))
  return folder


def test_both_stages_log_every_term_and_are_exported(trained_folder):
  names_by_stage = {
    "layers": {"attention_loss", "hidden_loss", "embedding_loss"},
    "prediction": {"prediction_loss", "task_loss", "task_accuracy"},
  }
  for stage, names in names_by_stage.items():
    lines = logging.read_rows(str(trained_folder / stage / "metrics.jsonl"))
    lines_by_split = {
      split: [
        logged_line for logged_line in lines if logged_line["split"] == split
      ]
      for split in ("train", "heldout")
    }
    assert [logged_line["step"] for logged_line in lines_by_split["train"]] == [
      *range(1, 7)
    ]
    assert [
      logged_line["step"] for logged_line in lines_by_split["heldout"]
    ] == [3, 6]
    for line in lines:
      assert names <= line.keys()
    losses = [logged_line["loss"] for logged_line in lines_by_split["heldout"]]
    assert losses[1] < losses[0]
    assert ("accuracy" in lines_by_split["heldout"][0]) == (
      stage == "prediction"
    )
  layers_weights = runs.read(str(trained_folder / "layers"))
  assert layers_weights.config["task"] == "encoder"
  assert not [name for name in layers_weights.arrays if name.startswith("fit")]
  student = predict.open_predictor(
    str(trained_folder / "prediction"), max_length=16
  )
  assert student.task.labels == ("cat", "dog")
  last_line = logging.read_rows(
    str(trained_folder / "layers" / "metrics.jsonl")
  )[-1]
  loss_sum = sum(last_line[name] for name in names_by_stage["layers"])
  assert last_line["loss"] == pytest.approx(loss_sum, rel=1e-5)


@pytest.mark.parametrize(
  "stage", ["layers", pytest.param("prediction", marks=pytest.mark.slow)]
)
def test_a_restarted_stage_equals_an_uninterrupted_one(
  trained_folder, stage, tmp_path
):
  config = make_config(trained_folder, stage)
  if stage == "prediction":
    config["init_from"] = str(trained_folder / "layers")
  restart_path = str(tmp_path / "again")
  shutil.copytree(trained_folder / stage, restart_path)
  shutil.rmtree(f"{restart_path}/checkpoints/6")
  # The folder `turned` has the teacher's model with its labels in the reverse
  # order, so the restart continues.
  config["teacher"]["path"] = str(trained_folder / "turned")
  train.run(copy.deepcopy(config), restart_path)
  expected_arrays, restarted_arrays = (
    runs.read(x).arrays for x in (str(trained_folder / stage), restart_path)
  )
  for name in expected_arrays:
    np.testing.assert_array_equal(
      expected_arrays[name], restarted_arrays[name], name
    )
