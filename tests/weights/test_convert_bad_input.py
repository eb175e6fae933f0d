"""Tests errors about bad models, for which `convert` must write no files."""

import json
import resource
import subprocess
import sys

import numpy as np
import pytest
import tiny_hf
import tiny_models
from children import without_progress

from bert_jax.cli.main import execute
from bert_jax.models import from_config
from bert_jax.weights import hf, hf_tasks, mapping, model_folder

CLASS_NAME = "BertForMaskedLM"
QUERY_KERNEL_NAME = "bert.encoder.layer.1.attention.self.query.weight"


def assert_refused(path, expected_texts, family="bert", tower=None):
  with pytest.raises(ValueError) as error:
    hf.read(str(path), family, tower)
  message = str(error.value)
  for text in (
    [expected_texts] if isinstance(expected_texts, str) else expected_texts
  ):
    assert text in message
  assert "\n" not in message


def arrays_without(arrays, *keys):
  return {key: array for key, array in arrays.items() if key not in keys}


def test_missing_extra_renamed_and_misshapen_arrays_are_named(tmp_path):
  intact_arrays = tiny_hf.constant_arrays(CLASS_NAME)
  # No array is padded, cut or broadcast to fit.
  for i, shape in enumerate([(9, 8), (7, 8), (1, 8), (8,), (8, 8, 1)]):
    arrays = intact_arrays | {QUERY_KERNEL_NAME: np.ones(shape, np.float32)}
    expected_texts = [QUERY_KERNEL_NAME, f"has shape {list(shape)}, not [8, 8]"]
    assert_refused(
      tiny_hf.write_folder(tmp_path / f"shape{i}", CLASS_NAME, arrays),
      expected_texts,
    )
  arrays = arrays_without(intact_arrays, QUERY_KERNEL_NAME)
  assert_refused(
    tiny_hf.write_folder(tmp_path / "missing", CLASS_NAME, arrays),
    f"{QUERY_KERNEL_NAME} is missing",
  )
  renamed_arrays = arrays | {
    "bert.encoder.layer.1.attention.q": intact_arrays[QUERY_KERNEL_NAME]
  }
  expected_texts = [
    f"{QUERY_KERNEL_NAME} is missing",
    "layer.1.attention.q belongs to no parameter",
  ]
  assert_refused(
    tiny_hf.write_folder(tmp_path / "renamed", CLASS_NAME, renamed_arrays),
    expected_texts,
  )
  extra_arrays = {
    key.replace("layer.1.", "layer.2."): array
    for key, array in intact_arrays.items()
  }
  expected_texts = [
    "bert.encoder.layer.2.attention.self.value.bias belongs to no parameter"
  ]
  assert_refused(
    tiny_hf.write_folder(
      tmp_path / "extra", CLASS_NAME, intact_arrays | extra_arrays
    ),
    expected_texts,
  )
  path = tiny_hf.write_folder(
    tmp_path / "deeper", CLASS_NAME, intact_arrays, num_hidden_layers=3
  )
  assert_refused(
    path, ["layer.2.attention.self.query.weight is missing", "more"]
  )


def test_a_common_prefix_of_all_names_is_named(tmp_path):
  arrays = {
    f"model.{key}": array
    for key, array in tiny_hf.constant_arrays(CLASS_NAME).items()
  }
  expected_text = "all names in it begin with 'model.'; remove this prefix."
  assert_refused(
    tiny_hf.write_folder(tmp_path / "prefixed", CLASS_NAME, arrays),
    expected_text,
  )


def test_the_error_names_the_missing_array(tmp_path):
  name = "AlbertForPreTraining"
  config = hf.read(tiny_hf.write_folder(tmp_path / "hf", name), "albert").config
  shapes = from_config.param_shapes(config)
  rules = hf_tasks.rules_of(config, "albert.")
  intact_arrays = tiny_hf.constant_arrays(name)
  assert len(intact_arrays) == 48
  for key in intact_arrays:
    with pytest.raises(ValueError) as error:
      mapping.to_params(
        rules,
        arrays_without(intact_arrays, key),
        shapes,
        skipped_patterns=(),
        source="file",
      )
    assert str(error.value) == f"file: {key} is missing."


def test_copies_must_equal_their_originals(tmp_path):
  intact_arrays = tiny_hf.constant_arrays(CLASS_NAME)
  for key, original in (
    (
      "cls.predictions.decoder.weight",
      "bert.embeddings.word_embeddings.weight",
    ),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
  ):
    changed_copy = intact_arrays[original].copy()
    changed_copy.flat[3] += 1e-6 + 1
    path = tiny_hf.write_folder(
      tmp_path / key, CLASS_NAME, intact_arrays | {key: changed_copy}
    )
    assert_refused(path, [f"{key} differs from {original}"])


def test_an_array_under_two_names_is_refused(tmp_path):
  norm_name = "bert.embeddings.LayerNorm"
  arrays = tiny_hf.constant_arrays(CLASS_NAME)
  arrays[f"{norm_name}.gamma"] = arrays[f"{norm_name}.weight"]
  path = tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME, arrays)
  assert_refused(
    path, f"{norm_name}.weight is there twice, once under its old name"
  )


def test_arrays_that_are_not_floats_are_refused(tmp_path):
  for dtype in (np.float64, np.int32):
    arrays = tiny_hf.constant_arrays(CLASS_NAME)
    arrays[QUERY_KERNEL_NAME] = arrays[QUERY_KERNEL_NAME].astype(dtype)
    path = tiny_hf.write_folder(
      tmp_path / np.dtype(dtype).name, CLASS_NAME, arrays
    )
    assert_refused(path, [QUERY_KERNEL_NAME, np.dtype(dtype).name, "bfloat16"])


def test_a_wrong_family_or_class_is_refused(tmp_path):
  path = tiny_hf.write_folder(tmp_path / "bert", CLASS_NAME)
  assert_refused(
    path, ["model_type is 'bert'", "pass the right family"], "roberta"
  )
  assert_refused(path, "family=t5", "t5")
  assert_refused(path, "only ELECTRA has towers", "bert", "generator")
  path = tiny_hf.write_folder(
    tmp_path / "odd", CLASS_NAME, architectures=["BertGeneration"]
  )
  assert_refused(path, ["BertGeneration", "BertForMaskedLM"])
  path = tiny_hf.write_folder(
    tmp_path / "odder", CLASS_NAME, architectures={"a": 1}
  )
  assert_refused(path, "architectures is {'a': 1}")
  # The class and the arrays disagree.
  path = tiny_hf.write_folder(
    tmp_path / "other", CLASS_NAME, architectures=["BertForQuestionAnswering"]
  )
  assert_refused(
    path, ["qa_outputs.weight is missing", "BertForQuestionAnswering"]
  )
  path = tiny_hf.write_folder(
    tmp_path / "pairs", CLASS_NAME, architectures=["BertForPreTraining"]
  )
  assert_refused(path, ["cls.seq_relationship.weight is missing"])
  path = tiny_hf.write_folder(
    tmp_path / "untyped", CLASS_NAME, drop=["model_type"]
  )
  assert_refused(path, "architectures", "roberta")


def test_folders_with_missing_files_are_refused(tmp_path):
  assert_refused(tmp_path / "nowhere", "there is no folder")
  path = tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME)
  weights_path = tmp_path / "hf" / "model.safetensors"
  weights_path.rename(tmp_path / "hf" / "other")
  assert_refused(path, ["holds no weights", "pytorch_model.bin"])
  (tmp_path / "hf" / "other").rename(weights_path)
  config_path = tmp_path / "hf" / "config.json"
  for text, word in (("{", "is damaged"), ("[]", "no JSON object")):
    config_path.write_text(text)
    assert_refused(path, word)
  config_path.unlink()
  assert_refused(path, "config.json is missing")


def test_damaged_safetensors_are_refused(tmp_path):
  path = tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME)
  weights_path = tmp_path / "hf" / "model.safetensors"
  content = weights_path.read_bytes()
  length = int.from_bytes(content[:8], "little")
  header = json.loads(content[8 : 8 + length])
  header_out_of_file = dict(
    header,
    **{
      QUERY_KERNEL_NAME: dict(
        header[QUERY_KERNEL_NAME], data_offsets=[0, 10**9]
      )
    },
  )
  header_with_unknown_dtype = dict(
    header, **{QUERY_KERNEL_NAME: dict(header[QUERY_KERNEL_NAME], dtype="F8")}
  )

  def pack(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]

  for bad_content in (
    b"",
    b"no",
    content[:100],
    content[:-1],
    content + b"\0",
    (2**60).to_bytes(8, "little") + content[8:],
    pack(header_out_of_file),
    pack(header_with_unknown_dtype),  # NumPy does not have this dtype.
    pack([1]),
    pack(dict(header, x=3)),
  ):
    weights_path.write_bytes(bad_content)
    assert_refused(
      path, "model.safetensors is damaged, or has an unknown dtype"
    )


def test_an_index_may_not_name_a_file_outside_its_folder(tmp_path):
  path = tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME)
  weights_path = tmp_path / "hf" / "model.safetensors"
  weights_path.rename(tmp_path / "out.safetensors")
  index_path = tmp_path / "hf" / "model.safetensors.index.json"
  shard_by_key = dict.fromkeys(
    tiny_hf.array_shapes(CLASS_NAME), "../out.safetensors"
  )
  index_path.write_text(json.dumps({"weight_map": shard_by_key}))
  assert_refused(
    path, "'../out.safetensors' must be the name of a file in this folder"
  )
  index_path.write_text("{}")
  assert_refused(path, "no weight_map")


def write_both_towers(path, **options):
  """Writes a folder with ELECTRA's generator and discriminator.

  The two have equal embeddings. `options` are fields of the generator's config.
  """
  generator_fields = dict(num_attention_heads=1, intermediate_size=32)
  shapes = tiny_hf.array_shapes("ElectraForMaskedLM", mlp=32)
  arrays = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
  tiny_hf.write_folder(
    path / "generator",
    "ElectraForMaskedLM",
    arrays,
    **generator_fields | options,
  )
  shapes = tiny_hf.array_shapes("ElectraForPreTraining")
  arrays = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
  tiny_hf.write_folder(path / "discriminator", "ElectraForPreTraining", arrays)
  return path


def test_towers_that_do_not_fit_are_refused(tmp_path):
  both_path = write_both_towers(tmp_path / "both")
  weights = hf.read(str(both_path), "electra", "both")
  assert weights.config["model"]["generator_hidden"] == 8
  for tower in ("generator", "discriminator"):
    config = hf.read(str(both_path), "electra", tower).config
    assert config["task"] == tower
  generator_path = both_path / "generator"
  assert_refused(
    generator_path, "is a model for generator", "electra", "discriminator"
  )
  assert_refused(generator_path, "does not hold both towers", "electra", "both")
  assert_refused(both_path, "not one of discriminator", "electra", "left")
  other_path = write_both_towers(tmp_path / "other", hidden_dropout_prob=0.3)
  assert_refused(
    other_path, ["generator's dropout is 0.3", "tower="], "electra"
  )
  weights_path = str(both_path / "generator" / "model.safetensors")
  arrays = {
    key: np.array(array)
    for key, array in model_folder.read_tensors(weights_path).items()
  }
  arrays["electra.embeddings.LayerNorm.bias"][0] = 2.0
  model_folder.write_tensors(weights_path, arrays)
  message = "embeddings/norm/bias differs between generator"
  assert_refused(both_path, [message, "pass tower=generator"], "electra")
  # Swap the two towers.
  generator_path.rename(tmp_path / "generator")
  (both_path / "discriminator").rename(generator_path)
  (tmp_path / "generator").rename(both_path / "discriminator")
  assert_refused(both_path, "is a model for", "electra")


def names_in(folder):
  return sorted(path.name for path in folder.iterdir())


def convert(*arguments):
  execute(["convert", *map(str, arguments)])


def test_commands_that_are_refused_write_nothing(tmp_path):
  path = tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME)
  full_path, new_path = tmp_path / "full", tmp_path / "out"
  full_path.mkdir()
  (full_path / "mine").write_text("mine")
  common_flags = ["--family", "bert", "--from", "hf", "--model"]
  broken_path = tiny_hf.write_folder(
    tmp_path / "broken",
    CLASS_NAME,
    arrays_without(tiny_hf.constant_arrays(CLASS_NAME), QUERY_KERNEL_NAME),
  )
  convert(*common_flags, path, "--output", tmp_path / "ours")
  flags_to_hf = ["--family", "roberta", "--to", "hf", "--model"]
  for arguments, word in (
    ([*common_flags, path, "--output", full_path], "exists and is not empty"),
    ([*common_flags, broken_path, "--output", new_path], QUERY_KERNEL_NAME),
    ([*common_flags, tmp_path, "--output", new_path], "config.json is missing"),
    (
      [*flags_to_hf, tmp_path / "ours", "--output", new_path],
      "is of the family bert",
    ),
    ([*flags_to_hf, path, "--output", new_path], "convert the model first"),
  ):
    names_before = names_in(tmp_path)
    with pytest.raises(SystemExit) as error:
      convert(*arguments)
    assert str(error.value).startswith("error: ") and word in str(error.value)
    assert names_in(tmp_path) == names_before
  assert names_in(full_path) == ["mine"]


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
  weights = hf.read(tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME), "bert")

  def fail(*arguments):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(model_folder, "write_tensors", fail)
  for write in (model_folder.write, hf.write):
    with pytest.raises(ValueError, match="No space left"):
      write(str(tmp_path / "out"), weights)
  assert names_in(tmp_path) == ["hf"]


def test_bad_converted_folders_are_refused(tmp_path):
  weights = hf.read(tiny_hf.write_folder(tmp_path / "hf", CLASS_NAME), "bert")
  path = str(tmp_path / "ours")
  model_folder.write(path, weights)
  tiny_models.delete_digests(path)
  bias_path = "encoder/embeddings/norm/bias"
  for arrays, word in (
    (arrays_without(weights.arrays, bias_path), f"{bias_path} is missing"),
    (
      weights.arrays | {"x": np.ones(1, np.float32)},
      "x belongs to no parameter",
    ),
    (
      weights.arrays | {bias_path: np.ones(9, np.float32)},
      "has shape [9], not [8]",
    ),
    (weights.arrays | {bias_path: np.ones(8, np.float16)}, "is float16"),
  ):
    model_folder.write_tensors(f"{path}/model.safetensors", arrays)
    with pytest.raises(ValueError) as error:
      model_folder.read(path)
    assert word in str(error.value)
  for change, word in (
    ({"format_version": 2}, "format_version is 2"),
    ({"task": "poetry"}, "task 'poetry'"),
    (
      {"model": weights.config["model"] | {"hiden": 8}},
      "did you mean 'hidden'",
    ),
    ({"family": "t5"}, "t5"),
  ):
    config = json.dumps(weights.config | change)
    (tmp_path / "ours" / "config.json").write_text(config)
    with pytest.raises(ValueError) as error:
      model_folder.read(path)
    assert word in str(error.value)
  with pytest.raises(ValueError, match="is missing"):
    model_folder.write(
      str(tmp_path / "bad"),
      weights._replace(arrays=arrays_without(weights.arrays, bias_path)),
    )
  assert not (tmp_path / "bad").exists()


def test_rules_and_parameters_must_match():
  rules = [mapping.Rule("a", "A"), mapping.Rule("b", "B")]
  with pytest.raises(
    ValueError, match="b has no rule, or the model has no such parameter"
  ):
    mapping.to_params(
      rules, {"A": np.ones(2)}, {"a": (2,)}, skipped_patterns=(), source="file"
    )


def test_an_error_of_the_command_is_one_line(tmp_path):
  """A process prints one sentence on stderr, and no traceback."""
  process = subprocess.run(
    [
      *(sys.executable, "-m", "bert_jax", "convert", "--family", "bert"),
      *("--from", "hf", "--model", str(tmp_path), "--output"),
      str(tmp_path / "out"),
    ],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  error = without_progress(process.stderr)
  assert error == f"error: {tmp_path}/config.json is missing.\n"
  assert names_in(tmp_path) == []


@pytest.mark.parametrize("huge_size", [10**6, 10**9, 10**12, 10**400])
@pytest.mark.parametrize(
  "field",
  ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"],
)
def test_huge_sizes_in_config_json_take_no_memory(tmp_path, field, huge_size):
  """The sizes are refused before any array is made."""
  path = tiny_hf.write_folder(tmp_path / "hf", "BertForSequenceClassification")
  config_path = tmp_path / "hf" / "config.json"
  config_path.write_text(
    json.dumps(json.loads(config_path.read_text()) | {field: huge_size})
  )
  peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  with pytest.raises(ValueError, match="config.json|model.safetensors"):
    hf.read(str(path), "bert")
  growth_in_kilobytes = (
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
  )
  assert growth_in_kilobytes < 200_000
