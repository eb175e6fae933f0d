"""Small TF1 releases of BERT, ALBERT, ELECTRA, written by TensorFlow."""

import json
import os

import numpy as np

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
# Google's multilingual release has such fields.
EXTRA = {"directionality": "bidi", "pooler_size_per_head": 128}
PARTS = ("query", "key", "value")


def dense(name, inputs, outputs):
  return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name, width):
  return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def tables(scope, width):
  names = {"word": V, "position": P, "token_type": S}
  found = {f"{scope}/{n}_embeddings": (r, width) for n, r in names.items()}
  return found | norm(f"{scope}/LayerNorm", width)


def bert_layer(name, h, mlp):
  found = {}
  for part in PARTS:
    found |= dense(f"{name}/attention/self/{part}", h, h)
  found |= dense(f"{name}/attention/output/dense", h, h)
  found |= norm(f"{name}/attention/output/LayerNorm", h)
  found |= dense(f"{name}/intermediate/dense", h, mlp)
  found |= dense(f"{name}/output/dense", mlp, h)
  return found | norm(f"{name}/output/LayerNorm", h)


def bert_shapes(head="pretraining"):
  found = tables("bert/embeddings", H) | dense("bert/pooler/dense", H, H)
  for i in range(LAYERS):
    found |= bert_layer(f"bert/encoder/layer_{i}", H, MLP)
  if head == "pretraining":
    return found | pretraining_shapes(H)
  if head == "classifier":
    return found | {"output_weights": (3, H), "output_bias": (3,)}
  if head == "encoder":
    return found
  scope = "cls/squad"
  return found | {
    f"{scope}/output_weights": (2, H),
    f"{scope}/output_bias": (2,),
  }


def pretraining_shapes(width):
  found = dense("cls/predictions/transform/dense", H, width)
  found |= norm("cls/predictions/transform/LayerNorm", width)
  found["cls/predictions/output_bias"] = (V,)
  found["cls/seq_relationship/output_weights"] = (2, H)
  return found | {"cls/seq_relationship/output_bias": (2,)}


def albert_shapes(groups):
  found = tables("bert/embeddings", E) | dense("bert/pooler/dense", H, H)
  found |= dense("bert/encoder/embedding_hidden_mapping_in", E, H)
  for i in range(groups):
    name = f"bert/encoder/transformer/group_{i}/inner_group_0"
    for part in PARTS:
      found |= dense(f"{name}/attention_1/self/{part}", H, H)
    found |= dense(f"{name}/attention_1/output/dense", H, H)
    found |= norm(f"{name}/LayerNorm", H) | norm(f"{name}/LayerNorm_1", H)
    found |= dense(f"{name}/ffn_1/intermediate/dense", H, MLP)
    found |= dense(f"{name}/ffn_1/intermediate/output/dense", MLP, H)
  return found | pretraining_shapes(E)


# Heads are 64 wide, the generator's MLP 4 times its width.
D, G = 128, 64


def electra_shapes():
  found = tables("electra/embeddings", E)
  for scope, h, mlp in (("electra", D, MLP), ("generator", G, 4 * G)):
    found |= dense(f"{scope}/embeddings_project", E, h)
    for i in range(LAYERS):
      found |= bert_layer(f"{scope}/encoder/layer_{i}", h, mlp)
  found |= dense("generator_predictions/dense", G, E)
  found |= norm("generator_predictions/LayerNorm", E)
  found["generator_predictions/output_bias"] = (V,)
  found |= dense("discriminator_predictions/dense", D, D)
  return found | dense("discriminator_predictions/dense_1", D, 1)


def draw(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def save(path, name, arrays, slots=True):
  """Writes a checkpoint as TF1 does; returns the names that training adds."""
  import tensorflow as tf

  extra = {}
  if slots:
    for key, array in arrays.items():
      extra |= {f"{key}/adam_m": array * 0, f"{key}/adam_v": array * 0}
    extra["global_step"] = np.int64(7)
  os.makedirs(path, exist_ok=True)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variables = [
      tf.compat.v1.get_variable(key, initializer=array, use_resource=False)
      for key, array in (arrays | extra).items()
    ]
    session.run(tf.compat.v1.global_variables_initializer())
    saver = tf.compat.v1.train.Saver(variables)
    prefix = os.path.join(path, name)
    saver.save(session, prefix, write_meta_graph=False, write_state=False)
  return sorted(extra)


def write_json(path, value):
  with open(path, "w", encoding="utf-8") as f:
    json.dump(value, f)


def release(path, arrays, slots=False, **changes):
  """A folder as BERT's are."""
  extra = save(path, "bert_model.ckpt", arrays, slots)
  config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
  write_json(os.path.join(path, "bert_config.json"), config)
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"]
  with open(os.path.join(path, "vocab.txt"), "w", encoding="utf-8") as f:
    f.write("".join(f"{piece}\n" for piece in pieces))
  return extra
