"""Tests errors about TF1 checkpoints that are damaged, ambiguous or unknown."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from children import without_progress
from tf1_releases import (
  BERT_CONFIG,
  EMBEDDING_SIZE,
  HIDDEN,
  NUM_POSITIONS,
  VOCAB_SIZE,
  albert_shapes,
  bert_shapes,
  electra_shapes,
  random_arrays,
  save_checkpoint,
  write_json,
  write_release,
)

from bert_jax.cli.main import execute
from bert_jax.weights import tf1

pytest.importorskip("tensorflow", reason="writes TF1 checkpoints")


def convert(capsys, source, output):
  """Runs the command; returns the error message or the printed lines."""
  flags = ["--family", "bert", "--from", "tf1", "--model", str(source)]
  try:
    execute(["convert", *flags, "--output", str(output)])
  except SystemExit as error:
    return error.code
  return capsys.readouterr().out


def test_the_command_writes_a_folder(tmp_path, capsys):
  write_release(str(tmp_path / "release"), random_arrays(bert_shapes()))
  output = tmp_path / "ours"
  for path in (
    tmp_path / "release",
    tmp_path / "release" / "bert_model.ckpt",
    tmp_path / "release" / "bert_model.ckpt.index",
  ):
    printed = convert(capsys, path, output)
    assert printed == (
      f"wrote {output}\n"
      f'next: bert_jax fill-mask --model {output} "Text with [MASK]."\n'
    )
    assert sorted(path.name for path in output.iterdir()) == [
      "config.json",
      "model.safetensors",
      "tokenizer_config.json",
      "vocab.txt",
    ]
    shutil.rmtree(output)


# Names of arrays in the checkpoint.
QUERY_NAME = "bert/encoder/layer_1/attention/self/query/kernel"
NORM_NAME = "bert/embeddings/LayerNorm/gamma"
PAIR_NAME = "cls/seq_relationship/output_weights"


# Name of a case -> (a function that changes v, the arrays by name; parts of the
# error).
CHANGES_AND_MESSAGES = {
  "missing": (lambda v: v.pop(QUERY_NAME), [f"{QUERY_NAME} is missing"]),
  "missing norm": (lambda v: v.pop(NORM_NAME), [f"{NORM_NAME} is missing"]),
  "missing pooler": (
    lambda v: [
      v.pop(f"bert/pooler/dense/{name}") for name in ("kernel", "bias")
    ],
    ["bert/pooler/dense/kernel is missing"],
  ),
  "extra": (
    lambda v: v.update(extra=np.ones(3, np.float32)),
    ["extra belongs to no parameter"],
  ),
  "a third layer": (
    lambda v: v.update({QUERY_NAME.replace("_1", "_2"): v[QUERY_NAME]}),
    [f"{QUERY_NAME.replace('_1', '_2')} belongs to no parameter"],
  ),
  "a slot without optimizer": (
    lambda v: v.update({f"{QUERY_NAME}/momentum": v[QUERY_NAME]}),
    [f"{QUERY_NAME}/momentum belongs to no parameter"],
  ),
  "an integer array": (
    lambda v: v.update({QUERY_NAME: v[QUERY_NAME].astype(np.int32)}),
    [f"{QUERY_NAME} is int32"],
  ),
  "renamed": (
    lambda v: v.update({f"{PAIR_NAME}_": v.pop(PAIR_NAME)}),
    [f"{PAIR_NAME} is missing", f"{PAIR_NAME}_ belongs to no parameter"],
  ),
  "transposed": (
    lambda v: v.update({PAIR_NAME: v[PAIR_NAME].T}),
    [f"{PAIR_NAME} has shape [{HIDDEN}, 2], not [2, {HIDDEN}]"],
  ),
  "longer": (
    lambda v: v.update(
      {"bert/embeddings/position_embeddings": np.ones((5, HIDDEN), np.float32)}
    ),
    [
      "bert/embeddings/position_embeddings has shape [5, 12], not [9, 12]",
      "bert_config.json",
    ],
  ),
}


@pytest.mark.parametrize("damage", CHANGES_AND_MESSAGES)
def test_a_wrong_array_of_bert_is_named(damage, tmp_path, capsys):
  arrays = random_arrays(bert_shapes())
  change, message_parts = CHANGES_AND_MESSAGES[damage]
  change(arrays)
  write_release(str(tmp_path / "release"), arrays)
  message = convert(capsys, tmp_path / "release", tmp_path / "ours")
  assert message.startswith("error: ") and "\n" not in message
  for expected in (*message_parts, "bert_model.ckpt"):
    assert expected in message
  assert [path.name for path in tmp_path.iterdir()] == ["release"]


# Field of bert_config.json -> (a wrong value, a part of the error).
WRONG_FIELDS = {
  "num_attention_heads": (None, "has no num_attention_heads; write it in"),
  "hidden_act": ("swish", "hidden_act is 'swish'; it must be one of"),
  "hidden_size": (
    HIDDEN + 1,
    f"hidden={HIDDEN + 1} is not a multiple of heads=3",
  ),
  "vocab_size": (
    VOCAB_SIZE + 1,
    f"has shape [{VOCAB_SIZE}, {HIDDEN}], not [{VOCAB_SIZE + 1}, {HIDDEN}]",
  ),
  "type_vocab_size": (16, f"has shape [2, {HIDDEN}], not [16, {HIDDEN}]"),
  "max_position_embeddings": ("many", "it must be a whole number from 1"),
  "hidden_dropout_prob": (-0.1, "it must be a number from 0"),
  "inner_group_num": (2, "only 1 is supported"),
  "layer_norm_eps": (1e-5, "only 1e-12 is supported"),
}


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_a_wrong_field_of_bert_config_is_named(field, tmp_path):
  setting, message_part = WRONG_FIELDS[field]
  path = str(tmp_path)
  write_release(path, random_arrays(bert_shapes()), **{field: setting})
  with pytest.raises(ValueError) as error:
    tf1.read(path, "bert")
  assert message_part in str(error.value) and "bert_config.json" in str(
    error.value
  )


def test_a_release_needs_its_config(tmp_path):
  save_checkpoint(
    str(tmp_path),
    "bert_model.ckpt",
    random_arrays(bert_shapes()),
    has_slots=False,
  )
  with pytest.raises(ValueError, match="bert_config.json is missing"):
    tf1.read(str(tmp_path), "bert")


def test_wrong_families_and_towers_are_refused(tmp_path):
  path = str(tmp_path / "bert")
  write_release(path, random_arrays(bert_shapes()))
  with pytest.raises(ValueError, match="those of bert, not of albert"):
    tf1.read(path, "albert")
  with pytest.raises(ValueError, match="those of bert, not of electra"):
    tf1.read(path, "electra")
  with pytest.raises(ValueError, match="families: bert, albert, electra"):
    tf1.read(path, "roberta")
  with pytest.raises(ValueError, match="only ELECTRA has towers"):
    tf1.read(path, "bert", "generator")
  path = str(tmp_path / "albert")
  save_checkpoint(
    path, "model.ckpt-best", random_arrays(albert_shapes(1)), has_slots=False
  )
  with pytest.raises(ValueError, match="those of albert, not of bert"):
    tf1.read(path, "bert")
  arrays = random_arrays(electra_shapes())
  arrays = {
    name: array
    for name, array in arrays.items()
    if not name.startswith("generator")
  }
  path = str(tmp_path / "electra")
  save_checkpoint(path, "electra", arrays, has_slots=False)
  assert tf1.read(path, "electra").config["task"] == "discriminator"
  for tower in ("both", "generator"):
    with pytest.raises(ValueError) as error:
      tf1.read(path, "electra", tower)
    assert "holds no generator" in str(error.value)
    assert "pass tower=discriminator" in str(error.value)


@pytest.mark.parametrize(
  "name",
  [
    "electra/embeddings/word_embeddings",
    "electra/encoder/layer_1/output/dense/kernel",
    "generator/encoder/layer_0/intermediate/dense/bias",
    "generator_predictions/output_bias",
    "discriminator_predictions/dense_1/kernel",
  ],
)
def test_a_missing_array_of_electra_is_named(name, tmp_path):
  arrays = random_arrays(electra_shapes())
  del arrays[name]
  save_checkpoint(str(tmp_path), "electra", arrays, has_slots=False)
  with pytest.raises(ValueError, match=f"{name} is missing"):
    tf1.read(str(tmp_path), "electra")


def test_an_array_of_electra_with_a_wrong_shape_is_named(tmp_path):
  arrays = random_arrays(electra_shapes())
  name = "generator_predictions/output_bias"
  arrays[name] = arrays[name][1:]
  save_checkpoint(str(tmp_path), "electra", arrays, has_slots=False)
  with pytest.raises(ValueError) as error:
    tf1.read(str(tmp_path), "electra")
  assert "electra, with the sizes of its variables electra/embeddings" in str(
    error.value
  )
  assert f"{name} has shape [{VOCAB_SIZE - 1}], not [{VOCAB_SIZE}]" in str(
    error.value
  )


def test_groups_that_do_not_divide_the_layers_are_refused(tmp_path):
  save_checkpoint(
    str(tmp_path),
    "model.ckpt-best",
    random_arrays(albert_shapes(2)),
    has_slots=False,
  )
  config = BERT_CONFIG | {
    "embedding_size": EMBEDDING_SIZE,
    "num_hidden_layers": 3,
  }
  write_json(tmp_path / "albert_config.json", config)
  with pytest.raises(ValueError, match="json: num_layers=3 is not a multiple"):
    tf1.read(str(tmp_path), "albert")


def test_one_of_several_checkpoints_must_be_named(tmp_path):
  path = str(tmp_path)
  with pytest.raises(ValueError, match="holds no TF1 checkpoint"):
    tf1.find_checkpoint(path)
  with pytest.raises(
    ValueError, match="there is no checkpoint .*model.ckpt; name its folder"
  ):
    tf1.find_checkpoint(f"{path}/model.ckpt")
  for step in (1, 20):
    (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"")
  with pytest.raises(ValueError, match="model.ckpt-1, model.ckpt-20; name one"):
    tf1.find_checkpoint(path)
  prefix = f"{path}/model.ckpt-1"
  assert tf1.find_checkpoint(prefix) == prefix
  assert tf1.find_checkpoint(f"{prefix}.index") == prefix
  # The file `checkpoint` names the newest checkpoint, by a path that need not
  # exist here.
  (tmp_path / "checkpoint").write_text(
    'model_checkpoint_path: "/home/somebody/model.ckpt-20"\n'
    'all_model_checkpoint_paths: "/home/somebody/model.ckpt-1"\n'
  )
  assert tf1.find_checkpoint(path) == f"{path}/model.ckpt-20"


def test_damaged_files_are_refused(tmp_path, capsys):
  path = tmp_path / "release"
  write_release(str(path), random_arrays(bert_shapes()))
  shard_path = path / "bert_model.ckpt.data-00000-of-00001"
  intact_content = shard_path.read_bytes()
  flipped_content = bytearray(intact_content)
  flipped_content[len(intact_content) // 2] ^= 1
  for content in (
    intact_content[: len(intact_content) // 2],
    b"",
    bytes(flipped_content),
  ):
    shard_path.write_bytes(content)
    message = convert(capsys, path, tmp_path / "ours")
    assert "bert_model.ckpt: cannot be read" in message and "\n" not in message
  shard_path.unlink()
  message = convert(capsys, path, tmp_path / "ours")
  assert "bert_model.ckpt: cannot be read" in message and "\n" not in message
  assert [path.name for path in tmp_path.iterdir()] == ["release"]


def test_a_checkpoint_of_tensorflow_2_objects_is_refused(tmp_path):
  import tensorflow as tf

  model = tf.train.Checkpoint(
    table=tf.Variable(np.ones((NUM_POSITIONS, HIDDEN), np.float32))
  )
  prefix = model.write(str(tmp_path / "model.ckpt"))
  with pytest.raises(ValueError, match="of TensorFlow 2's objects"):
    tf1.read(prefix, "bert")


def test_the_error_without_tensorflow_says_what_to_install(tmp_path):
  (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
  code = (
    "import sys\n"
    "sys.modules['tensorflow'] = None\n"
    "from bert_jax.cli.main import main\n"
    "main()\n"
  )
  convert_flags = [
    "--family",
    "bert",
    "--from",
    "tf1",
    "--model",
    str(tmp_path),
  ]
  convert_flags += ["--output", str(tmp_path / "ours")]
  process = subprocess.run(
    [sys.executable, "-c", code, "convert", *convert_flags],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  assert without_progress(process.stderr) == (
    "error: reading a TF1 checkpoint needs TensorFlow; run `pip install"
    " 'bert_jax[data]'`.\n"
  )
