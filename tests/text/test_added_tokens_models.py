"""Tests that models with added tokens give the results of transformers."""

import json

import numpy as np
import pytest
from tiny_added_tokens import TEXTS, write_model

from bert_jax.tasks import prepare_task, task_inputs
from bert_jax.tasks.encoded_rows import load as load_rows
from bert_jax.text import open_vocabulary
from bert_jax.use import export, features, likelihood, predict
from bert_jax.weights import hf, model_folder
from bert_jax.weights import load as loading
from bert_jax.weights.load import open_model

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip(
  "transformers", reason="transformers is not installed"
)
TEXTS_WITHOUT_SEP = [text for text in TEXTS if text and "[SEP]" not in text]
SIZES = dict(
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=24,
  max_position_embeddings=64,
  initializer_range=1.0,
)
CLASS_ENDINGS = dict(
  classes="ForSequenceClassification", fill="ForMaskedLM", encoder="Model"
)


def write_random_model(path, family, head, declaring_file):
  """Writes a random model of transformers and its tokenizer; returns both."""
  write_model(path, family, declaring_file)
  tokenizer = transformers.AutoTokenizer.from_pretrained(path)
  class_prefix = family.capitalize()
  family_sizes = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "albert": {"embedding_size": 8, "num_hidden_groups": 1},
  }
  config = getattr(transformers, f"{class_prefix}Config")(
    vocab_size=len(tokenizer), num_labels=3, **SIZES, **family_sizes[family]
  )
  torch.manual_seed(0)
  model = getattr(transformers, class_prefix + CLASS_ENDINGS[head])(
    config
  ).eval()
  model.save_pretrained(path)
  return model, tokenizer


def run_reference(model, tokenizer, text):
  with torch.no_grad():
    return model(**tokenizer(text, return_tensors="pt"))


@pytest.mark.parametrize(
  "family, declaring_file",
  [
    ("bert", "added_tokens.json"),
    pytest.param("bert", "tokenizer.json", marks=pytest.mark.slow),
    pytest.param("roberta", "tokenizer_config.json", marks=pytest.mark.slow),
    pytest.param("albert", "tokenizer.json", marks=pytest.mark.slow),
  ],
)
def test_probabilities_are_those_of_transformers(
  family, declaring_file, tmp_path
):
  """Opens a model as published, converted, converted back and exported.

  Each form must give the probabilities of transformers.
  """
  path = str(tmp_path / "published")
  model, tokenizer = write_random_model(
    tmp_path / "published", family, "classes", declaring_file
  )
  expected = [
    torch.softmax(run_reference(model, tokenizer, text).logits[0], -1).tolist()
    for text in TEXTS_WITHOUT_SEP
  ]
  opened = loading.open_model(path)
  model_folder.write(str(tmp_path / "converted"), opened.weights)
  hf.write(str(tmp_path / "back"), loading.read(str(tmp_path / "converted")))
  export.save(
    str(tmp_path / "program"), opened, lengths=[64], platforms=["cpu"]
  )
  examples = [
    {"id": i, "texts": [text]} for i, text in enumerate(TEXTS_WITHOUT_SEP)
  ]
  predictors = [
    predict.open_predictor(str(tmp_path / name), max_length=64)
    for name in ("published", "converted", "back")
  ]
  for predictor in (*predictors, export.load(str(tmp_path / "program"))):
    predictions = predict.predict(predictor, examples)
    probabilities = [
      [*prediction["probabilities"].values()] for prediction in predictions
    ]
    # The logits are about 10, so the libraries' float32 results differ a bit.
    np.testing.assert_allclose(probabilities, expected, atol=2e-5)
  for name in ("back", "published"):
    reopened = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
    assert [reopened(text)["input_ids"] for text in TEXTS_WITHOUT_SEP] == [
      tokenizer(text)["input_ids"] for text in TEXTS_WITHOUT_SEP
    ]
  _check_task_ids(tmp_path, path, tokenizer)


def _check_task_ids(tmp_path, path, tokenizer):
  """Prepares a task; its ids must be those of transformers."""
  lines = [
    json.dumps({"a": text, "b": pair, "label": "x"})
    for text, pair in zip(
      TEXTS_WITHOUT_SEP, TEXTS_WITHOUT_SEP[::-1], strict=True
    )
  ]
  (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
  task = task_inputs.find_task(
    "mine", "classification", "text=a,pair=b,label=label", ["x", "y"]
  )
  prepare_task.prepare(
    task,
    task_inputs.parse_inputs(task, [f"train={tmp_path}/t.jsonl"]),
    path,
    str(tmp_path / "task"),
    length=64,
  )
  _, rows, _ = load_rows(str(tmp_path / "task"), "train")
  ids = np.split(rows.ids, rows.starts[1:-1])
  for row, text, pair in zip(
    ids, TEXTS_WITHOUT_SEP, TEXTS_WITHOUT_SEP[::-1], strict=True
  ):
    assert row.tolist() == tokenizer(text, pair)["input_ids"]
  saved = open_vocabulary.load(str(tmp_path / "task"))
  assert saved.encode_batch(TEXTS_WITHOUT_SEP) == [
    tokenizer(text, add_special_tokens=False)["input_ids"]
    for text in TEXTS_WITHOUT_SEP
  ]


def test_scores_masks_and_vectors_are_those_of_transformers(tmp_path):
  path = str(tmp_path / "fill")
  model, tokenizer = write_random_model(
    tmp_path / "fill", "bert", "fill", "added_tokens.json"
  )
  mask = tokenizer.mask_token_id
  # Make a row for each token between [CLS] and [SEP], with this token masked.
  expected = []
  for text in TEXTS_WITHOUT_SEP[:3]:
    ids = torch.tensor(tokenizer(text)["input_ids"])
    inner_positions = range(1, len(ids) - 1)
    rows = torch.stack([ids.clone() for _ in inner_positions])
    for row, position in zip(rows, inner_positions, strict=True):
      row[position] = mask
    with torch.no_grad():
      log_p = torch.log_softmax(model(input_ids=rows).logits, -1)
    label_log_p = [log_p[i - 1, i, ids[i]] for i in inner_positions]
    expected.append(float(sum(label_log_p)))
  opened = open_model(path, default_tower="discriminator")
  scores = likelihood.score_texts(opened, TEXTS_WITHOUT_SEP[:3])
  np.testing.assert_allclose(scores, expected, rtol=1e-5)
  text = "the covid19 [MASK] in New York [E1]"
  logits = run_reference(model, tokenizer, text).logits[0]
  position = tokenizer(text)["input_ids"].index(mask)
  top_three = torch.softmax(logits[position], -1).topk(3)
  predictor = predict.open_predictor(path, top_k=3)
  (prediction,) = predict.predict(predictor, [{"id": 0, "text": text}])
  (candidates,) = prediction["masks"]
  pieces = list(predictor.vocabulary.pieces)
  candidate_ids = [pieces.index(candidate["token"]) for candidate in candidates]
  assert candidate_ids == top_three.indices.tolist()
  probabilities = [candidate["probability"] for candidate in candidates]
  np.testing.assert_allclose(
    probabilities, top_three.values.tolist(), atol=1e-5
  )
  for text, text_features in zip(
    TEXTS_WITHOUT_SEP, features.extract(opened, TEXTS_WITHOUT_SEP), strict=True
  ):
    expected_vectors = (
      run_reference(model.bert, tokenizer, text).last_hidden_state[0].numpy()
    )
    assert list(text_features.tokens) == tokenizer(text).tokens()
    np.testing.assert_allclose(
      text_features.vectors, expected_vectors, atol=2e-4
    )
