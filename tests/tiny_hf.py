"""Writes tiny model folders in the format of Hugging Face transformers.

The names and shapes of the arrays are listed here, and are taken neither from
transformers nor from bert_jax. So tests can compare them with bert_jax.
"""

import json
import re

import numpy as np

from bert_jax.weights import model_folder

# EMBEDDING is the width of the embeddings of ALBERT and ELECTRA. VOCAB counts
# the pieces, and POSITIONS counts the position embeddings.
VOCAB, HIDDEN, EMBEDDING, MLP, POSITIONS, LAYERS = 20, 8, 4, 12, 10, 2
_SIZES = dict(
  vocab_size=VOCAB,
  hidden_size=HIDDEN,
  num_hidden_layers=LAYERS,
  num_attention_heads=2,
  intermediate_size=MLP,
  max_position_embeddings=POSITIONS,
  type_vocab_size=2,
  hidden_act="gelu",
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.2,
  initializer_range=0.02,
  layer_norm_eps=1e-12,
  classifier_dropout=None,
)
CONFIGS = {
  "bert": _SIZES | dict(model_type="bert"),
  "roberta": _SIZES
  | dict(model_type="roberta", pad_token_id=1, layer_norm_eps=1e-5),
  "albert": _SIZES
  | dict(
    model_type="albert",
    embedding_size=EMBEDDING,
    num_hidden_groups=LAYERS,
    inner_group_num=1,
    hidden_act="gelu_new",
    classifier_dropout_prob=0.1,
  ),
  "electra": _SIZES
  | dict(
    model_type="electra",
    embedding_size=EMBEDDING,
    summary_type="first",
    summary_use_proj=True,
    summary_activation="gelu",
    summary_last_dropout=0.1,
  ),
  "distilbert": dict(
    model_type="distilbert",
    vocab_size=VOCAB,
    dim=HIDDEN,
    n_layers=LAYERS,
    n_heads=2,
    hidden_dim=MLP,
    max_position_embeddings=POSITIONS,
    activation="gelu",
    dropout=0.1,
    attention_dropout=0.2,
    initializer_range=0.02,
    qa_dropout=0.3,
    seq_classif_dropout=0.2,
  ),
  "gpt": dict(
    model_type="openai-gpt",
    vocab_size=VOCAB,
    n_embd=HIDDEN,
    n_layer=LAYERS,
    n_head=2,
    n_positions=POSITIONS,
    afn="gelu",
    resid_pdrop=0.1,
    embd_pdrop=0.1,
    attn_pdrop=0.2,
    layer_norm_epsilon=1e-5,
    initializer_range=0.02,
    summary_type="cls_index",
    summary_use_proj=True,
    summary_activation=None,
    summary_proj_to_labels=True,
    summary_first_dropout=0.1,
  ),
}
PREFIXES = {
  "bert": "bert.",
  "roberta": "roberta.",
  "albert": "albert.",
  "electra": "electra.",
  "distilbert": "distilbert.",
  "gpt": "transformer.",
}
# Each line of the following strings has a name and a shape. A name stands for
# two arrays, NAME.weight and NAME.bias, but embeddings have no bias. A name
# that ends in ".bias" or "score.weight" stands for one array. The shape is that
# of the weight: [outputs, inputs] or [width]. Its letters stand for sizes: v
# for VOCAB, d for HIDDEN, e for the width of the embeddings, f for MLP, p for
# POSITIONS. "I" is the number of a layer.
_EMBEDDINGS = """
embeddings.word_embeddings {v},{e}
embeddings.position_embeddings {p},{e}
embeddings.token_type_embeddings 2,{e}
embeddings.LayerNorm {e}
"""
_BERT_LAYER = """
encoder.layer.I.attention.self.query {d},{d}
encoder.layer.I.attention.self.key {d},{d}
encoder.layer.I.attention.self.value {d},{d}
encoder.layer.I.attention.output.dense {d},{d}
encoder.layer.I.attention.output.LayerNorm {d}
encoder.layer.I.intermediate.dense {f},{d}
encoder.layer.I.output.dense {d},{f}
encoder.layer.I.output.LayerNorm {d}
"""
_ALBERT_LAYER = """
encoder.embedding_hidden_mapping_in {d},{e}
encoder.albert_layer_groups.I.albert_layers.0.attention.query {d},{d}
encoder.albert_layer_groups.I.albert_layers.0.attention.key {d},{d}
encoder.albert_layer_groups.I.albert_layers.0.attention.value {d},{d}
encoder.albert_layer_groups.I.albert_layers.0.attention.dense {d},{d}
encoder.albert_layer_groups.I.albert_layers.0.attention.LayerNorm {d}
encoder.albert_layer_groups.I.albert_layers.0.ffn {f},{d}
encoder.albert_layer_groups.I.albert_layers.0.ffn_output {d},{f}
encoder.albert_layer_groups.I.albert_layers.0.full_layer_layer_norm {d}
"""
_DISTILBERT_LAYER = """
transformer.layer.I.attention.q_lin {d},{d}
transformer.layer.I.attention.k_lin {d},{d}
transformer.layer.I.attention.v_lin {d},{d}
transformer.layer.I.attention.out_lin {d},{d}
transformer.layer.I.sa_layer_norm {d}
transformer.layer.I.ffn.lin1 {f},{d}
transformer.layer.I.ffn.lin2 {d},{f}
transformer.layer.I.output_layer_norm {d}
"""
# GPT-1's kernels are [inputs, outputs], and its MLP has the width 4 * HIDDEN.
_GPT_ARRAYS = """
tokens_embed {v},{d}
positions_embed {p},{d}
h.I.attn.c_attn {d},24
h.I.attn.c_proj {d},{d}
h.I.ln_1 {d}
h.I.mlp.c_fc {d},32
h.I.mlp.c_proj 32,{d}
h.I.ln_2 {d}
"""
_ENCODER_ARRAYS = {
  "bert": _EMBEDDINGS + _BERT_LAYER,
  "roberta": _EMBEDDINGS + _BERT_LAYER,
  "albert": _EMBEDDINGS + _ALBERT_LAYER,
  "electra": _EMBEDDINGS + "embeddings_project {d},{e}\n" + _BERT_LAYER,
  "distilbert": _EMBEDDINGS.replace(
    "embeddings.token_type_embeddings 2,{e}\n", ""
  )
  + _DISTILBERT_LAYER,
  "gpt": _GPT_ARRAYS,
}
# Name of a class -> the arrays of the class's heads. "+" stands for the prefix
# of the encoder's arrays.
HEADS = {
  "BertModel": "+pooler.dense {d},{d}",
  "BertForPreTraining": """+pooler.dense {d},{d}
cls.predictions.transform.dense {d},{d}
cls.predictions.transform.LayerNorm {d}
cls.predictions.bias {v}
cls.seq_relationship 2,{d}""",
  "BertForMaskedLM": """cls.predictions.transform.dense {d},{d}
cls.predictions.transform.LayerNorm {d}
cls.predictions.bias {v}""",
  "BertForSequenceClassification": """+pooler.dense {d},{d}
classifier 3,{d}""",
  "BertForMultipleChoice": "+pooler.dense {d},{d}\nclassifier 1,{d}",
  "RobertaForMaskedLM": """lm_head.dense {d},{d}
lm_head.layer_norm {d}
lm_head.bias {v}""",
  "RobertaForSequenceClassification": """classifier.dense {d},{d}
classifier.out_proj 3,{d}""",
  "RobertaForTokenClassification": "classifier 3,{d}",
  "AlbertForPreTraining": """+pooler {d},{d}
predictions.dense {e},{d}
predictions.LayerNorm {e}
predictions.bias {v}
sop_classifier.classifier 2,{d}""",
  "AlbertForQuestionAnswering": "qa_outputs 2,{d}",
  "ElectraForMaskedLM": """generator_predictions.dense {e},{d}
generator_predictions.LayerNorm {e}
generator_lm_head.bias {v}""",
  "ElectraForPreTraining": """discriminator_predictions.dense {d},{d}
discriminator_predictions.dense_prediction 1,{d}""",
  "ElectraForSequenceClassification": """classifier.dense {d},{d}
classifier.out_proj 3,{d}""",
  "ElectraForMultipleChoice": """sequence_summary.summary {d},{d}
classifier 1,{d}""",
  "DistilBertForMaskedLM": """vocab_transform {d},{d}
vocab_layer_norm {d}
vocab_projector.bias {v}""",
  "DistilBertForSequenceClassification": """pre_classifier {d},{d}
classifier 3,{d}""",
  "OpenAIGPTLMHeadModel": "",
  "OpenAIGPTForSequenceClassification": "score.weight 3,{d}",
  "OpenAIGPTDoubleHeadsModel": "multiple_choice_head.summary 1,{d}",
}


def family_of(name):
  """Returns the family of the class of transformers that has this name."""
  class_prefix = re.split("For|Model|LMHead|DoubleHeads", name)[0].lower()
  return {"openaigpt": "gpt"}.get(class_prefix, class_prefix)


def array_shapes(
  name,
  vocab_size=VOCAB,
  hidden=HIDDEN,
  embedding_size=None,
  mlp=MLP,
  max_positions=POSITIONS,
):
  """Returns {array name: shape} of all arrays in a model's file.

  Args:
    name: the name of a class of transformers, a key of `HEADS`.
    vocab_size: the number for the letter v.
    hidden: the number for d.
    embedding_size: the number for e. None means EMBEDDING for ALBERT and
      ELECTRA, and HIDDEN for the other families.
    mlp: the number for f.
    max_positions: the number for p.
  """
  family = family_of(name)
  if embedding_size is None:
    has_narrow_embeddings = family in ("albert", "electra")
    embedding_size = EMBEDDING if has_narrow_embeddings else HIDDEN
  sizes = dict(v=vocab_size, d=hidden, e=embedding_size, f=mlp, p=max_positions)
  # In the file of an encoder without heads, the names have no prefix.
  is_encoder_alone = name.endswith("Model") and family != "gpt"
  encoder_prefix = "" if is_encoder_alone else PREFIXES[family]
  lines = [
    encoder_prefix + line
    for line in _ENCODER_ARRAYS[family].split("\n")
    if line
  ]
  lines += [
    line.replace("+", encoder_prefix)
    for line in HEADS[name].split("\n")
    if line
  ]
  shape_by_array_name = {}
  for line in lines:
    array_name_pattern, shape = line.format(**sizes).split()
    shape = tuple(int(size) for size in shape.split(","))
    for i in range(LAYERS) if ".I." in array_name_pattern else [0]:
      array_name = array_name_pattern.replace(".I.", f".{i}.")
      if array_name.endswith((".bias", "score.weight")):
        shape_by_array_name[array_name] = shape
        continue
      shape_by_array_name[f"{array_name}.weight"] = shape
      if not array_name.endswith(("_embeddings", "_embed")):
        # The outputs are the last axis of GPT-1's kernels.
        shape_by_array_name[f"{array_name}.bias"] = (
          shape[-1:] if ".c_" in array_name else shape[:1]
        )
  return shape_by_array_name


def constant_arrays(name):
  """Returns the arrays of a class; array i is filled with the number i."""
  return {
    key: np.full(shape, i + 1, np.float32)
    for i, (key, shape) in enumerate(array_shapes(name).items())
  }


def config_json(name, **options):
  fields = CONFIGS[family_of(name)] | {"architectures": [name]}
  if "SequenceClass" in name or "TokenClass" in name:
    labels = ["contra", "neutral", "entail"]
    fields["id2label"] = {str(i): label for i, label in enumerate(labels)}
    fields["label2id"] = {label: i for i, label in enumerate(labels)}
  return fields | options


def write_folder(path, name, arrays=None, drop=(), **options):
  """Writes the folder of a class's model; returns its path as a string.

  Args:
    path: the new folder.
    name: the name of a class of transformers, a key of `HEADS`.
    arrays: {array name: array}; None writes `constant_arrays`.
    drop: the fields to leave out of config.json.
    **options: fields of config.json.
  """
  path.mkdir(parents=True)
  fields = {
    key: value
    for key, value in config_json(name, **options).items()
    if key not in drop
  }
  (path / "config.json").write_text(json.dumps(fields))
  arrays = constant_arrays(name) if arrays is None else arrays
  model_folder.write_tensors(
    str(path / "model.safetensors"), arrays, {"format": "pt"}
  )
  return str(path)
