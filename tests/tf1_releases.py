"""Writes small TF1 releases of BERT, ALBERT and ELECTRA with TensorFlow."""

import json
import pathlib

import numpy as np

# H is the width of BERT's and ALBERT's layers. E is the width of the tables of
# ALBERT and ELECTRA. V, P, S are the numbers of pieces, positions and segments.
H, HEADS, MLP, V, P, S, E, LAYERS = 12, 3, 20, 17, 9, 2, 5, 2
CONFIG = {
  "vocab_size": V,
  "hidden_size": H,
  "num_hidden_layers": LAYERS,
  "num_attention_heads": HEADS,
  "intermediate_size": MLP,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.2,
  "max_position_embeddings": P,
  "type_vocab_size": S,
  "initializer_range": 0.03,
}
# Fields like those that only Google's multilingual release has.
EXTRA = {"directionality": "bidi", "pooler_size_per_head": 128}
PROJECTIONS = ("query", "key", "value")


def dense(name, inputs, outputs):
  return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name, width):
  return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def tables(scope, width):
  names = {"word": V, "position": P, "token_type": S}
  shapes = {f"{scope}/{n}_embeddings": (r, width) for n, r in names.items()}
  return shapes | norm(f"{scope}/LayerNorm", width)


def bert_layer(name, h, mlp):
  shapes = {}
  for projection in PROJECTIONS:
    shapes |= dense(f"{name}/attention/self/{projection}", h, h)
  shapes |= dense(f"{name}/attention/output/dense", h, h)
  shapes |= norm(f"{name}/attention/output/LayerNorm", h)
  shapes |= dense(f"{name}/intermediate/dense", h, mlp)
  shapes |= dense(f"{name}/output/dense", mlp, h)
  return shapes | norm(f"{name}/output/LayerNorm", h)


def bert_shapes(head="pretraining"):
  shapes = tables("bert/embeddings", H) | dense("bert/pooler/dense", H, H)
  for i in range(LAYERS):
    shapes |= bert_layer(f"bert/encoder/layer_{i}", H, MLP)
  if head == "pretraining":
    return shapes | pretraining_shapes(H)
  if head == "classifier":
    return shapes | {"output_weights": (3, H), "output_bias": (3,)}
  if head == "encoder":
    return shapes
  scope = "cls/squad"
  return shapes | {
    f"{scope}/output_weights": (2, H),
    f"{scope}/output_bias": (2,),
  }


def pretraining_shapes(width):
  shapes = dense("cls/predictions/transform/dense", H, width)
  shapes |= norm("cls/predictions/transform/LayerNorm", width)
  shapes["cls/predictions/output_bias"] = (V,)
  shapes["cls/seq_relationship/output_weights"] = (2, H)
  return shapes | {"cls/seq_relationship/output_bias": (2,)}


def albert_shapes(groups):
  shapes = tables("bert/embeddings", E) | dense("bert/pooler/dense", H, H)
  shapes |= dense("bert/encoder/embedding_hidden_mapping_in", E, H)
  for i in range(groups):
    name = f"bert/encoder/transformer/group_{i}/inner_group_0"
    for projection in PROJECTIONS:
      shapes |= dense(f"{name}/attention_1/self/{projection}", H, H)
    shapes |= dense(f"{name}/attention_1/output/dense", H, H)
    shapes |= norm(f"{name}/LayerNorm", H) | norm(f"{name}/LayerNorm_1", H)
    shapes |= dense(f"{name}/ffn_1/intermediate/dense", H, MLP)
    shapes |= dense(f"{name}/ffn_1/intermediate/output/dense", MLP, H)
  return shapes | pretraining_shapes(E)


# ELECTRA's widths: heads are 64 wide, and the generator's MLP is 4 times as
# wide as its layers.
D, G = 128, 64


def electra_shapes():
  shapes = tables("electra/embeddings", E)
  for scope, h, mlp in (("electra", D, MLP), ("generator", G, 4 * G)):
    shapes |= dense(f"{scope}/embeddings_project", E, h)
    for i in range(LAYERS):
      shapes |= bert_layer(f"{scope}/encoder/layer_{i}", h, mlp)
  shapes |= dense("generator_predictions/dense", G, E)
  shapes |= norm("generator_predictions/LayerNorm", E)
  shapes["generator_predictions/output_bias"] = (V,)
  shapes |= dense("discriminator_predictions/dense", D, D)
  return shapes | dense("discriminator_predictions/dense_1", D, 1)


def draw(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def save(path, name, arrays, slots=True):
  """Writes a checkpoint as TF1 does; returns the names that training adds."""
  import tensorflow as tf

  extra_arrays = {}
  if slots:
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


def release(path, arrays, slots=False, **changes):
  """Writes a folder like BERT's releases; returns what `save` returns."""
  extra_names = save(path, "bert_model.ckpt", arrays, slots)
  config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
  path = pathlib.Path(path)
  write_json(path / "bert_config.json", config)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"]
  lines = "".join(f"{piece}\n" for piece in pieces)
  (path / "vocab.txt").write_text(lines, encoding="utf-8")
  return extra_names
