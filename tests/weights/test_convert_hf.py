"""Tests which parameter each array of a Hugging Face folder becomes."""

import json
import re

import numpy as np
import pytest
import tiny_hf

from bert_jax.weights import hf, hf_files, model_folder

# Each pair has a pattern for the names of arrays in a file, and the path of the
# parameter that such an array becomes. In the path, {} stands for kernel, bias
# or scale.
PATTERNS_AND_PATHS = [
  (r"(word_embeddings|tokens_embed)\.", "encoder/embeddings/word/embedding"),
  (
    r"(position_embeddings|positions_embed)\.",
    "encoder/embeddings/position/embedding",
  ),
  (r"token_type_embeddings\.", "encoder/embeddings/segment/embedding"),
  (r"embeddings\.LayerNorm\.", "encoder/embeddings/norm/{}"),
  (r"hidden_mapping_in\.|embeddings_project\.", "project/{}"),
  (r"(attention.*\.query|q_lin)\.", "layers/layer/attention/query/{}"),
  (r"(attention.*\.key|k_lin)\.", "layers/layer/attention/key/{}"),
  (r"(attention.*\.value|v_lin)\.", "layers/layer/attention/value/{}"),
  (
    r"(attention(\.output)?\.dense|out_lin|attn\.c_proj)\.",
    "layers/layer/attention/output/{}",
  ),
  (
    r"(attention.*LayerNorm|sa_layer_norm|ln_1)\.",
    "layers/layer/attention_norm/{}",
  ),
  (r"(intermediate\.dense|ffn|lin1|c_fc)\.[wb]", "layers/layer/mlp_in/{}"),
  (
    r"(\d\.output\.dense|ffn_output|lin2|mlp\.c_proj)\.",
    "layers/layer/mlp_out/{}",
  ),
  (
    r"(\d\.output\.LayerNorm|full_layer_layer_norm|output_layer_norm|ln_2)\.",
    "layers/layer/mlp_norm/{}",
  ),
  (
    r"discriminator_predictions\.dense_prediction\.",
    "rtd/output/dense/{}",
  ),
  (r"discriminator_predictions\.dense\.", "rtd/dense/{}"),
  (
    r"(predictions|lm_head|vocab_projector)\.bias|generator_lm_head",
    "mlm/bias",
  ),
  (
    r"(predictions.*|lm_head)\.dense\.|vocab_transform\.",
    "mlm/dense/{}",
  ),
  (
    r"predictions.*LayerNorm|lm_head\.layer_norm|vocab_layer_norm",
    "mlm/norm/{}",
  ),
  (r"seq_relationship|sop_classifier", "pair/dense/{}"),
  (
    r"pooler\.|pre_classifier\.|classifier\.dense\.|sequence_summary",
    "pooler/dense/{}",
  ),
  (
    r"classifier\.|qa_outputs\.|score\.|multiple_choice_head",
    "classifier/dense/{}",
  ),
]


def path_of(key, is_in_tower):
  """Returns the path of the parameter that an array becomes, and its layer.

  Args:
    key: the name of the array in the file.
    is_in_tower: True for ELECTRA, whose layers are in a module `tower`.

  Returns:
    (path, index of the layer); the index is None outside the layers.
  """
  path = next(
    path for pattern, path in PATTERNS_AND_PATHS if re.search(pattern, key)
  )
  is_norm = re.search(r"norm|ln_", key, re.IGNORECASE)
  array_name = "scale" if is_norm else "kernel"
  path = path.format("bias" if key.endswith("bias") else array_name)
  if path.startswith(("layers", "project")):
    path = f"encoder/tower/{path}" if is_in_tower else f"encoder/{path}"
  layer_match = re.search(r"(?:layer|h|groups)\.(\d)\.", key)
  return path, int(layer_match[1]) if layer_match else None


@pytest.mark.parametrize("name", tiny_hf.HEADS)
def test_every_array_becomes_its_parameter(name, tmp_path):
  path, family = tmp_path / "hf", tiny_hf.family_of(name)
  weights = hf.read(tiny_hf.write_folder(path, name), family)
  expected = {
    target: np.zeros_like(array) for target, array in weights.arrays.items()
  }
  for key, array in tiny_hf.constant_arrays(name).items():
    constant = array.flat[0]
    if "c_attn" in key:
      layer = int(key.split(".")[2])
      array_name = "bias" if key.endswith("bias") else "kernel"
      for projection in ("query", "key", "value"):
        target = f"encoder/layers/layer/attention/{projection}/{array_name}"
        expected[target][layer] = constant
      continue
    target, layer = path_of(key, family == "electra")
    # Only one array of the file becomes this parameter, or this slice of it.
    target_slice = expected[target]
    if layer is not None:
      target_slice = target_slice[layer]
    assert not target_slice.any(), (key, target)
    target_slice[...] = constant
  for target, array in expected.items():
    np.testing.assert_array_equal(weights.arrays[target], array, err_msg=target)
    if (family, target) != ("gpt", "classifier/dense/bias"):
      assert array.all(), target


def random_arrays(name, dtype=np.float32, **sizes):
  rng = np.random.default_rng(0)
  shapes = tiny_hf.array_shapes(name, **sizes).items()
  return {key: rng.normal(size=shape).astype(dtype) for key, shape in shapes}


def test_kernels_are_transposed_and_split_by_heads(tmp_path):
  arrays = random_arrays("BertModel")
  path = tiny_hf.write_folder(tmp_path / "bert", "BertModel", arrays)
  params = hf.read(path, "bert").arrays
  attention = "encoder.layer.1.attention"
  query = arrays[f"{attention}.self.query.weight"]
  output = arrays[f"{attention}.output.dense.weight"]
  for width_index, head, head_index in np.ndindex(8, 2, 4):
    kernel = params["encoder/layers/layer/attention/query/kernel"]
    assert (
      kernel[1, width_index, head, head_index]
      == query[4 * head + head_index, width_index]
    )
    kernel = params["encoder/layers/layer/attention/output/kernel"]
    assert (
      kernel[1, head, head_index, width_index]
      == output[width_index, 4 * head + head_index]
    )
  arrays = random_arrays("OpenAIGPTLMHeadModel")
  path = tiny_hf.write_folder(tmp_path / "gpt", "OpenAIGPTLMHeadModel", arrays)
  params = hf.read(path, "gpt").arrays
  fused_kernel = arrays["transformer.h.0.attn.c_attn.weight"]
  for part, name in enumerate(("query", "key", "value")):
    kernel = params[f"encoder/layers/layer/attention/{name}/kernel"]
    np.testing.assert_array_equal(
      kernel[0].reshape(8, 8), fused_kernel[:, 8 * part : 8 * part + 8]
    )


@pytest.mark.parametrize(
  "name, dtype",
  [
    ("BertForPreTraining", "float32"),
    ("OpenAIGPTDoubleHeadsModel", "float16"),
    ("AlbertForPreTraining", "bfloat16"),
    ("OpenAIGPTForSequenceClassification", "float32"),
    ("ElectraForMultipleChoice", "float32"),
  ],
)
def test_a_round_trip_is_bit_equal(name, dtype, tmp_path, capsys):
  arrays = random_arrays(name, hf_files.FLOAT_DTYPES[dtype])
  options = {"unknown_field": [1, {"a": None}], "torch_dtype": "float32"}
  path = tiny_hf.write_folder(tmp_path / "hf", name, arrays, **options)
  (tmp_path / "hf" / "merges.txt").write_bytes(b"#version\r\n\xff")
  family = tiny_hf.family_of(name)
  model_folder.write(str(tmp_path / "ours"), hf.read(path, family))
  hf.write(str(tmp_path / "back"), model_folder.read(str(tmp_path / "ours")))
  tensors = model_folder.read_tensors(
    str(tmp_path / "back" / "model.safetensors")
  )
  assert tensors.keys() == arrays.keys()
  for key, array in arrays.items():
    assert tensors[key].dtype == array.dtype
    np.testing.assert_array_equal(tensors[key], array, err_msg=key)
  config = json.loads((tmp_path / "back" / "config.json").read_text())
  # Unknown fields are kept, and `torch_dtype` is the dtype of the arrays.
  options["torch_dtype"] = dtype
  assert config == tiny_hf.config_json(name, **options)
  merges = (tmp_path / "back" / "merges.txt").read_bytes()
  assert merges == b"#version\r\n\xff"
  reread = hf.read(str(tmp_path / "back"), family)
  for path, array in model_folder.read(str(tmp_path / "ours")).arrays.items():
    np.testing.assert_array_equal(reread.arrays[path], array)
  assert "note:" not in capsys.readouterr().err


def with_renamed_arrays(arrays, *patterns_and_replacements):
  renamed_arrays = {}
  for key, array in arrays.items():
    for pattern, replacement in patterns_and_replacements:
      key = re.sub(pattern, replacement, key)
    renamed_arrays[key] = array
  return renamed_arrays


def test_other_names_of_the_arrays_give_the_same_model(tmp_path):
  """Reads one model from files with other names of its arrays.

  The names are old, lack the prefix, name copies and buffers, or name the bias
  of the decoder; or the arrays are in shards. The parameters must not differ.
  """
  name = "BertForMaskedLM"
  arrays = random_arrays(name)
  expected = hf.read(
    tiny_hf.write_folder(tmp_path / "new", name, arrays), "bert"
  )
  word_table = arrays["bert.embeddings.word_embeddings.weight"]
  bias = arrays["cls.predictions.bias"]
  copies = {
    "cls.predictions.decoder.weight": word_table,
    "cls.predictions.decoder.bias": bias,
    "bert.embeddings.position_ids": np.arange(10)[None],
  }
  without_bias = {
    key: array for key, array in arrays.items() if key != "cls.predictions.bias"
  }
  arrays_by_spelling = {
    "old": with_renamed_arrays(
      arrays, (r"Norm\.weight", "Norm.gamma"), (r"Norm\.bias", "Norm.beta")
    ),
    "bare": with_renamed_arrays(arrays, (r"^bert\.", "")),
    "copies": arrays | copies,
    "moved": without_bias | {"cls.predictions.decoder.bias": bias},
  }
  for spelling, file_arrays in arrays_by_spelling.items():
    path = tiny_hf.write_folder(tmp_path / spelling, name, file_arrays)
    weights = hf.read(path, "bert")
    for parameter_path, array in expected.arrays.items():
      np.testing.assert_array_equal(
        weights.arrays[parameter_path], array, err_msg=spelling
      )
    skipped_names = sorted(copies) if spelling == "copies" else []
    skipped_names = (
      ["cls.predictions.decoder.bias"] if spelling == "moved" else skipped_names
    )
    assert weights.config["source"]["skipped"] == skipped_names
  shards_folder = tmp_path / "shards"
  tiny_hf.write_folder(shards_folder, name, {})
  (shards_folder / "model.safetensors").unlink()
  shard_by_key = {key: f"{i % 2}.safetensors" for i, key in enumerate(arrays)}
  for shard in ("0.safetensors", "1.safetensors"):
    shard_arrays = {
      key: array for key, array in arrays.items() if shard_by_key[key] == shard
    }
    model_folder.write_tensors(str(shards_folder / shard), shard_arrays)
  index_path = shards_folder / "model.safetensors.index.json"
  index_path.write_text(json.dumps({"weight_map": shard_by_key}))
  weights = hf.read(str(shards_folder), "bert")
  for path, array in expected.arrays.items():
    np.testing.assert_array_equal(weights.arrays[path], array)


def test_names_without_prefix_and_extra_arrays_are_read(tmp_path):
  """Extra arrays are skipped: GPT's buffers, and TinyBERT's linear map.

  The names in GPT's file have no prefix.
  """
  for name, family, prefix, extra_arrays in (
    (
      "OpenAIGPTLMHeadModel",
      "gpt",
      r"^transformer\.",
      {"h.0.attn.bias": np.ones((1, 1, 10, 10), np.float32)},
    ),
    (
      "BertForPreTraining",
      "tinybert",
      "^$",
      {"fit_dense.weight": np.ones((8, 8), np.float32)},
    ),
  ):
    arrays = (
      with_renamed_arrays(random_arrays(name), (prefix, "")) | extra_arrays
    )
    path = tiny_hf.write_folder(tmp_path / family, name, arrays)
    weights = hf.read(path, family)
    assert weights.config["family"] == family
    assert weights.config["task"] == "pretraining"
    assert weights.config["source"]["skipped"] == [*extra_arrays]
    if family == "gpt":
      word_table = arrays["tokens_embed.weight"]
      table = weights.arrays["encoder/embeddings/word/embedding"]
      np.testing.assert_array_equal(table, word_table)


def test_arrays_of_two_dtypes_are_written_in_the_wider_one(tmp_path):
  arrays = random_arrays("BertModel", np.float16)
  path = tiny_hf.write_folder(
    tmp_path / "hf", "BertModel", arrays, dtype="float16"
  )
  arrays["pooler.dense.bias"] = arrays["pooler.dense.bias"].astype(np.float32)
  model_folder.write_tensors(f"{path}/model.safetensors", arrays)
  hf.write(str(tmp_path / "back"), hf.read(path, "bert"))
  tensors = model_folder.read_tensors(
    str(tmp_path / "back" / "model.safetensors")
  )
  for key, array in arrays.items():
    assert tensors[key].dtype == np.float32
    np.testing.assert_array_equal(tensors[key], array)
  fields = json.loads((tmp_path / "back" / "config.json").read_text())
  assert fields["dtype"] == "float32"


def test_only_a_masked_lm_keeps_a_pooler_that_its_head_does_not_read(tmp_path):
  """Reads RoBERTa with a pooler, as a masked LM and as a classifier.

  The masked LM must keep the pooler, and the classifier must drop it.
  """
  pooler_arrays = {
    "roberta.pooler.dense.weight": np.ones((8, 8), np.float32),
    "roberta.pooler.dense.bias": np.ones(8, np.float32),
  }
  for name, has_pooler in (
    ("RobertaForMaskedLM", True),
    ("RobertaForSequenceClassification", False),
  ):
    arrays = random_arrays(name) | pooler_arrays
    path = tiny_hf.write_folder(tmp_path / name, name, arrays)
    weights = hf.read(path, "roberta")
    assert weights.config["pooler"] is has_pooler
    skipped_names = [] if has_pooler else [*pooler_arrays][::-1]
    assert weights.config["source"]["skipped"] == skipped_names
    hf.write(str(tmp_path / f"{name}-back"), weights)
    weights_path = tmp_path / f"{name}-back" / "model.safetensors"
    tensors = model_folder.read_tensors(str(weights_path))
    assert (pooler_arrays.keys() <= tensors.keys()) is has_pooler


def test_without_architectures_the_arrays_tell_the_task(tmp_path):
  for name, task in (
    ("BertModel", "encoder"),
    ("BertForPreTraining", "pretraining"),
    ("BertForMaskedLM", "pretraining"),
    ("ElectraForPreTraining", "discriminator"),
    ("RobertaForSequenceClassification", "sequence_classification"),
    ("OpenAIGPTDoubleHeadsModel", "multiple_choice"),
    ("OpenAIGPTLMHeadModel", "encoder"),
  ):
    drop = ("architectures", "model_type")
    path = tiny_hf.write_folder(tmp_path / name, name, drop=drop)
    config = hf.read(path, tiny_hf.family_of(name)).config
    assert config["task"] == task
    if name.startswith("BertFor"):
      assert config["head"] == {"pairs": name == "BertForPreTraining"}
  name = "BertForSequenceClassification"
  path = tiny_hf.write_folder(tmp_path / name, name, drop=("architectures",))
  with pytest.raises(
    ValueError, match="no architectures, and the arrays could"
  ):
    hf.read(path, "bert")
