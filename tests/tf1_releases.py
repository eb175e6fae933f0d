"""Writes small TF1 releases of BERT, ALBERT and ELECTRA with TensorFlow."""

import json
import pathlib

import numpy as np

# The width of the layers of BERT and ALBERT.
HIDDEN = 12
# The width of the embeddings of ALBERT and ELECTRA.
EMBEDDING_SIZE = 5
NUM_HEADS, NUM_LAYERS, MLP = 3, 2, 20
VOCAB_SIZE, NUM_POSITIONS, NUM_SEGMENTS = 17, 9, 2
BERT_CONFIG = {
  "vocab_size": VOCAB_SIZE,
  "hidden_size": HIDDEN,
  "num_hidden_layers": NUM_LAYERS,
  "num_attention_heads": NUM_HEADS,
  "intermediate_size": MLP,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.2,
  "max_position_embeddings": NUM_POSITIONS,
  "type_vocab_size": NUM_SEGMENTS,
  "initializer_range": 0.03,
}
# Fields like those that only Google's multilingual release has.
EXTRA_FIELDS = {"directionality": "bidi", "pooler_size_per_head": 128}
PROJECTIONS = ("query", "key", "value")


def dense_shapes(name, inputs, outputs):
  return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm_shapes(name, width):
  return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def table_shapes(scope, width):
  num_rows_by_name = {
    "word": VOCAB_SIZE,
    "position": NUM_POSITIONS,
    "token_type": NUM_SEGMENTS,
  }
  shapes = {
    f"{scope}/{name}_embeddings": (num_rows, width)
    for name, num_rows in num_rows_by_name.items()
  }
  return shapes | norm_shapes(f"{scope}/LayerNorm", width)


def bert_layer_shapes(name, hidden, mlp):
  shapes = {}
  for projection in PROJECTIONS:
    shapes |= dense_shapes(
      f"{name}/attention/self/{projection}", hidden, hidden
    )
  shapes |= dense_shapes(f"{name}/attention/output/dense", hidden, hidden)
  shapes |= norm_shapes(f"{name}/attention/output/LayerNorm", hidden)
  shapes |= dense_shapes(f"{name}/intermediate/dense", hidden, mlp)
  shapes |= dense_shapes(f"{name}/output/dense", mlp, hidden)
  return shapes | norm_shapes(f"{name}/output/LayerNorm", hidden)


def bert_shapes(head="pretraining"):
  shapes = table_shapes("bert/embeddings", HIDDEN) | dense_shapes(
    "bert/pooler/dense", HIDDEN, HIDDEN
  )
  for i in range(NUM_LAYERS):
    shapes |= bert_layer_shapes(f"bert/encoder/layer_{i}", HIDDEN, MLP)
  if head == "pretraining":
    return shapes | pretraining_shapes(HIDDEN)
  if head == "classifier":
    return shapes | {"output_weights": (3, HIDDEN), "output_bias": (3,)}
  if head == "encoder":
    return shapes
  scope = "cls/squad"
  return shapes | {
    f"{scope}/output_weights": (2, HIDDEN),
    f"{scope}/output_bias": (2,),
  }


def pretraining_shapes(width):
  shapes = dense_shapes("cls/predictions/transform/dense", HIDDEN, width)
  shapes |= norm_shapes("cls/predictions/transform/LayerNorm", width)
  shapes["cls/predictions/output_bias"] = (VOCAB_SIZE,)
  shapes["cls/seq_relationship/output_weights"] = (2, HIDDEN)
  return shapes | {"cls/seq_relationship/output_bias": (2,)}


def albert_shapes(num_groups):
  shapes = table_shapes("bert/embeddings", EMBEDDING_SIZE) | dense_shapes(
    "bert/pooler/dense", HIDDEN, HIDDEN
  )
  shapes |= dense_shapes(
    "bert/encoder/embedding_hidden_mapping_in", EMBEDDING_SIZE, HIDDEN
  )
  for i in range(num_groups):
    name = f"bert/encoder/transformer/group_{i}/inner_group_0"
    for projection in PROJECTIONS:
      shapes |= dense_shapes(
        f"{name}/attention_1/self/{projection}", HIDDEN, HIDDEN
      )
    shapes |= dense_shapes(f"{name}/attention_1/output/dense", HIDDEN, HIDDEN)
    shapes |= norm_shapes(f"{name}/LayerNorm", HIDDEN) | norm_shapes(
      f"{name}/LayerNorm_1", HIDDEN
    )
    shapes |= dense_shapes(f"{name}/ffn_1/intermediate/dense", HIDDEN, MLP)
    shapes |= dense_shapes(
      f"{name}/ffn_1/intermediate/output/dense", MLP, HIDDEN
    )
  return shapes | pretraining_shapes(EMBEDDING_SIZE)


# The widths of ELECTRA's two models. A head is 64 wide, and the generator's MLP
# is 4 times as wide as its layers.
DISCRIMINATOR_HIDDEN, GENERATOR_HIDDEN = 128, 64


def electra_shapes():
  shapes = table_shapes("electra/embeddings", EMBEDDING_SIZE)
  for scope, hidden, mlp in (
    ("electra", DISCRIMINATOR_HIDDEN, MLP),
    ("generator", GENERATOR_HIDDEN, 4 * GENERATOR_HIDDEN),
  ):
    shapes |= dense_shapes(
      f"{scope}/embeddings_project", EMBEDDING_SIZE, hidden
    )
    for i in range(NUM_LAYERS):
      shapes |= bert_layer_shapes(f"{scope}/encoder/layer_{i}", hidden, mlp)
  shapes |= dense_shapes(
    "generator_predictions/dense", GENERATOR_HIDDEN, EMBEDDING_SIZE
  )
  shapes |= norm_shapes("generator_predictions/LayerNorm", EMBEDDING_SIZE)
  shapes["generator_predictions/output_bias"] = (VOCAB_SIZE,)
  shapes |= dense_shapes(
    "discriminator_predictions/dense",
    DISCRIMINATOR_HIDDEN,
    DISCRIMINATOR_HIDDEN,
  )
  return shapes | dense_shapes(
    "discriminator_predictions/dense_1", DISCRIMINATOR_HIDDEN, 1
  )


def random_arrays(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def save_checkpoint(path, name, arrays, has_slots=True):
  """Writes a TF1 checkpoint.

  Args:
    path: the folder of the checkpoint.
    name: the first part of the names of its files.
    arrays: {name: array} of the parameters.
    has_slots: True to write the moments of Adam and the step, too.

  Returns:
    The names of the arrays that only training needs.
  """
  import tensorflow as tf

  extra_arrays = {}
  if has_slots:
    for key, array in arrays.items():
      extra_arrays |= {f"{key}/adam_m": array * 0, f"{key}/adam_v": array * 0}
    extra_arrays["global_step"] = np.int64(7)
  path = pathlib.Path(path)
  path.mkdir(parents=True, exist_ok=True)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variables = [
      tf.compat.v1.get_variable(key, initializer=array, use_resource=False)
      for key, array in (arrays | extra_arrays).items()
    ]
    session.run(tf.compat.v1.global_variables_initializer())
    saver = tf.compat.v1.train.Saver(variables)
    prefix = str(path / name)
    saver.save(session, prefix, write_meta_graph=False, write_state=False)
  return sorted(extra_arrays)


def write_json(path, content):
  pathlib.Path(path).write_text(json.dumps(content), encoding="utf-8")


def write_release(path, arrays, has_slots=False, **changes):
  """Writes a folder like BERT's releases.

  Returns:
    The names of the arrays that only training needs.
  """
  extra_names = save_checkpoint(path, "bert_model.ckpt", arrays, has_slots)
  config = {
    key: value
    for key, value in (BERT_CONFIG | changes).items()
    if value is not None
  }
  path = pathlib.Path(path)
  write_json(path / "bert_config.json", config)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"]
  lines = "".join(f"{piece}\n" for piece in pieces)
  (path / "vocab.txt").write_text(lines, encoding="utf-8")
  return extra_names
