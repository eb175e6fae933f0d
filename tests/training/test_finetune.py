"""Tests losses, layer-wise rates and runs of fine-tuning."""

import copy
import importlib
import json
import pathlib
import shutil
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_families
import tiny_tasks
from config_names import TASK_CONFIGS as TASKS_OF_CONFIGS
from flax import traverse_util
from tiny_runs import untimed_rows

from bert_jax.cli import configs
from bert_jax.objectives import finetune
from bert_jax.tasks import batches, metrics, task_inputs
from bert_jax.tasks.published import TASKS
from bert_jax.training import config as config_lib
from bert_jax.training import (
  logging,
  loop,
  optim,
  parts,
  start_from,
  sweep,
  train,
)
from bert_jax.training import setup as building
from bert_jax.use import predict
from bert_jax.weights import hf, model_folder, runs
from bert_jax.weights.checkpoint import Checkpointer
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])
# test_tinybert_task.py tests the config of TinyBERT's stages.
CONFIGS = [name for name in TASKS_OF_CONFIGS if name != "tinybert:sst2"]


def softmax_loss(logits, label):
  logits = np.asarray(logits, np.float64)
  return np.log(np.exp(logits).sum()) - logits[label]


def test_losses_of_every_kind_equal_numpy():
  rng = np.random.default_rng(0)
  class_logits = rng.normal(size=(3, 4)).astype(np.float32)
  sums = finetune.task_sums(
    "classification",
    class_logits,
    jnp.array([1, 3, 0]),
    jnp.array([1.0, 0.0, 1.0]),
  )
  expected_loss = softmax_loss(class_logits[0], 1) + softmax_loss(
    class_logits[2], 0
  )
  np.testing.assert_allclose(sums["task_loss"], expected_loss, rtol=1e-6)
  # The label of a regression is not rounded. An unlabelled row adds nothing.
  labels = jnp.array([3.8, jnp.nan], jnp.float32)
  sums = finetune.task_sums(
    "regression", jnp.array([[1.0], [9.0]]), labels, jnp.array([1.0, 0.0])
  )
  np.testing.assert_allclose(sums["task_loss"], 2.8**2, rtol=1e-6)
  # The sum over a batch of one row is a scalar, too.
  sums = finetune.task_sums(
    "regression", jnp.ones((1, 1)), jnp.zeros(1), jnp.ones(1)
  )
  assert sums["task_loss"].shape == () and sums.keys() == {"task_loss"}
  # Two examples of four choices have the logits 0 to 7.
  choice_logits = jnp.arange(8.0).reshape(2, 4)
  sums = finetune.task_sums(
    "choice", choice_logits, jnp.array([3, 0]), jnp.ones(2)
  )
  expected_loss = softmax_loss([0, 1, 2, 3], 3) + softmax_loss([4, 5, 6, 7], 0)
  np.testing.assert_allclose(sums["task_loss"], expected_loss, rtol=1e-6)
  assert sums["task_accuracy"] == 1.0
  span_logits = rng.normal(size=(1, 5, 2)).astype(np.float32)
  sums = finetune.task_sums(
    "span", span_logits, jnp.array([[1, 3]]), jnp.ones(1)
  )
  expected_loss = softmax_loss(span_logits[0, :, 0], 1) + softmax_loss(
    span_logits[0, :, 1], 3
  )
  np.testing.assert_allclose(sums["task_loss"], expected_loss / 2, rtol=1e-6)


def tiny_batch(shape, labels):
  ids = tiny_families.token_ids(*shape)
  sequence_ids = np.ones(shape, np.int32)
  sequence_ids[..., -2:] = 0  # The last two tokens are padding.
  weights = np.ones(np.shape(labels), np.float32)
  return dict(
    input_ids=ids,
    sequence_ids=sequence_ids,
    labels=labels,
    label_weights=weights,
  )


def test_gpt_trains_its_language_model_with_the_task():
  model = dict(family="gpt", variant="base", **tiny_families.SIZES)
  build_arguments = dict(model=model, kind="choice", labels=("0", "1"))
  objective = finetune.build(**build_arguments, lm_weight=0.5)
  batch = tiny_batch((2, 2, 6), np.array([1, 0], np.int32))
  init = tiny_families.fast_jit(
    lambda key: nn.unbox(objective.init(key, batch))
  )
  params = init(jax.random.key(0))

  def sums_of(objective):
    # teacher_params, carry, batch, rng, train
    loss_arguments = {}, {}, batch, jax.random.key(0), False
    return tiny_families.fast_jit(
      lambda p: objective.loss(p, *loss_arguments)[0]
    )(params)

  sums, sums_without_lm = (
    sums_of(objective),
    sums_of(finetune.build(**build_arguments)),
  )
  np.testing.assert_allclose(
    sums["task_loss"], sums_without_lm["task_loss"], rtol=1e-6
  )
  assert objective.coefficients == {"task_loss": 1.0, "lm_loss": 0.5}
  # Each row has four tokens. Its loss of the language model is the mean over
  # three predictions; the losses of the rows are added.
  encoder = tiny_families.build_encoder("gpt")
  ids, sequence_ids = (
    batch[key].reshape(4, 6) for key in ("input_ids", "sequence_ids")
  )
  hidden, _ = tiny_families.fast_jit(encoder.apply)(
    {"params": params["encoder"]}, ids, None, sequence_ids
  )
  table = params["encoder"]["embeddings"]["word"]["embedding"]
  logits = np.asarray(hidden @ table.T)
  losses_of_rows = [
    np.mean([softmax_loss(logits[row, i], ids[row, i + 1]) for i in range(3)])
    for row in range(4)
  ]
  np.testing.assert_allclose(sums["lm_loss"], np.sum(losses_of_rows), rtol=1e-5)
  assert objective.divisors(batch)["lm_loss"] == 4.0
  with pytest.raises(ValueError, match="trains gpt"):
    finetune.build(
      model | {"family": "bert"}, kind="choice", labels=(), lm_weight=0.5
    )


@pytest.mark.parametrize(
  "family",
  [
    *("bert", "roberta"),
    *(
      pytest.param(family, marks=pytest.mark.slow)
      for family in ("albert", "gpt")
    ),
  ],
)
def test_the_embedding_of_padding_is_trained_only_on_request(family):
  variant = "base_v2" if family == "albert" else "base"
  model = dict(family=family, variant=variant, **tiny_families.SIZES)
  padding_id = 1
  batch = tiny_batch((2, 8), np.array([[1, 3], [2, 2]], np.int32))
  batch["input_ids"] = np.where(batch["sequence_ids"] > 0, 7, padding_id)
  # A span has one weight for its two labels.
  batch["label_weights"] = np.ones(2, np.float32)

  def gradients(**options):
    objective = finetune.build(model, kind="span", labels=(), **options)
    init = tiny_families.fast_jit(
      lambda key: nn.unbox(objective.init(key, batch))
    )
    params = init(jax.random.key(0))
    # teacher_params, carry, batch, rng, train
    loss_arguments = {}, {}, batch, jax.random.key(0), False
    take_gradient = jax.grad(
      lambda p: objective.loss(p, *loss_arguments)[0]["task_loss"]
    )
    return jax.tree.map(np.array, tiny_families.fast_jit(take_gradient)(params))

  with_fixed_padding = gradients(padding_id=padding_id)
  with_trained_padding = gradients(padding_id=padding_id, train_padding=True)
  for name in ("word", "position"):
    tables = [
      gradient["encoder"]["embeddings"][name]["embedding"]
      for gradient in (with_fixed_padding, with_trained_padding)
    ]
    assert tables[1][padding_id].any()
    if name == "word" or family == "roberta":
      assert not tables[0][padding_id].any()
      tables[0][padding_id] = tables[1][padding_id]
  jax.tree.map(
    np.testing.assert_array_equal, with_fixed_padding, with_trained_padding
  )
  # If `padding_id` is not set, every embedding is trained.
  jax.tree.map(np.testing.assert_array_equal, gradients(), with_trained_padding)


def test_layers_near_the_input_learn_slower():
  tree = {
    "encoder": {
      "embeddings": {"word": {"embedding": jnp.ones((5, 2))}},
      "layers": {"mlp": {"kernel": jnp.ones((3, 2, 2))}},
    },
    "pooler": {"dense": {"kernel": jnp.ones((2, 2))}},
    "classifier": {"dense": {"bias": jnp.ones(2)}},
  }
  # "written" is the rule of ELECTRA's paper, "released" that of its code.
  for rule, last_power in (("released", 2), ("written", 1)):
    scales = optim.layer_scales(tree, decay=0.5, rule=rule)
    layer_scales = scales["encoder"]["layers"]["mlp"]["kernel"].ravel()
    expected_scales = [
      0.5 ** (last_power + 2),
      0.5 ** (last_power + 1),
      0.5**last_power,
    ]
    np.testing.assert_allclose(layer_scales, expected_scales)
    embedding_scale = scales["encoder"]["embeddings"]["word"]["embedding"]
    assert embedding_scale == 0.5 ** (3 + last_power)
    assert scales["pooler"]["dense"]["kernel"] == 1.0
    assert scales["classifier"]["dense"]["bias"] == 1.0
  # The whole update is scaled, including the weight decay.
  options = dict(
    b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.1, clip_norm=1.0
  )
  grads = jax.tree.map(lambda x: 0.3 * x, tree)
  updates = []
  for decay in (1.0, 0.5):
    optimizer = optim.build_optimizer(
      lambda step: 0.1, "adamw", **options, layer_decay=decay
    )
    updates.append(optimizer.update(grads, optimizer.init(tree), tree)[0])
  ratios = jax.tree.map(lambda a, b: (b / a).mean(), *updates)
  np.testing.assert_allclose(
    ratios["encoder"]["embeddings"]["word"]["embedding"], 0.5**5, rtol=1e-5
  )
  with pytest.raises(ValueError, match="layer_rule"):
    optim.build_optimizer(
      lambda step: 0.1, "adamw", **options, layer_rule="papers"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_every_task_config_builds(name):
  config = configs.load_defaults(name)
  config_lib.parse(config)
  assert config["objective"]["name"] == "finetune"
  objective = finetune.build(
    dict(family="bert", variant="tiny", vocab_size=64),
    kind="classification",
    labels=("a", "b"),
    **{
      key: value for key, value in config["objective"].items() if key != "name"
    },
  )
  schedule = optim.build_schedule(100, **config["schedule"])
  optim.build_optimizer(schedule, **config["optimizer"])
  assert objective.is_pretrained("pooler/dense/kernel")
  assert not objective.is_pretrained("classifier/dense/kernel")


@pytest.fixture(scope="module")
def tuned_run(tmp_path_factory, compilation_cache):
  """Fine-tunes a model.

  Returns the config, the folder of the run, and the weights from which the run
  started.
  """
  path = tmp_path_factory.mktemp("finetune")
  weights = tiny_tasks.write_model(path / "model")
  config = configs.load_defaults("glue:cola")
  config["data"] |= dict(path=tiny_tasks.write_task(path / "task"))
  config["data"] |= dict(buckets=(8, 16), epochs=2.0)
  config |= dict(init_from=str(path / "model"), batch_size=8)
  config["model"] |= dict(dtype="float32")
  config["schedule"]["peak"] = 1e-2
  config["log"]["every"] = 1
  config["checkpoint"] |= dict(every=3, keep=3)
  original_config = copy.deepcopy(config)
  train.run(config, str(path / "run"))
  # Values that the run derives are only in config.json.
  assert config == original_config
  return config, path / "run", weights


def test_a_run_begins_with_the_encoder_and_pooler(tuned_run):
  config, run_folder, weights = tuned_run
  pretrained = start_from.read_for_fine_tuning(
    config["init_from"], tiny_tasks.PIECES, "task"
  )
  is_pretrained = finetune.build(
    dict(family="bert", variant="tiny"),
    kind="classification",
    labels=("a", "b"),
  ).is_pretrained
  run_arrays = runs.read(str(run_folder)).arrays
  tree = traverse_util.unflatten_dict(
    {name: jnp.asarray(array) for name, array in run_arrays.items()}, sep="/"
  )
  params, lines = start_from.take_parameters(
    pretrained, tree, is_pretrained=is_pretrained, labels=("cat", "dog")
  )
  np.testing.assert_array_equal(
    params["pooler"]["dense"]["kernel"], weights.arrays["pooler/dense/kernel"]
  )
  np.testing.assert_array_equal(
    params["encoder"]["embeddings"]["word"]["embedding"],
    weights.arrays["encoder/embeddings/word/embedding"],
  )
  np.testing.assert_array_equal(
    params["classifier"]["dense"]["kernel"],
    run_arrays["classifier/dense/kernel"],
  )
  assert [line.split(":")[0] for line in lines] == [
    "taken",
    "newly initialized",
    "not used",
  ]
  assert "classifier/dense/kernel" in lines[1] and "mlm" in lines[2]
  with pytest.raises(ValueError, match="piece 5 is 'red', but in task"):
    pieces = (*tiny_tasks.SPECIAL_TOKENS, "other")
    start_from.read_for_fine_tuning(config["init_from"], pieces, "task")


def test_a_run_writes_its_scores_and_its_task(tuned_run):
  _, run_folder, _ = tuned_run
  logged_lines = logging.read_rows(str(run_folder / "metrics.jsonl"))
  # An epoch has 21 rows. In batches of 8 rows it takes three steps.
  assert [
    line["step"] for line in logged_lines if line["split"] == "train"
  ] == [*range(1, 7)]
  heldout_lines = [line for line in logged_lines if line["split"] == "heldout"]
  assert [line["step"] for line in heldout_lines] == [3, 6]
  assert (
    heldout_lines[-1]["examples"] == 10
    and 0 <= heldout_lines[-1]["accuracy"] <= 1
  )
  model = open_model(str(run_folder))
  assert model.config["labels"] == ["cat", "dog"]
  task = model.config["source"]["fine_tuned"]
  assert (task["name"], task["metrics"]) == ("animals", ["accuracy"])
  with Checkpointer.for_reading(str(run_folder)) as checkpoints:
    meta = checkpoints.read_metadata(6)
    assert meta["task"] == task and checkpoints.best_step() in (3, 6)
    best_line = max(heldout_lines, key=lambda r: (r["accuracy"], -r["step"]))
    assert meta["best"] == -best_line["accuracy"]
  # The accuracy equals that of a plain loop over the examples.
  vocabulary = tiny_tasks.vocabulary()
  apply = tiny_families.fast_jit(model.module.apply)
  num_correct = 0
  for example in tiny_tasks.classified_examples(10, 2):
    ids = vocabulary.encode_batch(example["texts"])[0]
    row = np.zeros((1, 16), np.int32)
    row[0, : len(ids) + 2] = [2, *ids, 3]  # 2 is [CLS], 3 is [SEP].
    batch = {"input_ids": row, "sequence_ids": (row > 0).astype(np.int32)}
    logits = apply({"params": model.params}, batch)
    num_correct += ("cat", "dog")[int(logits.argmax())] == example["label"]
  assert num_correct / 10 == heldout_lines[-1]["accuracy"]


def test_a_run_from_an_earlier_checkpoint_equals_the_whole_run(
  tuned_run, tmp_path
):
  config, run_folder, _ = tuned_run
  run_copy = tmp_path / "again"
  shutil.copytree(run_folder, run_copy)
  shutil.rmtree(run_copy / "checkpoints" / "6")
  train.run(copy.deepcopy(config), str(run_copy))
  old_arrays, new_arrays = (
    runs.read(str(workdir)).arrays for workdir in (run_folder, run_copy)
  )
  for name in old_arrays:
    np.testing.assert_array_equal(old_arrays[name], new_arrays[name], name)


@pytest.mark.parametrize(
  "step, event",
  [
    (3, "evaluate"),
    (3, "signal"),
    pytest.param(3, "add", marks=pytest.mark.slow),
    *(
      pytest.param(6, event, marks=pytest.mark.slow)
      for event in ("evaluate", "add", "signal")
    ),
  ],
)
def test_a_step_is_saved_before_it_is_evaluated(
  tuned_run, tmp_path, monkeypatch, event, step
):
  """A run is saved at steps 3 and 6, each time before it evaluates the step.

  The run ends in the evaluation ("evaluate"), before the results are added to
  the checkpoint ("add"), or by a signal before the evaluation ("signal"). After
  a restart it equals a run that did not end.
  """
  config, run_folder, _ = tuned_run
  workdir = tmp_path / "run"

  with monkeypatch.context() as patch:
    if event == "signal":
      patch.setattr(loop.hosts, "stop_requested", lambda s, _: s == step)
      train.run(copy.deepcopy(config), str(workdir))
    else:
      owner, function_name = {
        "evaluate": (loop, "evaluate_step"),
        "add": (Checkpointer, "add_evaluation"),
      }[event]
      original_function, reached_steps = getattr(owner, function_name), []

      def fail_at_step(*arguments):
        reached_steps.append(3 * len(reached_steps) + 3)
        if reached_steps[-1] == step:
          raise OSError("killed")
        return original_function(*arguments)

      patch.setattr(owner, function_name, fail_at_step)
      with pytest.raises(OSError, match="killed"):
        train.run(copy.deepcopy(config), str(workdir))
  if event != "signal" or step == 3:
    with Checkpointer.for_reading(str(workdir)) as checkpoints:
      assert checkpoints.latest_step() == step
      assert checkpoints.read_metadata(step)["pending"]
    train.run(copy.deepcopy(config), str(workdir))
  assert untimed_rows(workdir) == untimed_rows(run_folder)
  with (
    Checkpointer.for_reading(str(run_folder)) as checkpoints,
    Checkpointer.for_reading(str(workdir)) as new_checkpoints,
  ):
    assert checkpoints.best_step() == new_checkpoints.best_step()
    for saved_step in (3, 6):
      metas = [
        checkpoints.read_metadata(saved_step),
        new_checkpoints.read_metadata(saved_step),
      ]
      for meta in metas:
        # The checksums differ, because the rows of the log contain times.
        del meta["checksum"], meta["log"]["checksum"]
      assert metas[0] == metas[1]


def test_a_diverged_evaluation_keeps_the_earlier_checkpoint(
  tuned_run, tmp_path, monkeypatch
):
  config, *_ = tuned_run
  original_check, checked_steps = loop.evaluate_task.check_loss, []

  def check_nan_at_step_6(step, split, loss):
    checked_steps.append(step)
    original_check(step, split, np.nan if step == 6 else loss)

  monkeypatch.setattr(loop.evaluate_task, "check_loss", check_nan_at_step_6)
  with pytest.raises(FloatingPointError, match="step 6: the loss of split"):
    train.run(copy.deepcopy(config), str(tmp_path / "run"))
  assert checked_steps == [3, 6]
  with Checkpointer.for_reading(str(tmp_path / "run")) as checkpoints:
    assert checkpoints.latest_step() == checkpoints.best_step() == 3


def test_a_missing_package_is_named_before_the_first_step(
  tuned_run, tmp_path, monkeypatch
):
  config, *_ = tuned_run
  task = tiny_tasks.TASKS["classification"]._replace(metrics=("f1_macro",))
  monkeypatch.setattr(batches.encoded_rows, "task_of", lambda fields: task)
  monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
  with pytest.raises(ValueError, match="need scikit-learn, which is not"):
    train.run(copy.deepcopy(config), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
  # A run that does not evaluate does not need the package.
  config = copy.deepcopy(config)
  config["evaluate"]["every"] = 0
  assert building.build(config_lib.parse(config)).feeds[0].heldout is None


# Module -> the names of the tasks whose metrics need it.
TASKS_BY_MODULE = {
  "sklearn.metrics": [
    "cola",
    "mrpc",
    "qqp",
    "cb",
    "multirc",
    "classes",
    "moods",
  ],
  "scipy.stats": ["stsb", "price"],
  "seqeval.metrics": ["conll2003", "wnut17", "names"],
}


@pytest.mark.parametrize("module", TASKS_BY_MODULE)
def test_every_metric_says_which_package_it_needs(monkeypatch, module):
  custom_tasks = {
    "classes": task_inputs.find_task("x", kind=None, columns="text=a").task,
    "moods": task_inputs.find_task(
      "x", kind="multi_label", columns="text=a", labels=["a", "b"]
    ).task,
    "price": task_inputs.find_task(
      "x", kind="regression", columns="text=a"
    ).task,
    "names": task_inputs.find_task(
      "x", kind="tagging", labels=["O", "B-X"]
    ).task,
    "words": task_inputs.find_task(
      "x", kind="tagging", labels=["NOUN", "VERB"]
    ).task,
  }
  tasks = {name: task.task for name, task in TASKS.items()} | custom_tasks
  for module_name in TASKS_BY_MODULE:
    # Load all modules before one is removed.
    importlib.import_module(module_name)
  monkeypatch.setitem(sys.modules, module, None)
  dependent_tasks = []
  for name, task in tasks.items():
    try:
      metrics.check_packages(task)
    except ValueError as error:
      assert "pip install 'bert_jax[finetune]'" in str(error)
      dependent_tasks.append(name)
  assert sorted(dependent_tasks) == sorted(TASKS_BY_MODULE[module])


def test_labels_are_matched_by_name(tuned_run, tmp_path):
  _, run_folder, _ = tuned_run
  weights = runs.read(str(run_folder))
  hf.write(str(tmp_path / "hf"), weights)
  hf_config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert hf_config["id2label"] == {"0": "cat", "1": "dog"}
  read_weights = hf.read(str(tmp_path / "hf"), "bert")
  assert read_weights.config["labels"] == ["cat", "dog"]
  # The run names the classes in another order than the model does.
  model = parts.PretrainedModel("x", read_weights.config, read_weights.arrays)
  tree = {"classifier": {"dense": {"kernel": jnp.zeros((32, 2))}}}
  params, _ = start_from.take_parameters(
    model, tree, is_pretrained=lambda path: True, labels=("dog", "cat")
  )
  np.testing.assert_array_equal(
    params["classifier"]["dense"]["kernel"],
    read_weights.arrays["classifier/dense/kernel"][:, ::-1],
  )
  with pytest.raises(ValueError, match="has the labels"):
    start_from.take_parameters(
      model, tree, is_pretrained=lambda path: True, labels=("dog", "cow")
    )


def test_a_model_with_its_labels_in_another_order_scores_the_same(
  tuned_run, tmp_path
):
  config, run_folder, _ = tuned_run
  weights = runs.read(str(run_folder))
  arrays = dict(weights.arrays)
  for name in ("classifier/dense/kernel", "classifier/dense/bias"):
    arrays[name] = arrays[name][..., ::-1]
  reordered_config = model_folder.without_keys(weights.config, "labels") | {
    "labels": ["dog", "cat"],
    "source": {},
  }
  model_folder.write(
    str(tmp_path / "reordered"),
    weights._replace(config=reordered_config, arrays=arrays),
  )
  folder = config["data"]["path"]
  split = batches.open_split(batches.open_folder(folder), "validation")
  expected_accuracy = logging.read_rows(str(run_folder / "metrics.jsonl"))[-1][
    "accuracy"
  ]
  for path, batch_size in ((run_folder, 4), (tmp_path / "reordered", 7)):
    predictor = predict.open_predictor(str(path), batch_size, max_length=16)
    predictions = predict.predict_split(predictor, split, folder)
    scores = metrics.evaluate(split.task, predictions, split.examples)
    assert scores["accuracy"] == expected_accuracy and scores["examples"] == 10
  changed_split = split._replace(
    task=split.task._replace(labels=("cat", "cow"))
  )
  with pytest.raises(
    ValueError, match="has the labels cat, cow, but the model"
  ):
    predict.predict_split(predictor, changed_split, folder)
  changed_split = split._replace(pieces=split.pieces[:-1])
  with pytest.raises(ValueError, match="the model have different vocabularies"):
    predict.predict_split(predictor, changed_split, folder)


def test_a_sweep_goes_on_after_a_failed_run(tuned_run, tmp_path, capsys):
  config, run_folder, _ = tuned_run
  planned_runs = sweep.plan(config, ["schedule.peak=1e-2,-1.0"], [0])
  assert [run.point["schedule.peak"] for run in planned_runs] == [1e-2, -1.0]
  folder = tmp_path / "sweep"
  # The folder of the first run holds a finished run. The learning rate of the
  # second run is refused.
  shutil.copytree(run_folder, folder / planned_runs[0].name)
  outcomes = sweep.run_all(planned_runs, str(folder), "glue:cola", processes=0)
  jax.config.update("jax_compilation_cache_dir", None)
  assert outcomes[0].error is None and "schedule.peak" in outcomes[1].error
  lines = sweep.write_report(
    str(folder), outcomes, sweep.default_metric(config)
  )
  saved_report = json.loads((folder / "sweep.json").read_text())
  assert [row["failed"] for row in saved_report["table"]] == [0, 1]
  assert (
    saved_report["table"][0]["median"]
    == saved_report["runs"][0]["last"]["accuracy"]
  )
  assert lines[0] == "accuracy at the last step:"
  with pytest.raises(ValueError, match="gives .*peak=0.01,seed=0 twice"):
    sweep.plan(config, ["schedule.peak=1e-2,0.01"], [0])
  with pytest.raises(ValueError, match="did you mean schedule.peak"):
    sweep.plan(config, ["schedule.peek=1"], [0])
  # A metric that no run has is refused before the first run begins.
  for name in logging.read_rows(str(run_folder / "metrics.jsonl"))[-1]:
    if name not in ("split", "step", "time"):
      sweep.check_metric(name, planned_runs)
  with pytest.raises(ValueError, match="--metric=acuracy: .* mean accuracy?"):
    sweep.check_metric("acuracy", planned_runs)
  runs_without_evaluation = sweep.plan(config, ["evaluate.every=4,0"], [0])
  with pytest.raises(ValueError, match="every is 0 in .*every=0,seed=0, so it"):
    sweep.check_metric("accuracy", runs_without_evaluation)
  with pytest.raises(ValueError, match="data.path is empty; pass"):
    sweep.default_metric(config | {"data": config["data"] | {"path": ""}})


def test_the_best_run_of_a_sweep_has_the_best_metric():
  outcomes = [
    sweep.Outcome(
      sweep.PlannedRun(point={}, seed=seed, config={}),
      error=error,
      rows=[dict(accuracy=number, loss=number)],
    )
    for seed, (number, error) in enumerate(
      [(0.2, None), (0.5, None), (0.9, "bad")]
    )
  ]
  assert sweep.best_outcome(outcomes, "accuracy").run.seed == 1
  assert sweep.best_outcome(outcomes, "loss").run.seed == 0


def test_median_mean_and_deviation_of_a_sweep():
  run = sweep.PlannedRun(point={}, seed=0, config={})
  rows = [
    {"accuracy": accuracy, "predicted_labels": labels}
    for accuracy, labels in ((0.5, 1), (0.7, 2), (0.9, 2))
  ]
  outcomes = [sweep.Outcome(run, error=None, rows=[row]) for row in rows]
  outcomes.append(sweep.Outcome(run, error="diverged", rows=[]))
  (row,) = sweep.summarise(outcomes, "accuracy")
  assert (row["runs"], row["failed"], row["constant"]) == (4, 1, 1)
  np.testing.assert_allclose(
    [row["median"], row["mean"], row["deviation"]], [0.7, 0.7, 0.2]
  )
