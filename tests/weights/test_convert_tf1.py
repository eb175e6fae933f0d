"""Tests that TF1 checkpoints become our parameters, bit for bit.

TensorFlow writes the checkpoints of these tests.
"""

import json
import pathlib

import numpy as np
import pytest
from tf1_releases import (
  BERT_CONFIG,
  DISCRIMINATOR_HIDDEN,
  EMBEDDING_SIZE,
  EXTRA_FIELDS,
  GENERATOR_HIDDEN,
  HIDDEN,
  MLP,
  NUM_HEADS,
  NUM_LAYERS,
  NUM_POSITIONS,
  NUM_SEGMENTS,
  VOCAB_SIZE,
  albert_shapes,
  bert_shapes,
  electra_shapes,
  random_arrays,
  save_checkpoint,
  write_json,
  write_release,
)

from bert_jax.weights import hf, model_folder, tf1

pytest.importorskip("tensorflow", reason="writes TF1 checkpoints")


def layer_params(path, variables, layer_names, name_by_module, heads):
  """Returns the expected parameters of the encoder's stacked layers.

  Args:
    path: the first part of all parameters' names, such as "encoder".
    variables: name -> array of the checkpoint.
    layer_names: the name of each layer in the checkpoint.
    name_by_module: module in our layer -> its name in the checkpoint's layer.
    heads: the number of attention heads.
  """
  num_layers = len(layer_names)
  expected = {}

  def stack(name):
    return np.stack(
      [variables[f"{layer_names[i]}/{name}"] for i in range(num_layers)]
    )

  for module, name in name_by_module.items():
    target = f"{path}/layers/layer/{module}"
    if module.endswith("norm"):
      expected[f"{target}/scale"] = stack(f"{name}/gamma")
      expected[f"{target}/bias"] = stack(f"{name}/beta")
      continue
    kernel, bias = stack(f"{name}/kernel"), stack(f"{name}/bias")
    if module == "attention/output":
      kernel = kernel.reshape(num_layers, heads, -1, kernel.shape[-1])
    elif module.startswith("attention"):
      kernel = kernel.reshape(num_layers, kernel.shape[1], heads, -1)
      bias = bias.reshape(num_layers, heads, -1)
    expected[f"{target}/kernel"], expected[f"{target}/bias"] = kernel, bias
  return expected


# Module in our layer -> its name in a layer of the checkpoint.
BERT_NAME_BY_MODULE = {
  "attention/query": "attention/self/query",
  "attention/key": "attention/self/key",
  "attention/value": "attention/self/value",
  "attention/output": "attention/output/dense",
  "attention_norm": "attention/output/LayerNorm",
  "mlp_in": "intermediate/dense",
  "mlp_out": "output/dense",
  "mlp_norm": "output/LayerNorm",
}
ALBERT_NAME_BY_MODULE = {
  "attention/query": "attention_1/self/query",
  "attention/key": "attention_1/self/key",
  "attention/value": "attention_1/self/value",
  "attention/output": "attention_1/output/dense",
  "attention_norm": "LayerNorm",
  "mlp_in": "ffn_1/intermediate/dense",
  "mlp_out": "ffn_1/intermediate/output/dense",
  "mlp_norm": "LayerNorm_1",
}


def table_params(path, variables, scope):
  return {
    f"{path}/word/embedding": variables[f"{scope}/word_embeddings"],
    f"{path}/position/embedding": variables[f"{scope}/position_embeddings"],
    f"{path}/segment/embedding": variables[f"{scope}/token_type_embeddings"],
    f"{path}/norm/scale": variables[f"{scope}/LayerNorm/gamma"],
    f"{path}/norm/bias": variables[f"{scope}/LayerNorm/beta"],
  }


def dense_params(path, variables, name):
  return {
    f"{path}/kernel": variables[f"{name}/kernel"],
    f"{path}/bias": variables[f"{name}/bias"],
  }


def mlm_params(variables, dense, norm, bias):
  return dense_params("mlm/dense", variables, dense) | {
    "mlm/norm/scale": variables[f"{norm}/gamma"],
    "mlm/norm/bias": variables[f"{norm}/beta"],
    "mlm/bias": variables[bias],
  }


def pretraining_params(variables):
  scope = "cls/predictions"
  params = mlm_params(
    variables,
    f"{scope}/transform/dense",
    f"{scope}/transform/LayerNorm",
    f"{scope}/output_bias",
  )
  params |= dense_params("pooler/dense", variables, "bert/pooler/dense")
  # In the checkpoint, this kernel is [outputs, inputs].
  params["pair/dense/kernel"] = variables[
    "cls/seq_relationship/output_weights"
  ].T
  return params | {
    "pair/dense/bias": variables["cls/seq_relationship/output_bias"]
  }


def bert_encoder_params(variables):
  names = [f"bert/encoder/layer_{i}" for i in range(NUM_LAYERS)]
  params = table_params("encoder/embeddings", variables, "bert/embeddings")
  return params | layer_params(
    "encoder", variables, names, BERT_NAME_BY_MODULE, NUM_HEADS
  )


def assert_equal(weights, expected):
  assert weights.arrays.keys() == expected.keys()
  for path, array in expected.items():
    param = weights.arrays[path]
    assert param.dtype == np.float32 and param.shape == array.shape, path
    assert param.tobytes() == np.ascontiguousarray(array).tobytes(), path


@pytest.fixture(scope="module")
def bert_release(tmp_path_factory):
  """Writes a release of BERT that has the arrays of an optimizer.

  Returns the release's path, the model's arrays, and the names of the
  optimizer's arrays.
  """
  path, arrays = (
    str(tmp_path_factory.mktemp("bert")),
    random_arrays(bert_shapes()),
  )
  return (
    path,
    arrays,
    write_release(path, arrays, has_slots=True, **EXTRA_FIELDS),
  )


def test_bert_with_pretraining_heads_is_read(bert_release, tmp_path):
  path, arrays, optimizer_names = bert_release
  weights = tf1.read(path, "bert")
  assert_equal(
    weights, bert_encoder_params(arrays) | pretraining_params(arrays)
  )
  config = weights.config
  assert (config["family"], config["task"]) == ("bert", "pretraining")
  assert config["head"] == {"pairs": True} and config["labels"] is None
  assert config["model"] == dict(
    vocab_size=VOCAB_SIZE,
    hidden=HIDDEN,
    num_layers=NUM_LAYERS,
    heads=NUM_HEADS,
    mlp=MLP,
    max_positions=NUM_POSITIONS,
    num_segments=NUM_SEGMENTS,
    dropout=0.1,
    attention_dropout=0.2,
    initializer_range=0.03,
    activation="gelu",
    norm_epsilon=1e-12,
  )
  assert config["source"] == dict(
    format="tf1", dtype="float32", skipped=optimizer_names, config=EXTRA_FIELDS
  )
  settings = json.loads(weights.tokenizer_files["tokenizer_config.json"])
  assert settings == {"do_lower_case": True}
  model_folder.write(str(tmp_path / "ours"), weights)
  reread = model_folder.read(str(tmp_path / "ours"))
  assert_equal(reread, weights.arrays)
  assert reread.config == config
  assert reread.tokenizer_files == weights.tokenizer_files


def write_albert_release(path, num_groups, **fields):
  """Writes a release of ALBERT with 4 layers; returns its arrays."""
  arrays = random_arrays(albert_shapes(num_groups))
  save_checkpoint(path, "model.ckpt-best", arrays, has_slots=False)
  config = (
    BERT_CONFIG
    | {"embedding_size": EMBEDDING_SIZE, "num_hidden_layers": 4}
    | fields
  )
  config |= {"num_hidden_groups": num_groups}
  write_json(f"{path}/albert_config.json", config)
  pathlib.Path(path, "30k-clean.model").write_bytes(b"a model")
  return arrays


@pytest.mark.parametrize("num_groups", [1, 2])
def test_albert_is_read(tmp_path, num_groups):
  path = str(tmp_path)
  unused_fields = {"inner_group_num": 1, "net_structure_type": 0, "gap_size": 0}
  variables = write_albert_release(path, num_groups, **unused_fields)
  weights = tf1.read(path, "albert")
  scope = "bert/encoder/transformer"
  names = [f"{scope}/group_{i}/inner_group_0" for i in range(num_groups)]
  expected = table_params("encoder/embeddings", variables, "bert/embeddings")
  expected |= layer_params(
    "encoder", variables, names, ALBERT_NAME_BY_MODULE, NUM_HEADS
  )
  expected |= dense_params(
    "encoder/project", variables, "bert/encoder/embedding_hidden_mapping_in"
  )
  assert_equal(weights, expected | pretraining_params(variables))
  model = weights.config["model"]
  assert (model["num_layers"], model["groups"]) == (4, num_groups)
  assert model["embedding_size"] == EMBEDDING_SIZE
  # ALBERT's "gelu" is the approximation by tanh.
  assert model["activation"] == "gelu_new"
  assert weights.config["source"]["config"] == unused_fields
  assert weights.tokenizer_files == {"spiece.model": b"a model"}


@pytest.fixture(scope="module")
def electra_release(tmp_path_factory):
  """Writes a release of ELECTRA without a config; returns path and arrays."""
  path, arrays = (
    str(tmp_path_factory.mktemp("electra")),
    random_arrays(electra_shapes()),
  )
  save_checkpoint(path, "electra_small", arrays)
  return path, arrays


def tower_params(path, variables, scope, heads):
  names = [f"{scope}/encoder/layer_{i}" for i in range(NUM_LAYERS)]
  params = layer_params(path, variables, names, BERT_NAME_BY_MODULE, heads)
  return params | dense_params(
    f"{path}/project", variables, f"{scope}/embeddings_project"
  )


def electra_params(variables, tower):
  has_both = tower == "both"
  path = "embeddings" if has_both else "encoder/embeddings"
  params = table_params(path, variables, "electra/embeddings")
  if tower != "generator":
    path = "discriminator" if has_both else "encoder/tower"
    params |= tower_params(
      path, variables, "electra", DISCRIMINATOR_HIDDEN // 64
    )
    scope = "discriminator_predictions"
    params |= dense_params("rtd/dense", variables, f"{scope}/dense")
    params |= dense_params("rtd/output/dense", variables, f"{scope}/dense_1")
  if tower != "discriminator":
    path = "generator" if has_both else "encoder/tower"
    params |= tower_params(path, variables, "generator", GENERATOR_HIDDEN // 64)
    scope = "generator_predictions"
    names = (f"{scope}/dense", f"{scope}/LayerNorm", f"{scope}/output_bias")
    params |= mlm_params(variables, *names)
  return params


@pytest.mark.parametrize("tower", ["both", "generator", "discriminator"])
def test_electra_without_a_config_is_read(electra_release, tower, capsys):
  path, arrays = electra_release
  weights = tf1.read(path, "electra", tower)
  assert_equal(weights, electra_params(arrays, tower))
  is_generator = tower == "generator"
  width, mlp = (
    (GENERATOR_HIDDEN, 4 * GENERATOR_HIDDEN)
    if is_generator
    else (DISCRIMINATOR_HIDDEN, MLP)
  )
  generator_size = (
    {"generator_hidden": GENERATOR_HIDDEN} if tower == "both" else {}
  )
  assert weights.config["model"] == generator_size | dict(
    vocab_size=VOCAB_SIZE,
    embedding_size=EMBEDDING_SIZE,
    hidden=width,
    num_layers=NUM_LAYERS,
    heads=width // 64,
    mlp=mlp,
    max_positions=NUM_POSITIONS,
    num_segments=NUM_SEGMENTS,
    dropout=0.1,
    attention_dropout=0.1,
    initializer_range=0.02,
    activation="gelu",
    norm_epsilon=1e-12,
  )
  assert "no electra_config.json: sizes come from" in capsys.readouterr().err
  skipped_names = weights.config["source"]["skipped"]
  unused_names = {name for name in skipped_names if "/adam_" not in name}
  unused_names -= {"global_step"}
  used_names = {name for name in arrays if name not in unused_names}
  other_tower = {"generator": "discriminator", "discriminator": "generator"}
  if tower == "both":
    assert not unused_names
    assert tf1.read(path, "electra").config == weights.config
  else:
    assert used_names | unused_names == arrays.keys()
    assert any(
      name.startswith(f"{other_tower[tower]}_predictions/")
      for name in unused_names
    )
    shared_names = {
      name for name in arrays if name.startswith("electra/embeddings/")
    }
    assert shared_names <= used_names and len(shared_names) == 5


def test_electra_with_a_config_is_read(tmp_path):
  arrays = random_arrays(electra_shapes())
  save_checkpoint(str(tmp_path), "model.ckpt-7", arrays, has_slots=False)
  config = {"num_attention_heads": 4, "hidden_dropout_prob": 0.25}
  write_json(tmp_path / "electra_config.json", config)
  model = tf1.read(str(tmp_path), "electra").config["model"]
  assert (model["heads"], model["dropout"], model["hidden"]) == (
    4,
    0.25,
    DISCRIMINATOR_HIDDEN,
  )
  # The config describes the discriminator. The generator has as many heads as
  # its width divided by 64.
  model = tf1.read(str(tmp_path), "electra", "generator").config["model"]
  assert (model["heads"], model["dropout"], model["hidden"]) == (
    1,
    0.25,
    GENERATOR_HIDDEN,
  )


@pytest.mark.parametrize("head", ["classifier", "span", "encoder"])
def test_a_fine_tuned_bert_is_read(tmp_path, head):
  arrays = random_arrays(bert_shapes(head))
  write_release(str(tmp_path), arrays, hidden_act="relu", type_vocab_size=None)
  weights = tf1.read(str(tmp_path), "bert")
  scope = {"classifier": "", "span": "cls/squad/"}.get(head)
  expected = bert_encoder_params(arrays)
  expected |= dense_params("pooler/dense", arrays, "bert/pooler/dense")
  if scope is not None:
    expected["classifier/dense/kernel"] = arrays[f"{scope}output_weights"].T
    expected["classifier/dense/bias"] = arrays[f"{scope}output_bias"]
  assert_equal(weights, expected)
  config = weights.config
  assert config["model"]["activation"] == "relu"
  # The config has no type_vocab_size, so the size of the table is used.
  assert config["model"]["num_segments"] == NUM_SEGMENTS
  # `pooler` is True if the model has a pooler that its head does not read. Only
  # a classifier reads the pooler.
  assert config["pooler"] == (head != "classifier")
  if head == "classifier":
    assert config["task"] == "sequence_classification"
    assert config["problem"] == "classification"
    assert config["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert config["head"]["pooling"]["dropout"] == 0.1
  hf.write(str(tmp_path / "hf"), weights)
  reread = hf.read(str(tmp_path / "hf"), "bert")
  assert_equal(reread, expected)
  for key in ("task", "model", "head", "labels", "problem", "pooler"):
    assert reread.config[key] == config[key], key


def test_slots_of_optimizers_are_skipped_and_half_precision_is_read(tmp_path):
  half_arrays = {
    key: array.astype(np.float16)
    for key, array in random_arrays(bert_shapes()).items()
  }
  name, slot_arrays = "bert/pooler/dense/kernel", {}
  for slot in ("Adam", "Adam_1", "lamb_m", "lamb_v", "LAMBOptimizer_1"):
    slot_arrays[f"{name}/{slot}"] = np.zeros((HIDDEN, HIDDEN), np.float32)
  slot_arrays["beta1_power"] = np.float32(0.5)
  write_release(str(tmp_path), half_arrays | slot_arrays)
  weights = tf1.read(str(tmp_path), "bert")
  float32_arrays = {
    key: array.astype(np.float32) for key, array in half_arrays.items()
  }
  assert_equal(
    weights,
    bert_encoder_params(float32_arrays) | pretraining_params(float32_arrays),
  )
  source = weights.config["source"]
  assert (source["dtype"], source["skipped"]) == (
    "float16",
    sorted(slot_arrays),
  )


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path):
  write_release(str(tmp_path), random_arrays(bert_shapes()))
  (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\nthe\nThe\n")
  files = tf1.read(str(tmp_path), "bert").tokenizer_files
  assert json.loads(files["tokenizer_config.json"]) == {"do_lower_case": False}


def test_a_round_trip_through_hugging_face_keeps_the_model(
  bert_release, electra_release, tmp_path
):
  write_albert_release(str(tmp_path / "albert"), 2)
  paths = {"bert": bert_release[0], "electra": electra_release[0]}
  paths["albert"] = str(tmp_path / "albert")
  for family, path in paths.items():
    weights = tf1.read(path, family)
    hf.write(str(tmp_path / f"{family}_hf"), weights)
    reread = hf.read(str(tmp_path / f"{family}_hf"), family)
    assert_equal(reread, weights.arrays)
    for key in ("family", "task", "model", "head", "pooler"):
      assert reread.config[key] == weights.config[key], (family, key)
    assert reread.tokenizer_files == weights.tokenizer_files
