"""Tests how the fields of Hugging Face's config.json are read and written."""

import json
import math

import pytest
import tiny_hf

from bert_jax.weights import hf, hf_config, model_folder

CLASSIFIER_CLASS = "BertForSequenceClassification"


def read_tiny(path, name, drop=(), **options):
  folder = tiny_hf.write_folder(path, name, drop=drop, **options)
  return hf.read(folder, tiny_hf.family_of(name))


def write_fields(path, weights):
  """Writes a folder of transformers; returns the content of its config.json."""
  hf.write(str(path), weights)
  return json.loads((path / "config.json").read_text())


def test_every_field_becomes_an_attribute(tmp_path):
  common_attributes = dict(
    vocab_size=20,
    hidden=8,
    num_layers=2,
    heads=2,
    max_positions=10,
    dropout=0.1,
    attention_dropout=0.2,
    initializer_range=0.02,
  )
  mlp_and_segments = dict(mlp=12, num_segments=2)
  for name, attributes in (
    (
      "BertModel",
      mlp_and_segments | dict(activation="gelu", norm_epsilon=1e-12),
    ),
    (
      "RobertaForMaskedLM",
      mlp_and_segments
      | dict(activation="gelu", norm_epsilon=1e-5, padding_id=1),
    ),
    (
      "AlbertForPreTraining",
      mlp_and_segments
      | dict(
        activation="gelu_new", norm_epsilon=1e-12, embedding_size=4, groups=2
      ),
    ),
    (
      "ElectraForPreTraining",
      mlp_and_segments
      | dict(activation="gelu", norm_epsilon=1e-12, embedding_size=4),
    ),
    (
      "DistilBertForMaskedLM",
      dict(mlp=12, activation="gelu", norm_epsilon=1e-12),
    ),
    (
      "OpenAIGPTLMHeadModel",
      dict(mlp=32, activation="gelu_new", norm_epsilon=1e-5),
    ),
  ):
    config = read_tiny(tmp_path / name, name).config
    assert config["model"] == common_attributes | attributes, name
    assert config["family"] == tiny_hf.family_of(name)


@pytest.mark.parametrize("name", tiny_hf.HEADS)
def test_a_missing_or_wrong_size_is_refused(name, tmp_path):
  family = tiny_hf.family_of(name)
  sizes = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "embedding_size",
    "num_hidden_groups",
    *("dim", "n_layers", "n_heads", "hidden_dim"),
    *("n_embd", "n_layer", "n_head", "n_positions"),
  }
  for field in sizes & tiny_hf.CONFIGS[family].keys():
    path = tmp_path / field
    with pytest.raises(ValueError, match=f"has no {field}, without which"):
      read_tiny(path, name, drop=[field])
    for i, size in enumerate((0, -1, 2.0, "2", True)):
      with pytest.raises(ValueError, match=f"{field} is {size!r}; it must be"):
        read_tiny(tmp_path / f"{field}{i}", name, **{field: size})


def test_an_absent_field_is_noted(tmp_path, capsys):
  drop = ["layer_norm_eps", "hidden_act"]
  config = read_tiny(tmp_path / "bert", CLASSIFIER_CLASS, drop).config
  assert config["model"]["norm_epsilon"] == 1e-12
  assert config["model"]["activation"] == "gelu"
  (note,) = capsys.readouterr().err.splitlines()
  assert note.startswith("note: ")
  assert "layer_norm_eps=1e-12" in note and "hidden_act='gelu'" in note
  with pytest.raises(ValueError) as error:
    read_tiny(tmp_path / "roberta", "RobertaForMaskedLM", ["layer_norm_eps"])
  for word in ("layer_norm_eps", "fairseq", "1e-05", "1e-12"):
    assert word in str(error.value)
  weights = read_tiny(
    tmp_path / "albert", "AlbertForPreTraining", ["hidden_act"]
  )
  assert weights.config["model"]["activation"] == "gelu_new"


@pytest.mark.parametrize(
  "name, options",
  [
    (CLASSIFIER_CLASS, dict(position_embedding_type="relative_key")),
    (CLASSIFIER_CLASS, dict(is_decoder=True)),
    (CLASSIFIER_CLASS, dict(add_cross_attention=True)),
    (CLASSIFIER_CLASS, dict(hidden_act="swish")),
    (CLASSIFIER_CLASS, dict(hidden_dropout_prob="0.1")),
    (CLASSIFIER_CLASS, dict(layer_norm_eps=-1.0)),
    (CLASSIFIER_CLASS, dict(pruned_heads={"0": [1]})),
    (CLASSIFIER_CLASS, dict(problem_type="ranking")),
    ("AlbertForPreTraining", dict(inner_group_num=2)),
    ("RobertaForMaskedLM", dict(hidden_act="relu")),
    ("ElectraForMaskedLM", dict(hidden_act="gelu_new")),
    ("ElectraForMultipleChoice", dict(summary_type="mean")),
    ("ElectraForMultipleChoice", dict(summary_activation="tanh")),
    ("OpenAIGPTDoubleHeadsModel", dict(summary_proj_to_labels=False)),
    ("OpenAIGPTLMHeadModel", dict(embd_pdrop=0.5)),
    ("OpenAIGPTLMHeadModel", dict(afn="silu")),
  ],
)
def test_unsupported_models_are_refused(name, options, tmp_path):
  ((field, setting),) = options.items()
  with pytest.raises(ValueError) as error:
    read_tiny(tmp_path / "hf", name, **options)
  assert field in str(error.value) and repr(setting) in str(error.value)


_SHARE_LIMITS = "it must be a number from 0 to below 1."
_PAD_ID_LIMITS = "it must be a whole number from 0 to below 20."


@pytest.mark.parametrize(
  "name, field, values, reason",
  [
    (
      CLASSIFIER_CLASS,
      "layer_norm_eps",
      (1e300, math.inf, 1e9, math.nan),
      _SHARE_LIMITS,
    ),
    (
      CLASSIFIER_CLASS,
      "hidden_dropout_prob",
      (2.5, math.inf, 1, 10**400),
      _SHARE_LIMITS,
    ),
    (CLASSIFIER_CLASS, "classifier_dropout", (1.5, -0.5), _SHARE_LIMITS),
    (
      CLASSIFIER_CLASS,
      "initializer_range",
      (1e9, math.nan),
      "from 0 to below 100.",
    ),
    (
      CLASSIFIER_CLASS,
      "pad_token_id",
      (-1, math.nan, 10**9, 20, 1.0, True),
      _PAD_ID_LIMITS,
    ),
    ("RobertaForMaskedLM", "pad_token_id", (-1, 9, None), "it must be"),
    (
      "OpenAIGPTLMHeadModel",
      "layer_norm_epsilon",
      (1e9, math.inf),
      _SHARE_LIMITS,
    ),
    ("OpenAIGPTLMHeadModel", "attn_pdrop", (2.5,), _SHARE_LIMITS),
  ],
)
def test_numbers_outside_their_limits_are_refused(
  name, field, values, reason, tmp_path
):
  for i, number in enumerate(values):
    with pytest.raises(ValueError) as error:
      read_tiny(tmp_path / str(i), name, **{field: number})
    message = str(error.value)
    assert f"{field} is {number!r}; it must be" in message and reason in message


def test_numbers_near_their_limits_are_read(tmp_path):
  options = dict(layer_norm_eps=0.5, hidden_dropout_prob=0.99, pad_token_id=19)
  model = read_tiny(tmp_path / "bert", CLASSIFIER_CLASS, **options).config[
    "model"
  ]
  assert model["norm_epsilon"] == 0.5 and model["dropout"] == 0.99
  for name in (CLASSIFIER_CLASS, "OpenAIGPTLMHeadModel"):
    path = tmp_path / f"{name}-none"
    assert read_tiny(path, name, pad_token_id=None).config["model"]


def test_sizes_that_do_not_divide_name_their_file(tmp_path):
  for i, (name, options) in enumerate(
    (
      (CLASSIFIER_CLASS, dict(num_attention_heads=3)),
      ("AlbertForPreTraining", dict(num_hidden_layers=3)),
    )
  ):
    with pytest.raises(ValueError, match="config.json: .* multiple of"):
      read_tiny(tmp_path / str(i), name, **options)


def test_the_names_of_activations_are_written_back(tmp_path):
  for name, options, activation in (
    ("BertModel", dict(hidden_act="gelu_pytorch_tanh"), "gelu_new"),
    ("BertModel", dict(hidden_act="gelu_python"), "gelu"),
    ("OpenAIGPTLMHeadModel", dict(afn="gelu"), "gelu_new"),
  ):
    path = tmp_path / "-".join([name, *options.values()])
    weights = read_tiny(path, name, **options)
    assert weights.config["model"]["activation"] == activation
    fields = write_fields(tmp_path / f"{path.name}-back", weights)
    assert fields.items() >= options.items()
  untied_weights = read_tiny(
    tmp_path / "untied", "BertModel", tie_word_embeddings=False
  )
  assert (
    write_fields(tmp_path / "tied", untied_weights)["tie_word_embeddings"]
    is True
  )


def test_models_that_transformers_cannot_describe_are_refused(tmp_path):
  weights = read_tiny(tmp_path / "hf", "DistilBertForMaskedLM")
  config = weights.config

  def config_with(**fields):
    model = config["model"] | fields
    return config | {"model": model, "source": {"format": "run"}}

  for changed_config, expected_text in (
    (config_with(norm_epsilon=1e-5), "norm_epsilon=1e-05"),
    (config_with(activation="tanh"), "activation='tanh'"),
    (config | {"head": {"pairs": True}}, "no class for distilbert"),
    (
      config | {"family": "roberta", "head": {"pairs": True}},
      "no class for roberta",
    ),
  ):
    with pytest.raises(ValueError) as error:
      hf_config.make_config(changed_config, files={}, dtype="float32")
    assert expected_text in str(error.value)
  weights = read_tiny(tmp_path / "gpt", "OpenAIGPTForSequenceClassification")
  weights.arrays["classifier/dense/bias"][1] = 0.5
  with pytest.raises(ValueError, match="classifier/dense/bias is not zero"):
    hf.write(str(tmp_path / "back"), weights)
  assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
  "name, options, dropout",
  [
    (CLASSIFIER_CLASS, {}, 0.1),
    (CLASSIFIER_CLASS, dict(classifier_dropout=0.4), 0.4),
    ("RobertaForTokenClassification", dict(classifier_dropout=0.0), 0.0),
    ("AlbertForQuestionAnswering", {}, 0.0),
    ("ElectraForMultipleChoice", dict(summary_last_dropout=0.3), 0.3),
    ("DistilBertForSequenceClassification", {}, 0.2),
    ("OpenAIGPTDoubleHeadsModel", dict(summary_first_dropout=0.6), 0.6),
    ("OpenAIGPTForSequenceClassification", {}, 0.0),
  ],
)
def test_the_dropout_of_a_classifier_is_read_and_written(
  name, options, dropout, tmp_path
):
  weights = read_tiny(tmp_path / "hf", name, **options)
  head = weights.config["head"]
  assert head.get("pooling", head)["dropout"] == dropout
  # A changed dropout is written to the field from which it was read.
  field = {
    "BertForSequenceClassification": "classifier_dropout",
    "RobertaForTokenClassification": "classifier_dropout",
    "ElectraForMultipleChoice": "summary_last_dropout",
    "DistilBertForSequenceClassification": "seq_classif_dropout",
    "OpenAIGPTDoubleHeadsModel": "summary_first_dropout",
  }.get(name)
  if field:
    head.get("pooling", head)["dropout"] = 0.25
    assert write_fields(tmp_path / "back", weights)[field] == 0.25


def test_labels_are_read_in_the_order_of_their_ids(tmp_path):
  """Reads and writes the names of three labels in two orders.

  The order must follow the ids, and the classifier's weights must not change.
  """
  orders = (["a", "b", "c"], ["c", "a", "b"])
  for labels in orders:
    # The keys in JSON are strings and may have any order.
    name_by_id = {str(i): labels[i] for i in (2, 0, 1)}
    folder = "-".join(labels)
    weights = read_tiny(
      tmp_path / folder,
      CLASSIFIER_CLASS,
      id2label=name_by_id,
      label2id={name: i for i, name in enumerate(labels)},
    )
    assert weights.config["labels"] == labels
    fields = write_fields(tmp_path / f"{folder}-back", weights)
    assert fields["id2label"] == {
      str(i): label for i, label in enumerate(labels)
    }
    assert fields["label2id"] == {label: i for i, label in enumerate(labels)}
    old_arrays, new_arrays = (
      model_folder.read_tensors(str(tmp_path / name / "model.safetensors"))
      for name in (folder, f"{folder}-back")
    )
    assert (
      new_arrays["classifier.weight"] == old_arrays["classifier.weight"]
    ).all()


@pytest.mark.parametrize(
  "options, expected_text",
  [
    (dict(id2label={"0": "a", "2": "b"}, label2id=None), "not 0, 1"),
    (dict(id2label={}, label2id=None), "not 0, 1"),
    (dict(id2label={"x": "a"}, label2id=None), "must map"),
    (dict(id2label=["a"], label2id=None), "must map"),
    (dict(id2label={"0": "a", "1": "a"}, label2id=None), "'a' twice"),
    (dict(label2id={"contra": 1, "neutral": 0, "entail": 2}), "disagree"),
    (dict(label2id={"contra": 0, "neutral": 1}), "disagree"),
    (dict(label2id=["contra"]), "disagree"),
    (dict(num_labels=4), "num_labels is 4, but id2label has 3"),
    (dict(id2label=None, label2id=None, num_labels="3"), "num_labels is '3'"),
    # The classifier in the file has three labels.
    (dict(id2label={"0": "a", "1": "b"}, label2id=None), "classifier.weight"),
  ],
)
def test_inconsistent_labels_are_refused(options, expected_text, tmp_path):
  with pytest.raises(ValueError) as error:
    read_tiny(tmp_path / "hf", CLASSIFIER_CLASS, **options)
  assert expected_text in str(error.value)


def test_labels_without_names_get_default_names(tmp_path, capsys):
  default_names = {"0": "LABEL_0", "1": "LABEL_1"}
  for i, options in enumerate(
    (dict(num_labels=3), dict(num_labels=3, id2label=default_names))
  ):
    options = dict(id2label=None, label2id=None) | options
    config = read_tiny(tmp_path / str(i), CLASSIFIER_CLASS, **options).config
    assert config["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
  # The ids may be strings of digits.
  names = {"contra": "0", "neutral": "1", "entail": "2"}
  assert read_tiny(tmp_path / "text", CLASSIFIER_CLASS, label2id=names).config[
    "labels"
  ]
  assert "num_labels=3 is used" in capsys.readouterr().err
  # A model without a classifier keeps id2label, although it has no labels.
  weights = read_tiny(
    tmp_path / "lm", "BertForMaskedLM", id2label=default_names
  )
  assert weights.config["labels"] is None
  assert write_fields(tmp_path / "back", weights)["id2label"] == default_names


def test_problem_types_are_read_and_written(tmp_path):
  for i, (problem_type, problem) in enumerate(
    (
      (None, "classification"),
      ("single_label_classification", "classification"),
      ("multi_label_classification", "multi_label"),
      ("regression", "regression"),
    )
  ):
    weights = read_tiny(
      tmp_path / str(i), CLASSIFIER_CLASS, problem_type=problem_type
    )
    assert weights.config["problem"] == problem
    path = tmp_path / f"ours{i}"
    model_folder.write(str(path), weights)
    weights = model_folder.read(str(path))
    fields = write_fields(tmp_path / f"{i}-back", weights)
    assert fields["problem_type"] == problem_type
    weights.config["source"] = {"format": "run"}
    fields = write_fields(tmp_path / f"{i}-run", weights)
    expected = problem_type if problem != "classification" else None
    assert fields.get("problem_type") == expected
  # A classifier with one label is a regression, as in transformers.
  assert (
    hf_config.problem_of(config={}, num_labels=1, source="file") == "regression"
  )


def test_a_missing_pad_token_id_comes_from_the_vocabulary(tmp_path):
  weights = read_tiny(tmp_path / "hf", "BertModel", drop=["pad_token_id"])
  files = {"vocab.txt": b"[UNK]\n[CLS]\n[PAD]\n"}
  weights = weights._replace(tokenizer_files=files)
  assert write_fields(tmp_path / "back", weights)["pad_token_id"] == 2
