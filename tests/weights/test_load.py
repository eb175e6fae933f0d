"""Tests that `open_model` opens folders, runs and models of the hub."""

import functools
import json
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_hf
from tiny_families import fast_jit
from tokenizers import pre_tokenizers

from bert_jax import models
from bert_jax.cli.main import execute
from bert_jax.models import from_config
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint, hf, model_folder
from bert_jax.weights.load import open_model

PIECES = [
  "[PAD]",
  "[UNK]",
  "[CLS]",
  "[SEP]",
  "[MASK]",
  "ab",
  "##c",
  "cafe",
  "Ab",
]

BYTE_PIECES = sorted(pre_tokenizers.ByteLevel.alphabet())


def run_convert(*arguments):
  execute(["convert", *map(str, arguments)])


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_importing_bert_jax_imports_no_other_library():
  code = (
    "import sys, bert_jax\n"
    "print(sorted({'jax', 'flax', 'numpy', 'tokenizers'} & set(sys.modules)))\n"
    "from bert_jax.models import bert\n"
    "assert callable(bert_jax.load) and bert_jax.load is bert_jax.load\n"
    "try: bert_jax.nothing\n"
    "except AttributeError as e: print(e)"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True
  )
  assert process.returncode == 0, process.stderr
  first_line, second_line = process.stdout.splitlines()
  assert first_line == "[]" and "no attribute 'nothing'" in second_line


def test_a_converted_folder_gives_the_model_of_its_source(tmp_path):
  name = "BertForSequenceClassification"
  path = tiny_hf.write_folder(tmp_path / "hf", name)
  (tmp_path / "hf" / "vocab.txt").write_text("\n".join(PIECES))
  common_flags = ["--family", "bert", "--model", path, "--output"]
  run_convert("--from", "hf", *common_flags, tmp_path / "ours")
  source_model, model = open_model(path), open_model(str(tmp_path / "ours"))
  assert source_model.config == model.config
  assert model.config["labels"] == ["contra", "neutral", "entail"]
  assert model.module == source_model.module
  assert_equal(source_model.params, model.params)
  assert model.tokenizer.encode("abc CAFÉ").ids == [2, 5, 6, 7, 3]
  batch = {"input_ids": jnp.array([[2, 5, 6, 3]])}
  logits = fast_jit(model.module.apply)({"params": model.params}, batch)
  assert logits.shape == (1, 3) and logits.dtype == jnp.float32
  encoder = {"params": model.params["encoder"]}
  hidden, _ = fast_jit(model.module.encoder.apply)(encoder, batch["input_ids"])
  assert hidden.shape == (1, 4, 8)


def test_options_of_open_model_may_change_no_sizes(tmp_path):
  path = tiny_hf.write_folder(tmp_path / "hf", "BertModel")
  bfloat16_model = open_model(path, dtype="bfloat16", unroll=2, remat=True)
  encoder = bfloat16_model.module.encoder
  assert encoder.dtype == jnp.bfloat16 and encoder.unroll == 2
  batch = {"input_ids": jnp.array([[2, 5]])}
  collect = functools.partial(bfloat16_model.module.apply, collect=True)
  outputs = fast_jit(collect)({"params": bfloat16_model.params}, batch)
  assert outputs["hidden_states"].dtype == jnp.bfloat16
  assert outputs["pooled"].shape == (1, 8)
  assert outputs["attention"].shape == (2, 1, 2, 2, 2)
  for options in ({"hidden": 16}, {"vocab_multiple": 2}):
    with pytest.raises(ValueError, match="may not be given"):
      open_model(path, **options)
  for dtype in ("float99", "int8"):
    with pytest.raises(ValueError, match=f"model.dtype='{dtype}'.*bfloat16"):
      open_model(path, dtype=dtype)


def test_the_family_comes_from_the_folder(tmp_path):
  for i, (name, drop) in enumerate(
    (
      ("AlbertForQuestionAnswering", ()),
      ("DistilBertForMaskedLM", ("architectures",)),
      ("OpenAIGPTLMHeadModel", ("model_type",)),
    )
  ):
    path = tiny_hf.write_folder(tmp_path / str(i), name, drop=drop)
    assert open_model(path).config["family"] == tiny_hf.family_of(name)
  drop = ("model_type", "architectures")
  path = tiny_hf.write_folder(tmp_path / "none", "BertModel", drop=drop)
  with pytest.raises(ValueError, match="pass family="):
    open_model(path)
  assert open_model(path, family="bert").config["task"] == "encoder"
  model_folder.write(str(tmp_path / "ours"), hf.read(path, "tinybert"))
  model = open_model(str(tmp_path / "ours"))
  assert model.config["family"] == "tinybert" and model.tokenizer is None
  with pytest.raises(ValueError, match="is of family tinybert"):
    open_model(str(tmp_path / "ours"), family="bert")
  with pytest.raises(ValueError, match="only ELECTRA"):
    open_model(str(tmp_path / "ours"), tower="generator")


def write_both_towers(path):
  for name, tower, mlp in (
    ("ElectraForMaskedLM", "generator", 32),
    ("ElectraForPreTraining", "discriminator", 12),
  ):
    rng = np.random.default_rng(0)
    shapes = tiny_hf.array_shapes(name, mlp=mlp)
    arrays = {
      key: rng.normal(size=shape).astype("f") for key, shape in shapes.items()
    }
    options = {}
    if tower == "generator":
      options = {"num_attention_heads": 1, "intermediate_size": mlp}
    tiny_hf.write_folder(path / tower, name, arrays, **options)
  return str(path)


def test_towers_are_opened_together_or_alone(tmp_path):
  path = write_both_towers(tmp_path / "hf")
  both_model = open_model(path)
  model_folder.write(str(tmp_path / "ours"), hf.read(path, "electra"))
  assert_equal(both_model.params, open_model(str(tmp_path / "ours")).params)
  for tower, head in (("generator", "mlm"), ("discriminator", "rtd")):
    for source in (path, str(tmp_path / "ours")):
      model = open_model(source, tower=tower)
      assert model.config["task"] == tower
      encoder = model.params["encoder"]
      assert_equal(encoder["embeddings"], both_model.params["embeddings"])
      assert_equal(encoder["tower"], both_model.params[tower])
      assert_equal(model.params[head], both_model.params[head])


@pytest.fixture
def run_and_params(tmp_path):
  """Returns the folder of a run, and the arrays of the last checkpoint."""
  model = dict(family="bert", variant="tiny", vocab_size=len(PIECES))
  model |= dict(hidden=8, heads=2, mlp=16, max_positions=8, dtype="bfloat16")
  path = tmp_path / "run"
  path.mkdir()
  objective = {"name": "mlm", "pairs": True}
  text = json.dumps({"objective": objective, "model": model})
  (path / "config.json").write_text(text)
  (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  (path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
  encoder = models.bert.build(
    **{key: model[key] for key in model if key != "family"}
  )
  config = model_folder.make_config(
    "bert",
    "pretraining",
    from_config.model_attributes(encoder),
    head={"pairs": True},
  )
  shapes = from_config.param_shapes(config)
  rng = np.random.default_rng(0)
  with checkpoint.Checkpointer(str(path)) as checkpoints:
    for step in (1, 2):
      params = model_folder.unflatten(
        {
          key: rng.normal(size=shape).astype("f")
          for key, shape in shapes.items()
        }
      )
      state = TrainState(jnp.int32(step), params, opt_state={}, carry={})
      checkpoints.save(step, state, meta={}, heldout_loss=None)
    checkpoints.wait()
  return path, params


def test_a_run_is_opened_and_converted(run_and_params, tmp_path):
  path, params = run_and_params
  opened = open_model(str(path))
  assert_equal(opened.params, params)
  assert opened.config["source"]["step"] == 2
  assert opened.tokenizer.encode("Ab ab").ids == [2, 8, 5, 3]
  arguments = ["--family", "bert", "--to", "hf", "--model", path, "--output"]
  run_convert(*arguments, tmp_path / "hf")
  exported = hf.read(str(tmp_path / "hf"), "bert")
  assert_equal(model_folder.unflatten(exported.arrays), params)
  fields = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert fields["architectures"] == ["BertForPreTraining"]
  assert fields["pad_token_id"] == 0 and fields["hidden_act"] == "gelu"
  assert (tmp_path / "hf" / "vocab.txt").read_text().split() == PIECES


def test_runs_that_cannot_be_opened_are_refused(run_and_params, tmp_path):
  path, _ = run_and_params
  config = json.loads((path / "config.json").read_text())
  for change, message in (
    ({"objective": {"name": "other"}}, "the objective is 'other'"),
    ({"model": {"variant": "tiny"}}, "config.json is damaged"),
    ({"model": config["model"] | {"num_layers": 3}}, "does not fit"),
  ):
    (path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
      open_model(str(path))
  (tmp_path / "new" / "checkpoints").mkdir(parents=True)
  with pytest.raises(ValueError, match="no checkpoint"):
    open_model(str(tmp_path / "new"))


def test_a_model_of_the_hub_is_fetched_by_its_name(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match="^there is no folder /nowhere/at/all.$"):
    open_model("/nowhere/at/all")
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(ValueError, match="pip install huggingface_hub"):
    open_model("somebody/model")
  path, requests = tiny_hf.write_folder(tmp_path / "hf", "BertModel"), []

  def snapshot_download(name, allow_patterns):
    if name != "somebody/model":
      raise OSError("401 Client Error.\nmore")
    requests.append(allow_patterns)
    return path

  hub = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  assert open_model("somebody/model").config["family"] == "bert"
  # If a model has files of safetensors, its files of torch are not fetched.
  assert len(requests) == 1 and not any(
    "bin" in pattern for pattern in requests[0]
  )
  with pytest.raises(ValueError, match="did not give it .401 Client Error.."):
    open_model("somebody/else")
  with pytest.raises(ValueError, match="does not hold both|only ELECTRA"):
    open_model("somebody/model", tower="both")


@pytest.mark.parametrize(
  "family, files, text, ids_or_error",
  [
    (
      "roberta",
      {
        "vocab.json": json.dumps(
          {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
          | {byte: 4 + i for i, byte in enumerate(BYTE_PIECES)}
          | {"ab": 260, "Ġab": 261, "<mask>": 262}
        ),
        "merges.txt": "#version: 0.2\na b\nĠ ab\n",
      },
      "ab ab <mask>",
      [0, 260, 261, 262, 2],
    ),
    (
      "gpt",
      {
        "vocab.json": json.dumps(
          {"<unk>": 0, "a": 1, "b": 2, "b</w>": 3, "ab</w>": 4}
        ),
        "merges.txt": "#version: 0.2\na b</w>\n",
      },
      "AB b",
      [4, 3],
    ),
    ("albert", {"spiece.model": "no"}, None, "spiece.model is not a Sentence"),
    ("bert", {"tokenizer.json": "{"}, None, "tokenizer.json is damaged"),
    ("bert", {"added_tokens.json": "{}"}, None, None),
  ],
)
def test_tokenizers_are_built_from_files(
  family, files, text, ids_or_error, tmp_path
):
  name = {
    "roberta": "RobertaForMaskedLM",
    "gpt": "OpenAIGPTLMHeadModel",
    "albert": "AlbertForQuestionAnswering",
    "bert": "BertModel",
  }[family]
  path = tiny_hf.write_folder(tmp_path / "hf", name)
  for file, content in files.items():
    (tmp_path / "hf" / file).write_text(content, encoding="utf-8")
  if isinstance(ids_or_error, str):
    with pytest.raises(ValueError, match=ids_or_error):
      open_model(path).tokenizer  # noqa: B018, the property opens the files
    return
  tokenizer = open_model(path).tokenizer
  assert (tokenizer.encode(text).ids if tokenizer else None) == ids_or_error
