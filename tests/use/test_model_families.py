"""Compares every method of every family with transformers.

Each model is opened from a converted folder, from a run's folder, and from the
two folders that `save` writes.
"""

import json

import numpy as np
import pytest
import tiny_families
import tiny_models
from close_results import assert_close, assert_same_results

import bert_jax
from bert_jax.cli.main import execute
from bert_jax.messages import UserError
from bert_jax.models import heads
from bert_jax.tasks import layouts
from bert_jax.weights.generator_discriminator import TOWERS

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("compilation_cache", "fast_compilation"),
]

TEXT, OTHER_TEXT = "the cat sat on a mat", "b c"
FAMILIES = tiny_families.FAMILY_NAMES
# Sizes that transformers' GPT needs, and the sizes of ELECTRA's two towers.
SIZES = {"gpt": {"mlp": 64}, "electra": {"mlp": 64, "generator_hidden": 8}}
# (Family, task) -> the pooling of transformers, if it differs from that of a
# fine-tuned run.
POOLINGS = {
  ("roberta", "multiple_choice"): heads.Pooling("tanh", False, False, 0.0),
}
# Task -> (options of the model, the name of transformers' class, an input).
TASKS = {
  "sequence_classification": (
    dict(head={"num_labels": 3}, labels=["x", "y", "z"]),
    "AutoModelForSequenceClassification",
    TEXT,
  ),
  "multiple_choice": (
    dict(head={"num_labels": 1}),
    "AutoModelForMultipleChoice",
    {"choices": [TEXT, OTHER_TEXT]},
  ),
  "token_classification": (
    dict(head={"num_labels": 3}, labels=["O", "B-X", "I-X"]),
    "AutoModelForTokenClassification",
    TEXT,
  ),
  "span": ({}, "AutoModelForQuestionAnswering", (OTHER_TEXT, TEXT)),
}


def load_copies(path, folder):
  """Yields one model, opened from a converted folder and from its copies.

  The copies are a run's folder and the folders that `save` writes.
  """
  model = bert_jax.load(folder)
  yield model
  yield bert_jax.load(tiny_models.write_run(path / "run", folder))
  model.save(path / "ours")
  yield bert_jax.load(path / "ours")
  if model.family != "elmo":
    model.save(path / "hf", format="hf")
    yield bert_jax.load(path / "hf")


def open_torch_model(path, name):
  """Opens a folder with a class of transformers, and returns the module."""
  transformers = pytest.importorskip("transformers")
  options = {"attn_implementation": "eager"}
  return getattr(transformers, name).from_pretrained(path, **options).eval()


def run_torch(module, ids, **inputs):
  import torch

  with torch.no_grad():
    inputs = {name: torch.tensor(array) for name, array in inputs.items()}
    return module(torch.tensor(ids), **inputs)


def softmax(logits):
  exponents = np.exp(logits - logits.max(-1, keepdims=True))
  return exponents / exponents.sum(-1, keepdims=True)


def method_results(model):
  """Returns the result of every method that a pre-trained model has."""
  results = {
    "features": model.features([TEXT, OTHER_TEXT]),
    "layers": model.features(TEXT, layers="all", combine="stack"),
    "words": model.features(TEXT, unit="word"),
    "similarity": model.similarity(TEXT, [TEXT, OTHER_TEXT]),
    "tokenize": model.tokenize(TEXT),
  }
  if "fill_mask" in model.methods:
    text = TEXT.replace("cat", model.mask_token)
    results["fill_mask"] = model.fill_mask([text], top_k=4)
  if "likelihood" in model.methods:
    results["likelihood"] = model.likelihood([TEXT, OTHER_TEXT])
  if "attention" in model.methods:
    results["attention"] = model.attention(TEXT)
  return results


@pytest.mark.parametrize("family", [*FAMILIES, "elmo"])
def test_pretrained_models_agree_with_transformers(family, tmp_path):
  sizes = SIZES.get(family, {})
  task = "encoder" if family == "elmo" else "pretraining"
  folder = tiny_models.write_model(tmp_path / "m", family, task, **sizes)
  results, *copy_results = map(method_results, load_copies(tmp_path, folder))
  assert len(copy_results) == (2 if family == "elmo" else 3)
  for other_results in copy_results:
    assert_same_results(other_results, results)
  if family == "elmo":
    assert results["words"]["tokens"] == TEXT.split()
    assert results["layers"].shape[0] == 3
    return
  assert ("fill_mask" in results) == (family != "gpt")
  path = tmp_path / "hf"
  batch_ids = [results["tokenize"]["ids"]]
  module = open_torch_model(
    path / "discriminator" if family == "electra" else path, "AutoModel"
  )
  module.config.output_attentions = module.config.output_hidden_states = True
  outputs = run_torch(module, batch_ids)
  assert_close(results["features"][0], outputs.last_hidden_state[0].mean(0))
  layers = np.stack([layer[0].mean(0) for layer in outputs.hidden_states])
  assert_close(results["layers"], layers)
  attention = np.stack([layer[0] for layer in outputs.attentions])
  assert_close(results["attention"]["attention"], attention)
  assert results["attention"]["tokens"] == results["tokenize"]["pieces"]
  if family == "gpt":
    module = open_torch_model(path, "AutoModelForCausalLM")
    logits = run_torch(module, batch_ids).logits[0].numpy()
    log_p = np.log(softmax(logits.astype(np.float64)))
    token_log_ps = [
      log_p[i, token_id] for i, token_id in enumerate(batch_ids[0][1:])
    ]
    assert_close(results["likelihood"][0], sum(token_log_ps))
    return
  generator_path = path / "generator" if family == "electra" else path
  module = open_torch_model(generator_path, "AutoModelForMaskedLM")
  model = bert_jax.load(path)
  mask_id = model.vocabulary.special.mask
  text = TEXT.replace("cat", model.mask_token)
  masked_ids = model.tokenize(text)["ids"]
  logits = (
    run_torch(module, [masked_ids]).logits[0, masked_ids.index(mask_id)].numpy()
  )
  (candidates,) = results["fill_mask"][0]["masks"]
  probabilities = softmax(logits)
  best_ids = np.argsort(-probabilities)[:4]
  assert_close(
    [candidate["probability"] for candidate in candidates],
    probabilities[best_ids],
  )
  pieces = model.vocabulary.pieces
  assert [candidate["token"] for candidate in candidates] == [
    pieces[i] for i in best_ids
  ]
  if family == "electra":
    module = open_torch_model(path / "discriminator", "ElectraForPreTraining")
    logits = run_torch(module, batch_ids).logits[0, 1:-1].numpy()
    assert_close(results["likelihood"][0], -np.log1p(np.exp(logits)).sum())
    return
  log_likelihood = 0.0
  for i in range(1, len(batch_ids[0]) - 1):
    row = [*batch_ids[0][:i], mask_id, *batch_ids[0][i + 1 :]]
    logits = run_torch(module, [row]).logits[0, i].numpy()
    log_likelihood += np.log(
      softmax(logits.astype(np.float64))[batch_ids[0][i]]
    )
  assert_close(results["likelihood"][0], log_likelihood)


@pytest.mark.parametrize("tower", TOWERS)
def test_a_model_of_one_tower_gives_the_results_of_both_towers(tower, tmp_path):
  folder = tiny_models.write_model(
    tmp_path / "m", "electra", "pretraining", **SIZES["electra"]
  )
  both_results = method_results(bert_jax.load(folder))
  model = bert_jax.load(folder, tower=tower)
  tower_results = method_results(model)
  assert ("fill_mask" in model.methods) == (tower == "generator")
  if tower == "generator":
    assert_same_results(tower_results["fill_mask"], both_results["fill_mask"])
    pll_of_both = bert_jax.load(folder).likelihood(
      [TEXT, OTHER_TEXT], method="pll"
    )
    assert_close(tower_results["likelihood"], pll_of_both)
  else:
    del both_results["fill_mask"]
    assert_same_results(tower_results, both_results)


def families_with_tasks():
  for family in FAMILIES:
    for task in TASKS:
      yield family, task


def ids_and_segments(model, texts):
  """Returns the ids and segments of a text, or of a pair, for a classifier."""
  layout = layouts.layout_of(model.vocabulary)
  first_ids, *second_ids = model.vocabulary.encode_batch(texts)
  ids = [*layout.begin, *first_ids]
  segments = [0] * len(ids)
  if second_ids:
    ids += [*layout.between, *second_ids[0]]
    segments += [0] * len(layout.between) + [1] * len(second_ids[0])
  ids += layout.end
  segments += [segments[-1]] * len(layout.end)
  return ids, segments


# The pairs (family, task) for whose model transformers has no class.
MISSING_CLASSES = {
  ("gpt", "sequence_classification"),
  ("gpt", "multiple_choice"),
  ("gpt", "token_classification"),
  ("gpt", "span"),
  ("electra", "sequence_classification"),
  ("electra", "multiple_choice"),
}


@pytest.mark.parametrize("family, task", [*families_with_tasks()])
def test_fine_tuned_models_agree_with_transformers(
  family, task, tmp_path, capsys
):
  options, class_name, inputs = TASKS[task]
  if task == "sequence_classification":
    options = options | {"problem": "classification"}
  options = options | SIZES.get(family, {})
  if (family, task) in POOLINGS:
    pooling = POOLINGS[family, task]._asdict()
    options["head"] = options["head"] | {"pooling": pooling}
  if family == "gpt":
    options["extra_rows"] = len(layouts.GPT1_TOKENS)
  folder = tiny_models.write_model(tmp_path / "m", family, task, **options)
  if (family, task) in MISSING_CLASSES:
    models = [
      bert_jax.load(folder),
      bert_jax.load(tiny_models.write_run(tmp_path / "run", folder)),
    ]
  else:
    models = list(load_copies(tmp_path, folder))
  predictions = [model.predict(inputs) for model in models]
  for prediction in predictions[1:]:
    assert_same_results(prediction, predictions[0])
  prediction, model = predictions[0], models[0]
  predictions_of_two = model.predict([inputs, inputs])
  assert_same_results(predictions_of_two[0], prediction)
  with pytest.raises(UserError, match="so it has no fill_mask"):
    model.fill_mask(TEXT)
  assert model.features(TEXT).shape == (16,)
  assert model.attention(TEXT)["attention"].shape[:2] == (2, 2)
  fields = inputs
  if isinstance(inputs, str):
    fields = {"text": inputs}
  elif isinstance(inputs, tuple):
    fields = dict(zip(("question", "context"), inputs, strict=True))
  (tmp_path / "in.jsonl").write_text(json.dumps(fields))
  files = [f"--input={tmp_path}/in.jsonl", f"--output={tmp_path}/outputs.jsonl"]
  execute(["predict", "--model", folder, *files])
  printed = json.loads((tmp_path / "outputs.jsonl").read_text())
  assert printed.pop("id") == 1
  assert_same_results(printed, prediction)
  if (family, task) in MISSING_CLASSES:
    return
  module = open_torch_model(tmp_path / "hf", class_name)
  if task == "sequence_classification":
    ids, _ = ids_and_segments(model, [TEXT])
    module.config.pad_token_id = 0
    logits = run_torch(module, [ids]).logits[0].numpy()
    assert_close([*prediction["probabilities"].values()], softmax(logits))
  elif task == "multiple_choice":
    scores = []
    for choice in inputs["choices"]:
      ids, _ = ids_and_segments(model, [choice])
      scores.append(run_torch(module, [[ids]]).logits[0, 0].item())
    assert_close(prediction["probabilities"], softmax(np.array(scores)))
  elif task == "token_classification":
    words = TEXT.split()
    ids, counts = model.vocabulary.encode_words(words)
    layout = layouts.layout_of(model.vocabulary)
    logits = (
      run_torch(module, [[*layout.begin, *ids.tolist(), *layout.end]])
      .logits[0]
      .numpy()
    )
    first_positions = len(layout.begin) + np.cumsum([0, *counts[:-1]])
    probabilities = softmax(logits)[first_positions]
    assert prediction["tags"] == [
      model.labels[i] for i in probabilities.argmax(-1)
    ]
    assert_close(prediction["probabilities"], probabilities.max(-1))
  else:
    ids, segments = ids_and_segments(model, list(inputs))
    segment_inputs = {}
    if family in ("bert", "albert", "electra"):
      segment_inputs["token_type_ids"] = [segments]
    outputs = run_torch(module, [ids], **segment_inputs)
    start_logits, end_logits = (
      outputs.start_logits[0].numpy(),
      outputs.end_logits[0].numpy(),
    )
    offsets = model.vocabulary.encode_offsets([TEXT])[0].offsets
    # The context is before the one special token at the end.
    context_begin = len(ids) - 1 - len(offsets)
    scores = (
      start_logits[context_begin:-1, None] + end_logits[None, context_begin:-1]
    )
    scores = np.where(np.triu(np.ones_like(scores)), scores, -np.inf)
    first_piece, last_piece = np.unravel_index(scores.argmax(), scores.shape)
    answer = TEXT[offsets[first_piece][0] : offsets[last_piece][1]].strip()
    assert prediction["answer"] == answer
    assert TEXT[prediction["start"] : prediction["end"]] == answer
