"""Tests models that are converted from transformers and back.

The logits, arrays and configs must not change.
"""

import json

import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.models import from_config
from bert_jax.weights import hf, model_folder

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip(
  "transformers", reason="transformers is not installed"
)

SIZES = dict(
  vocab_size=30,
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=24,
  max_position_embeddings=20,
)
# Family -> fields of its config in transformers.
CONFIG_OPTIONS = {
  "bert": SIZES,
  "roberta": SIZES | dict(layer_norm_eps=1e-5, type_vocab_size=1),
  "albert": SIZES | dict(embedding_size=8, num_hidden_groups=2),
  "electra": SIZES | dict(embedding_size=8),
  "distilbert": dict(
    vocab_size=30,
    dim=16,
    n_layers=2,
    n_heads=4,
    hidden_dim=24,
    max_position_embeddings=20,
  ),
  "gpt": dict(
    vocab_size=30,
    n_embd=16,
    n_layer=2,
    n_head=4,
    n_positions=20,
    pad_token_id=0,
  ),
}
CLASS_PREFIXES = {
  "bert": "Bert",
  "roberta": "Roberta",
  "albert": "Albert",
  "electra": "Electra",
  "distilbert": "DistilBert",
  "gpt": "OpenAIGPT",
}
# The ends of names of classes in transformers.
CLASS_ENDINGS = (
  "Model",
  "ForPreTraining",
  "ForMaskedLM",
  "ForSequenceClassification",
  "ForTokenClassification",
  "ForQuestionAnswering",
  "ForMultipleChoice",
)
# Pairs of (family, the end of the name of its class in transformers).
CASES = [
  (family, class_ending)
  for family in CLASS_PREFIXES
  for class_ending in CLASS_ENDINGS
  if family != "gpt"
  and not (
    class_ending == "ForPreTraining" and family in ("roberta", "distilbert")
  )
] + [
  ("gpt", class_ending)
  for class_ending in (
    "Model",
    "LMHeadModel",
    "ForSequenceClassification",
    "DoubleHeadsModel",
  )
]
# The quick tests have one case of each family.
QUICK_CASES = (
  ("bert", "ForPreTraining"),
  ("roberta", "ForSequenceClassification"),
  ("albert", "ForMultipleChoice"),
  ("electra", "ForMaskedLM"),
  ("distilbert", "ForQuestionAnswering"),
  ("gpt", "LMHeadModel"),
)
LABEL_BY_ID = {0: "contra", 1: "neutral", 2: "entail"}


def random_model(family, class_ending, **options):
  """Makes a model with random parameters, none of which is 0 or 1."""
  model_class = getattr(transformers, CLASS_PREFIXES[family] + class_ending)
  options = CONFIG_OPTIONS[family] | options
  if class_ending in ("ForSequenceClassification", "ForTokenClassification"):
    options["id2label"] = LABEL_BY_ID
    options["label2id"] = {name: i for i, name in LABEL_BY_ID.items()}
  config = model_class.config_class(**options)
  torch.manual_seed(0)
  model = model_class(config).eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      is_scale = name.endswith(("Norm.weight", "norm.weight")) or ".ln_" in name
      parameter.normal_(1.0 if is_scale else 0.0, 0.3)
  return model


def make_inputs(family, class_ending):
  """Returns ids and a mask of two rows, or of two times three choices."""
  has_choices = class_ending in ("ForMultipleChoice", "DoubleHeadsModel")
  shape = (2, 3, 6) if has_choices else (2, 6)
  ids = np.random.default_rng(0).integers(3, 30, shape)
  mask = np.ones(shape, np.int64)
  # transformers' GPT-1 reads a choice at its last position, even if this is
  # padding.
  if class_ending != "DoubleHeadsModel":
    padding_id = CONFIG_OPTIONS[family].get(
      "pad_token_id", 1 if family == "roberta" else 0
    )
    ids[-1, ..., 4:], mask[-1, ..., 4:] = padding_id, 0
  return ids, mask


def torch_outputs(model, class_ending, ids, mask):
  """Returns {our name of an output: the output of transformers' model}."""
  inputs = {
    "input_ids": torch.tensor(ids),
    "attention_mask": torch.tensor(mask),
  }
  if class_ending == "DoubleHeadsModel":
    # For choices, this class takes no mask.
    del inputs["attention_mask"]
  with torch.no_grad():
    outputs = model(**inputs)
  if class_ending == "Model":
    pooled_output = (
      {"pooled": outputs.pooler_output} if "pooler_output" in outputs else {}
    )
    output_by_name = {
      "hidden_states": outputs.last_hidden_state
    } | pooled_output
  elif class_ending == "DoubleHeadsModel":
    output_by_name = {"logits": outputs.mc_logits}
  elif class_ending == "ForQuestionAnswering":
    output_by_name = {
      "logits": torch.stack([outputs.start_logits, outputs.end_logits], -1)
    }
  elif hasattr(outputs, "prediction_logits"):
    pair_logits = outputs.get(
      "seq_relationship_logits", outputs.get("sop_logits")
    )
    output_by_name = {
      "mlm_logits": outputs.prediction_logits,
      "pair_logits": pair_logits[:, None],
    }
  else:
    logits_name_by_head = {
      "ForMaskedLM": "mlm_logits",
      "LMHeadModel": "lm_logits",
      "ForPreTraining": "rtd_logits",
    }
    output_by_name = {
      logits_name_by_head.get(class_ending, "logits"): outputs.logits
    }
  return {name: tensor.numpy() for name, tensor in output_by_name.items()}


def module_outputs(weights, ids, mask):
  """Returns our module's outputs at all positions."""
  module = from_config.build(weights.config)
  inputs = {
    "input_ids": ids.astype(np.int32),
    "sequence_ids": mask.astype(np.int32),
  }
  if weights.config["task"] in ("pretraining", "generator"):
    positions = np.arange(ids.shape[1], dtype=np.int32)
    inputs["mlm_positions"] = np.broadcast_to(positions, ids.shape)
    inputs["cls_positions"] = np.zeros((len(ids), 1), np.int32)
  params = model_folder.unflatten(weights.arrays)
  outputs = fast_jit(module.apply)({"params": params}, inputs)
  return outputs if isinstance(outputs, dict) else {"logits": outputs}


def assert_same_arrays(model, path):
  """Asserts that a folder holds the arrays of `model`.

  transformers opens the folder with the class of `model`; it must neither miss
  nor ignore an array. Returns the opened model.
  """
  reopened, loading_info = type(model).from_pretrained(
    path, output_loading_info=True
  )
  assert not any(loading_info.values()), loading_info
  state = reopened.state_dict()
  assert state.keys() == model.state_dict().keys()
  for name, tensor in model.state_dict().items():
    assert state[name].dtype == tensor.dtype, name
    assert torch.equal(state[name], tensor), name
  return reopened


def stable_fields(config):
  """Returns a config's fields without those that depend on its folder."""
  folder_fields = ("_name_or_path", "dtype")
  return {
    field: value
    for field, value in config.to_dict().items()
    if field not in folder_fields
  }


@pytest.mark.parametrize(
  "family, class_ending",
  [
    case if case in QUICK_CASES else pytest.param(*case, marks=pytest.mark.slow)
    for case in CASES
  ],
)
def test_logits_agree_and_a_round_trip_changes_nothing(
  family, class_ending, tmp_path, capsys
):
  model = random_model(family, class_ending)
  model.save_pretrained(tmp_path / "hf")
  weights = hf.read(str(tmp_path / "hf"), family)
  ids, mask = make_inputs(family, class_ending)
  expected = torch_outputs(model, class_ending, ids, mask)
  outputs = module_outputs(weights, ids, mask)
  assert outputs.keys() == expected.keys()
  for name, array in expected.items():
    positions = mask.astype(bool)
    if array.shape[: mask.ndim] != mask.shape:
      positions = slice(None)
    np.testing.assert_allclose(
      np.asarray(outputs[name])[positions], array[positions], atol=2e-5, rtol=0
    )
  model_folder.write(str(tmp_path / "ours"), weights)
  hf.write(str(tmp_path / "back"), model_folder.read(str(tmp_path / "ours")))
  reopened = assert_same_arrays(model, tmp_path / "back")
  assert stable_fields(reopened.config) == stable_fields(model.config)
  assert reopened.config.id2label == model.config.id2label
  # No field was absent, so no default was used.
  assert "note:" not in capsys.readouterr().err
  reread = hf.read(str(tmp_path / "back"), family)
  assert reread.config["model"] == weights.config["model"]
  for path, array in weights.arrays.items():
    np.testing.assert_array_equal(reread.arrays[path], array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_arrays_of_half_precision_survive_a_round_trip(dtype, tmp_path):
  model = random_model("bert", "ForMaskedLM").to(getattr(torch, dtype))
  model.save_pretrained(tmp_path / "hf")
  weights = hf.read(str(tmp_path / "hf"), "bert")
  assert weights.config["source"]["dtype"] == dtype
  assert {array.dtype for array in weights.arrays.values()} == {
    np.dtype(np.float32)
  }
  hf.write(str(tmp_path / "back"), weights)
  reopened = assert_same_arrays(model, tmp_path / "back")
  assert reopened.dtype == getattr(torch, dtype)


def test_torch_files_and_shards_are_read(tmp_path):
  """Files of torch, whole or in shards, give the arrays of safetensors.

  Before torch 1.6, files of torch were not zip files.
  """
  model = random_model("bert", "Model")
  model.save_pretrained(tmp_path / "safe")
  expected = hf.read(str(tmp_path / "safe"), "bert")
  state = model.state_dict()
  for name, is_zip in (("new", True), ("old", False)):
    folder = tmp_path / name
    folder.mkdir()
    model.config.save_pretrained(folder)
    torch.save(
      state,
      folder / "pytorch_model.bin",
      _use_new_zipfile_serialization=is_zip,
    )
  shards_folder = tmp_path / "shards"
  shards_folder.mkdir()
  model.config.save_pretrained(shards_folder)
  shard_by_key = {}
  for i in range(2):
    file = f"pytorch_model-{i}.bin"
    shard = {key: state[key] for key in sorted(state)[i::2]}
    torch.save(shard, shards_folder / file)
    shard_by_key |= dict.fromkeys(shard, file)
  index_path = shards_folder / "pytorch_model.bin.index.json"
  index_path.write_text(json.dumps({"weight_map": shard_by_key}))
  for name in ("new", "old", "shards"):
    # Without `architectures`, the arrays identify the class.
    config = json.loads((tmp_path / name / "config.json").read_text())
    del config["architectures"]
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    weights = hf.read(str(tmp_path / name), "bert")
    assert weights.config["task"] == "encoder" and weights.config["pooler"]
    for path, array in expected.arrays.items():
      np.testing.assert_array_equal(weights.arrays[path], array)


def test_a_pickle_with_code_is_not_run(tmp_path):
  class Bomb:
    def __reduce__(self):
      return (open, (str(tmp_path / "ran"), "w"))

  model = random_model("bert", "Model")
  model.config.architectures = ["BertModel"]
  model.config.save_pretrained(tmp_path)
  torch.save({"x": Bomb()}, tmp_path / "pytorch_model.bin")
  with pytest.raises(ValueError, match="more than tensors and is not opened"):
    hf.read(str(tmp_path), "bert")
  assert not (tmp_path / "ran").exists()
  torch.save({"x": {"y": torch.ones(1)}}, tmp_path / "pytorch_model.bin")
  with pytest.raises(ValueError, match="not a dictionary of tensors"):
    hf.read(str(tmp_path), "bert")
  (tmp_path / "pytorch_model.bin").write_bytes(b"no weights")
  with pytest.raises(ValueError, match="pytorch_model.bin"):
    hf.read(str(tmp_path), "bert")


def test_both_towers_are_read_and_written(tmp_path):
  """Reads two folders as one model, and writes both towers or one."""
  generator = random_model(
    "electra", "ForMaskedLM", num_attention_heads=1, intermediate_size=64
  )
  discriminator = random_model("electra", "ForPreTraining", hidden_size=24)
  discriminator.electra.embeddings = generator.electra.embeddings
  for name, model in (
    ("generator", generator),
    ("discriminator", discriminator),
  ):
    model.save_pretrained(tmp_path / "hf" / name)
  weights = hf.read(str(tmp_path / "hf"), "electra")
  assert weights.config["model"]["generator_hidden"] == 16
  ids, mask = make_inputs("electra", "ForMaskedLM")
  outputs, is_token = module_outputs(weights, ids, mask), mask.astype(bool)
  for name, model, class_ending in (
    ("mlm_logits", generator, "ForMaskedLM"),
    ("rtd_logits", discriminator, "ForPreTraining"),
  ):
    expected = torch_outputs(model, class_ending, ids, mask)[name]
    np.testing.assert_allclose(
      np.asarray(outputs[name])[is_token], expected[is_token], atol=2e-5, rtol=0
    )
  model_folder.write(str(tmp_path / "ours"), weights)
  weights = model_folder.read(str(tmp_path / "ours"))
  hf.write(str(tmp_path / "back"), weights)
  assert_same_arrays(generator, tmp_path / "back" / "generator")
  assert_same_arrays(discriminator, tmp_path / "back" / "discriminator")
  hf.write(str(tmp_path / "one"), weights, "generator")
  reopened = assert_same_arrays(generator, tmp_path / "one")
  assert stable_fields(reopened.config) == stable_fields(generator.config)


def test_auto_classes_open_model_and_tokenizer(tmp_path):
  model = random_model("bert", "ForTokenClassification")
  model.save_pretrained(tmp_path / "hf")
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ab", "ab", "##c"]
  (tmp_path / "hf" / "vocab.txt").write_text("\n".join(pieces) + "\n")
  options = json.dumps({"do_lower_case": False})
  (tmp_path / "hf" / "tokenizer_config.json").write_text(options)
  hf.write(str(tmp_path / "back"), hf.read(str(tmp_path / "hf"), "bert"))
  auto_class = transformers.AutoModelForTokenClassification
  reopened = auto_class.from_pretrained(tmp_path / "back")
  assert type(reopened) is type(model)
  assert reopened.config.id2label == LABEL_BY_ID
  assert reopened.config.label2id == {"contra": 0, "neutral": 1, "entail": 2}
  encoder = transformers.AutoModel.from_pretrained(tmp_path / "back")
  assert type(encoder).__name__ == "BertModel"
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
  assert tokenizer("Abc ab")["input_ids"] == [2, 5, 7, 6, 3]
