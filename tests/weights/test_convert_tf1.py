"""TF1 checkpoints that TensorFlow wrote become our parameters bit by bit."""

import json
import pathlib

import numpy as np
import pytest
from tf1_releases import (
  CONFIG,
  EXTRA,
  HEADS,
  LAYERS,
  MLP,
  D,
  E,
  G,
  H,
  P,
  S,
  V,
  albert_shapes,
  bert_shapes,
  draw,
  electra_shapes,
  release,
  save,
  write_json,
)

from bert_jax.weights import hf, model_folder, tf1

pytest.importorskip("tensorflow", reason="writes TF1 checkpoints")


def layers_params(path, v, names, layer, heads):
  """Returns the expected parameters of the layers, stacked.

  Args:
    path: the path of the encoder.
    v: name -> array of the checkpoint.
    names: the name of each layer in the checkpoint.
    layer: module of a layer -> its name in the checkpoint.
    heads: the number of attention heads.
  """
  count = len(names)
  expected = {}

  def stack(name):
    return np.stack([v[f"{names[i]}/{name}"] for i in range(count)])

  for module, name in layer.items():
    to = f"{path}/layers/layer/{module}"
    if module.endswith("norm"):
      expected[f"{to}/scale"] = stack(f"{name}/gamma")
      expected[f"{to}/bias"] = stack(f"{name}/beta")
      continue
    kernel, bias = stack(f"{name}/kernel"), stack(f"{name}/bias")
    if module == "attention/output":
      kernel = kernel.reshape(count, heads, -1, kernel.shape[-1])
    elif module.startswith("attention"):
      kernel = kernel.reshape(count, kernel.shape[1], heads, -1)
      bias = bias.reshape(count, heads, -1)
    expected[f"{to}/kernel"], expected[f"{to}/bias"] = kernel, bias
  return expected


BERT_LAYER = {
  "attention/query": "attention/self/query",
  "attention/key": "attention/self/key",
  "attention/value": "attention/self/value",
  "attention/output": "attention/output/dense",
  "attention_norm": "attention/output/LayerNorm",
  "mlp_in": "intermediate/dense",
  "mlp_out": "output/dense",
  "mlp_norm": "output/LayerNorm",
}
ALBERT_LAYER = {
  "attention/query": "attention_1/self/query",
  "attention/key": "attention_1/self/key",
  "attention/value": "attention_1/self/value",
  "attention/output": "attention_1/output/dense",
  "attention_norm": "LayerNorm",
  "mlp_in": "ffn_1/intermediate/dense",
  "mlp_out": "ffn_1/intermediate/output/dense",
  "mlp_norm": "LayerNorm_1",
}


def tables_params(at, v, scope):
  return {
    f"{at}/word/embedding": v[f"{scope}/word_embeddings"],
    f"{at}/position/embedding": v[f"{scope}/position_embeddings"],
    f"{at}/segment/embedding": v[f"{scope}/token_type_embeddings"],
    f"{at}/norm/scale": v[f"{scope}/LayerNorm/gamma"],
    f"{at}/norm/bias": v[f"{scope}/LayerNorm/beta"],
  }


def dense_params(at, v, name):
  return {f"{at}/kernel": v[f"{name}/kernel"], f"{at}/bias": v[f"{name}/bias"]}


def mlm_params(v, dense, norm, bias):
  return dense_params("mlm/dense", v, dense) | {
    "mlm/norm/scale": v[f"{norm}/gamma"],
    "mlm/norm/bias": v[f"{norm}/beta"],
    "mlm/bias": v[bias],
  }


def pretraining_params(v):
  at = "cls/predictions"
  params = mlm_params(
    v, f"{at}/transform/dense", f"{at}/transform/LayerNorm", f"{at}/output_bias"
  )
  params |= dense_params("pooler/dense", v, "bert/pooler/dense")
  # In the checkpoint, this kernel is [outputs, inputs].
  params["pair/dense/kernel"] = v["cls/seq_relationship/output_weights"].T
  return params | {"pair/dense/bias": v["cls/seq_relationship/output_bias"]}


def bert_encoder(v):
  names = [f"bert/encoder/layer_{i}" for i in range(LAYERS)]
  params = tables_params("encoder/embeddings", v, "bert/embeddings")
  return params | layers_params("encoder", v, names, BERT_LAYER, HEADS)


def check_equal(weights, expected):
  assert weights.arrays.keys() == expected.keys()
  for path, array in expected.items():
    param = weights.arrays[path]
    assert param.dtype == np.float32 and param.shape == array.shape, path
    assert param.tobytes() == np.ascontiguousarray(array).tobytes(), path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  """Writes a release of BERT with an optimizer's slots.

  Returns its path, its arrays and the names of the slots.
  """
  path, arrays = str(tmp_path_factory.mktemp("bert")), draw(bert_shapes())
  return path, arrays, release(path, arrays, slots=True, **EXTRA)


def test_bert_with_pretraining_heads(bert, tmp_path):
  path, arrays, extra = bert
  weights = tf1.read(path, "bert")
  check_equal(weights, bert_encoder(arrays) | pretraining_params(arrays))
  config = weights.config
  assert (config["family"], config["task"]) == ("bert", "pretraining")
  assert config["head"] == {"pairs": True} and config["labels"] is None
  assert config["model"] == dict(
    vocab_size=V,
    hidden=H,
    num_layers=LAYERS,
    heads=HEADS,
    mlp=MLP,
    max_positions=P,
    num_segments=S,
    dropout=0.1,
    attention_dropout=0.2,
    initializer_range=0.03,
    activation="gelu",
    norm_epsilon=1e-12,
  )
  assert config["source"] == dict(
    format="tf1", dtype="float32", skipped=extra, config=EXTRA
  )
  settings = json.loads(weights.tokenizer_files["tokenizer_config.json"])
  assert settings == {"do_lower_case": True}
  model_folder.write(str(tmp_path / "ours"), weights)
  again = model_folder.read(str(tmp_path / "ours"))
  check_equal(again, weights.arrays)
  assert again.config == config
  assert again.tokenizer_files == weights.tokenizer_files


def release_albert(path, groups, **fields):
  """Writes a release of ALBERT with 4 layers; returns its arrays."""
  arrays = draw(albert_shapes(groups))
  save(path, "model.ckpt-best", arrays, slots=False)
  config = CONFIG | {"embedding_size": E, "num_hidden_layers": 4} | fields
  config |= {"num_hidden_groups": groups}
  write_json(f"{path}/albert_config.json", config)
  pathlib.Path(path, "30k-clean.model").write_bytes(b"a model")
  return arrays


@pytest.mark.parametrize("groups", [1, 2])
def test_albert(tmp_path, groups):
  path = str(tmp_path)
  unused = {"inner_group_num": 1, "net_structure_type": 0, "gap_size": 0}
  v = release_albert(path, groups, **unused)
  weights = tf1.read(path, "albert")
  scope = "bert/encoder/transformer"
  names = [f"{scope}/group_{i}/inner_group_0" for i in range(groups)]
  expected = tables_params("encoder/embeddings", v, "bert/embeddings")
  expected |= layers_params("encoder", v, names, ALBERT_LAYER, HEADS)
  expected |= dense_params(
    "encoder/project", v, "bert/encoder/embedding_hidden_mapping_in"
  )
  check_equal(weights, expected | pretraining_params(v))
  model = weights.config["model"]
  assert (model["num_layers"], model["groups"]) == (4, groups)
  assert model["embedding_size"] == E
  # ALBERT calls the approximation by tanh "gelu".
  assert model["activation"] == "gelu_new"
  assert weights.config["source"]["config"] == unused
  assert weights.tokenizer_files == {"spiece.model": b"a model"}


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
  """Writes a release of ELECTRA, which has no config; returns its arrays."""
  path, arrays = str(tmp_path_factory.mktemp("electra")), draw(electra_shapes())
  save(path, "electra_small", arrays)
  return path, arrays


def tower_params(at, v, scope, heads):
  names = [f"{scope}/encoder/layer_{i}" for i in range(LAYERS)]
  params = layers_params(at, v, names, BERT_LAYER, heads)
  return params | dense_params(
    f"{at}/project", v, f"{scope}/embeddings_project"
  )


def electra_params(v, tower):
  both = tower == "both"
  at = "embeddings" if both else "encoder/embeddings"
  params = tables_params(at, v, "electra/embeddings")
  if tower != "generator":
    at = "discriminator" if both else "encoder/tower"
    params |= tower_params(at, v, "electra", D // 64)
    scope = "discriminator_predictions"
    params |= dense_params("rtd/dense", v, f"{scope}/dense")
    params |= dense_params("rtd/output/dense", v, f"{scope}/dense_1")
  if tower != "discriminator":
    at = "generator" if both else "encoder/tower"
    params |= tower_params(at, v, "generator", G // 64)
    scope = "generator_predictions"
    names = (f"{scope}/dense", f"{scope}/LayerNorm", f"{scope}/output_bias")
    params |= mlm_params(v, *names)
  return params


@pytest.mark.parametrize("tower", ["both", "generator", "discriminator"])
def test_electra_without_a_config(electra, tower, capsys):
  path, arrays = electra
  weights = tf1.read(path, "electra", tower)
  check_equal(weights, electra_params(arrays, tower))
  generator = tower == "generator"
  width, mlp = (G, 4 * G) if generator else (D, MLP)
  generator_size = {"generator_hidden": G} if tower == "both" else {}
  assert weights.config["model"] == generator_size | dict(
    vocab_size=V,
    embedding_size=E,
    hidden=width,
    num_layers=LAYERS,
    heads=width // 64,
    mlp=mlp,
    max_positions=P,
    num_segments=S,
    dropout=0.1,
    attention_dropout=0.1,
    initializer_range=0.02,
    activation="gelu",
    norm_epsilon=1e-12,
  )
  assert "no electra_config.json: sizes come from" in capsys.readouterr().err
  skipped = weights.config["source"]["skipped"]
  unused = {name for name in skipped if "/adam_" not in name}
  unused -= {"global_step"}
  used = {name for name in arrays if name not in unused}
  other = {"generator": "discriminator", "discriminator": "generator"}
  if tower == "both":
    assert not unused
    assert tf1.read(path, "electra").config == weights.config
  else:
    assert used | unused == arrays.keys()
    assert any(n.startswith(f"{other[tower]}_predictions/") for n in unused)
    shared = {n for n in arrays if n.startswith("electra/embeddings/")}
    assert shared <= used and len(shared) == 5


def test_electra_with_a_config(tmp_path):
  arrays = draw(electra_shapes())
  save(str(tmp_path), "model.ckpt-7", arrays, slots=False)
  config = {"num_attention_heads": 4, "hidden_dropout_prob": 0.25}
  write_json(tmp_path / "electra_config.json", config)
  model = tf1.read(str(tmp_path), "electra").config["model"]
  assert (model["heads"], model["dropout"], model["hidden"]) == (4, 0.25, D)
  # The config is the discriminator's. The generator's heads follow from its
  # width.
  model = tf1.read(str(tmp_path), "electra", "generator").config["model"]
  assert (model["heads"], model["dropout"], model["hidden"]) == (1, 0.25, G)


@pytest.mark.parametrize("head", ["classifier", "span", "encoder"])
def test_fine_tuned_bert(tmp_path, head):
  arrays = draw(bert_shapes(head))
  release(str(tmp_path), arrays, hidden_act="relu", type_vocab_size=None)
  weights = tf1.read(str(tmp_path), "bert")
  scope = {"classifier": "", "span": "cls/squad/"}.get(head)
  expected = bert_encoder(arrays)
  expected |= dense_params("pooler/dense", arrays, "bert/pooler/dense")
  if scope is not None:
    expected["classifier/dense/kernel"] = arrays[f"{scope}output_weights"].T
    expected["classifier/dense/bias"] = arrays[f"{scope}output_bias"]
  check_equal(weights, expected)
  config = weights.config
  assert config["model"]["activation"] == "relu"
  # The config has no type_vocab_size, so the table's size counts.
  assert config["model"]["num_segments"] == S
  # A span head does not read the pooler, which is kept nevertheless.
  assert config["pooler"] == (head != "classifier")
  if head == "classifier":
    assert config["task"] == "sequence_classification"
    assert config["problem"] == "classification"
    assert config["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert config["head"]["pooling"]["dropout"] == 0.1
  hf.write(str(tmp_path / "hf"), weights)
  again = hf.read(str(tmp_path / "hf"), "bert")
  check_equal(again, expected)
  for key in ("task", "model", "head", "labels", "problem", "pooler"):
    assert again.config[key] == config[key], key


def test_slots_of_other_optimizers_and_half_precision(tmp_path):
  half = {k: v.astype(np.float16) for k, v in draw(bert_shapes()).items()}
  name, slots = "bert/pooler/dense/kernel", {}
  for slot in ("Adam", "Adam_1", "lamb_m", "lamb_v", "LAMBOptimizer_1"):
    slots[f"{name}/{slot}"] = np.zeros((H, H), np.float32)
  slots["beta1_power"] = np.float32(0.5)
  release(str(tmp_path), half | slots)
  weights = tf1.read(str(tmp_path), "bert")
  whole = {k: v.astype(np.float32) for k, v in half.items()}
  check_equal(weights, bert_encoder(whole) | pretraining_params(whole))
  source = weights.config["source"]
  assert (source["dtype"], source["skipped"]) == ("float16", sorted(slots))


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path):
  release(str(tmp_path), draw(bert_shapes()))
  (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\nthe\nThe\n")
  files = tf1.read(str(tmp_path), "bert").tokenizer_files
  assert json.loads(files["tokenizer_config.json"]) == {"do_lower_case": False}


def test_to_hugging_face_and_back(bert, electra, tmp_path):
  release_albert(str(tmp_path / "albert"), 2)
  paths = {"bert": bert[0], "electra": electra[0]}
  paths["albert"] = str(tmp_path / "albert")
  for family, path in paths.items():
    first = tf1.read(path, family)
    hf.write(str(tmp_path / f"{family}_hf"), first)
    again = hf.read(str(tmp_path / f"{family}_hf"), family)
    check_equal(again, first.arrays)
    for key in ("family", "task", "model", "head", "pooler"):
      assert again.config[key] == first.config[key], (family, key)
    assert again.tokenizer_files == first.tokenizer_files
