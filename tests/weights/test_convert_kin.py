"""Tests models like RoBERTa and BERT that have a different model_type or class.

Also tests folders that lack files or fields.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
import tiny_hf
from tiny_families import fast_jit

from bert_jax.cli.main import execute, parser_of
from bert_jax.tasks import layouts
from bert_jax.text import open_vocabulary
from bert_jax.use import predict
from bert_jax.weights import hf, hf_files, hf_tasks, mapping, model_folder
from bert_jax.weights import load as loading

NEEDED_PACKAGES = ("torch", "transformers", "sentencepiece")
if all(map(importlib.util.find_spec, NEEDED_PACKAGES)):
  import sentencepiece
  import torch
  import transformers
elif "BERT_JAX_TEST_DATA" in os.environ:
  raise ImportError(f"these tests need {', '.join(NEEDED_PACKAGES)} here.")
else:
  pytest.skip(f"needs {', '.join(NEEDED_PACKAGES)}", allow_module_level=True)

LINES = [
  "L'été, le café était fermé.",
  "Привет мир, это короткий текст.",
  "東京は大きい。",
  "नमस्ते दुनिया",
  "the cat sat on the mat",
  "a tall house stands near the old mill",
]
TEXTS = [*LINES, "Hello  world", "the ﬁne ① test\tx", "x 👍 y", " a", ""]
# Class of the tokenizer -> (prefix of the model's classes, model_type, the
# first piece, the id of a piece minus its number in the SentencePiece model).
ROBERTA_TYPES = {
  "XLMRobertaTokenizer": ("XLMRoberta", "xlm-roberta", "<s>", 1),
  "CamembertTokenizer": ("Camembert", "camembert", "<s>NOTUSED", 4),
}


@pytest.fixture(scope="module")
def sentencepiece_path(tmp_path_factory):
  """Trains a SentencePiece model that begins with <unk>, <s>, </s>."""
  prefix = str(tmp_path_factory.mktemp("spm") / "m")
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES * 20),
    model_prefix=prefix,
    vocab_size=60,
    model_type="unigram",
    character_coverage=1.0,
    minloglevel=2,
  )
  return f"{prefix}.model"


@pytest.fixture(scope="module", params=ROBERTA_TYPES)
def roberta_files_and_model(request, sentencepiece_path, tmp_path_factory):
  """Makes the folder of a model.

  Returns the name of the tokenizer's class, the folder, the tokenizer and the
  model.
  """
  path = tmp_path_factory.mktemp("kin") / "model"
  class_prefix, model_type, _, _ = ROBERTA_TYPES[request.param]
  path.mkdir()
  shutil.copy(sentencepiece_path, path / "sentencepiece.bpe.model")
  (path / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": request.param})
  )
  tokenizer = getattr(transformers, request.param).from_pretrained(str(path))
  model_class = getattr(transformers, f"{class_prefix}ForMaskedLM")
  sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
  sizes |= dict(
    intermediate_size=32, max_position_embeddings=34, pad_token_id=1
  )
  sizes |= dict(type_vocab_size=1, layer_norm_eps=1e-5)
  torch.manual_seed(0)
  model = model_class(
    model_class.config_class(vocab_size=len(tokenizer), **sizes)
  ).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(0.0, 0.3)
  model.save_pretrained(path)
  assert (
    json.loads((path / "config.json").read_text())["model_type"] == model_type
  )
  return request.param, path, tokenizer, model


@pytest.mark.parametrize("is_fast", [False, True])
def test_ids_of_fairseq_are_those_of_transformers(
  roberta_files_and_model, tmp_path, is_fast
):
  tokenizer_class_name, path, tokenizer, _ = roberta_files_and_model
  if is_fast:
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path
    assert not (path / "sentencepiece.bpe.model").exists()
  opened = open_vocabulary.load(str(path))
  first_piece, offset = ROBERTA_TYPES[tokenizer_class_name][2:]
  assert opened.pieces[0] == first_piece and opened.pieces[1] == "<pad>"
  assert opened.pieces[-1] == "<mask>"
  processor = sentencepiece.SentencePieceProcessor(
    str(roberta_files_and_model[1] / "sentencepiece.bpe.model")
  )
  for piece_number in range(3, processor.get_piece_size()):
    assert opened.pieces[piece_number + offset] == processor.id_to_piece(
      piece_number
    )
  special = opened.special
  assert special == (
    tokenizer.pad_token_id,
    tokenizer.unk_token_id,
    tokenizer.cls_token_id,
    tokenizer.sep_token_id,
    tokenizer.mask_token_id,
  )
  loaded = loading.read(str(roberta_files_and_model[1]))
  loaded_tokenizer = loading.open_model(
    str(roberta_files_and_model[1])
  ).tokenizer
  layout = layouts.layout_of(opened)
  assert layout.between == (special.sep,) * 2 and not layout.has_segments
  for text in TEXTS:
    ids = tokenizer(text)["input_ids"]
    assert list(opened.encode_batch([text])[0]) == ids[1:-1], text
    assert loaded_tokenizer.encode(text).ids == ids, text
  pair_ids = tokenizer("a b", "c")["input_ids"]
  assert loaded_tokenizer.encode("a b", "c").ids == pair_ids
  texts = [np.array(opened.encode_batch([text])[0]) for text in ("a b", "c")]
  row = np.concatenate(layouts.lay_out(layout, texts, length=20).id_arrays)
  assert row.tolist() == pair_ids
  assert loaded.config["model"]["vocab_size"] == len(opened.pieces)


def test_camembert_and_xlm_roberta_are_read_as_roberta(
  roberta_files_and_model, tmp_path
):
  tokenizer_class_name, path, tokenizer, model = roberta_files_and_model
  class_prefix, model_type = ROBERTA_TYPES[tokenizer_class_name][:2]
  loaded = loading.open_model(str(path))
  assert loaded.config["family"] == "roberta"
  ids = tokenizer("the cat sat")["input_ids"]
  ids[2] = tokenizer.mask_token_id
  batch = {"input_ids": np.array([ids]), "mlm_positions": np.array([[2]])}
  outputs = fast_jit(loaded.module.apply)({"params": loaded.params}, batch)
  with torch.no_grad():
    reference_logits = model(torch.tensor([ids])).logits[0, 2].numpy()
  # The logits are 1 to 10, and each library has its own order of float32 sums.
  np.testing.assert_allclose(
    outputs["mlm_logits"][0, 0], reference_logits, atol=2e-5
  )
  command = ["--from", "hf", "--model", str(path), "--output"]
  run_command("convert", *command, str(tmp_path / "ours"))
  command = ["--to", "hf", "--model", str(tmp_path / "ours"), "--output"]
  run_command("convert", *command, str(tmp_path / "back"))
  fields = json.loads((tmp_path / "back" / "config.json").read_text())
  assert fields["model_type"] == model_type
  assert fields["architectures"] == [f"{class_prefix}ForMaskedLM"]
  reopened = transformers.AutoModelForMaskedLM.from_pretrained(
    tmp_path / "back"
  )
  with torch.no_grad():
    logits = reopened.eval()(torch.tensor([ids])).logits[0, 2].numpy()
  np.testing.assert_allclose(logits, reference_logits, atol=1e-6)
  (tmp_path / "in.jsonl").write_text('{"text": "the cat <mask> on"}\n')
  flags = ["--input", str(tmp_path / "in.jsonl"), "--top", "2"]
  flags += ["--output", str(tmp_path / "out.jsonl"), "--model", str(path)]
  run_command("predict", *flags)
  prediction = json.loads((tmp_path / "out.jsonl").read_text())
  encoded = tokenizer("the cat <mask> on", return_tensors="pt")
  with torch.no_grad():
    logits = model(**encoded).logits[0]
  position = encoded["input_ids"][0].tolist().index(tokenizer.mask_token_id)
  probabilities = torch.softmax(logits[position], -1)
  best_id = int(probabilities.argmax())
  candidate = prediction["masks"][0][0]
  assert candidate["token"] == tokenizer.convert_ids_to_tokens(best_id)
  probability = pytest.approx(float(probabilities[best_id]), rel=1e-4)
  assert candidate["probability"] == probability


def test_a_damaged_or_different_sentencepiece_model_is_refused(
  roberta_files_and_model, tmp_path, sentencepiece_path
):
  path = tmp_path / "sentencepiece.bpe.model"
  path.write_bytes(b"\x00\x01")
  with pytest.raises(ValueError, match="bpe.model is not a unigram model of"):
    open_vocabulary.load(str(tmp_path))
  content = pathlib.Path(sentencepiece_path).read_bytes()
  path.write_bytes(content.replace(b"<s>", b"<t>"))
  with pytest.raises(ValueError, match="first pieces are .*'<t>'.*of XLM-R"):
    open_vocabulary.load(str(tmp_path))


def run_command(verb, *arguments):
  execute([verb, *arguments])


@pytest.mark.parametrize(
  "prefix", ["module.", "_orig_mod.", "module._orig_mod."]
)
@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertModel"])
def test_the_prefix_of_a_wrapper_is_left_out(tmp_path, capsys, prefix, name):
  unwrapped_weights = hf.read(
    tiny_hf.write_folder(tmp_path / "plain", name), "bert"
  )
  arrays = tiny_hf.constant_arrays(name)
  wrapped_arrays = {prefix + key: array for key, array in arrays.items()}
  path = tiny_hf.write_folder(tmp_path / "wrapped", name, wrapped_arrays)
  weights = hf.read(path, "bert")
  assert weights.config == unwrapped_weights.config
  for key, array in unwrapped_weights.arrays.items():
    np.testing.assert_array_equal(weights.arrays[key], array)
  line = f"model.safetensors: the names of all arrays begin with {prefix!r}"
  assert line in capsys.readouterr().err
  # If one name lacks the prefix, no wrapper has written the file.
  key = next(iter(wrapped_arrays))
  wrapped_arrays[key.removeprefix(prefix)] = wrapped_arrays.pop(key)
  model_folder.write_tensors(
    f"{path}/model.safetensors",
    arrays=wrapped_arrays,
    metadata={"format": "pt"},
  )
  with pytest.raises(ValueError, match="belongs to no parameter|is missing"):
    hf.read(path, "bert")


def test_a_model_for_next_sentences_is_read_and_written(tmp_path):
  model_class = transformers.BertForNextSentencePrediction
  torch.manual_seed(0)
  fields = tiny_hf.config_json("BertModel")
  model = model_class(transformers.BertConfig(**fields)).eval()
  model.save_pretrained(tmp_path / "hf")
  loaded = loading.open_model(str(tmp_path / "hf"))
  assert loaded.config["task"] == "next_sentence"
  rng = np.random.default_rng(0)
  batch = {"input_ids": rng.integers(0, 20, (2, 6))}
  batch["segment_ids"] = np.array([[0, 0, 0, 1, 1, 1]] * 2)
  outputs = fast_jit(loaded.module.apply)({"params": loaded.params}, batch)
  ids, segments = map(torch.from_numpy, batch.values())
  with torch.no_grad():
    reference_logits = model(ids, token_type_ids=segments).logits.numpy()
  np.testing.assert_allclose(
    outputs["pair_logits"][:, 0], reference_logits, atol=1e-5
  )
  model_folder.write(
    str(tmp_path / "ours"), hf.read(str(tmp_path / "hf"), "bert")
  )
  weights = model_folder.read(str(tmp_path / "ours"))
  hf.write(str(tmp_path / "back"), weights)
  reopened = model_class.from_pretrained(tmp_path / "back").eval()
  for parameter, reopened_parameter in zip(
    model.parameters(), reopened.parameters(), strict=True
  ):
    assert torch.equal(parameter, reopened_parameter)
  with pytest.raises(ValueError, match="next_sentence.*no head to predict"):
    predict.kind_of(weights.config, "x")


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Electra"])
def test_a_decoder_class_is_read_unless_is_decoder_is_true(tmp_path, name):
  masked_lm = f"{name}ForMaskedLM"
  decoder_class = "BertLMHeadModel" if name == "Bert" else f"{name}ForCausalLM"
  family = name.lower()
  expected = hf.read(
    tiny_hf.write_folder(tmp_path / "plain", masked_lm), family
  )
  for is_decoder in (False, True):
    path = tiny_hf.write_folder(
      tmp_path / str(is_decoder),
      masked_lm,
      architectures=[decoder_class],
      is_decoder=is_decoder,
    )
    if is_decoder:
      with pytest.raises(ValueError, match="is_decoder is True"):
        hf.read(path, family)
      continue
    weights = hf.read(path, family)
    assert weights.config["task"] == expected.config["task"]
    for key, array in expected.arrays.items():
      np.testing.assert_array_equal(weights.arrays[key], array)


def test_without_architectures_the_arrays_tell_the_task(tmp_path):
  for name in ("BertForPreTraining", "BertForMaskedLM", "BertModel"):
    path = tiny_hf.write_folder(tmp_path / name, name, drop=["architectures"])
    complete_path = tiny_hf.write_folder(tmp_path / f"{name}2", name)
    config, complete_config = (
      hf.read(folder, "bert").config for folder in (path, complete_path)
    )
    assert config["task"] == complete_config["task"]
    assert config["head"] == complete_config["head"]


@pytest.mark.parametrize("weight_files", ["root", "towers", "safe"])
def test_weights_outside_onnx_are_fetched_from_the_hub(
  tmp_path, monkeypatch, weight_files
):
  """The weights are fetched even if only `onnx` has a .safetensors file."""
  repository_folder = tmp_path / "repository"
  class_by_folder = {".": "BertModel"}
  if weight_files == "towers":
    class_by_folder = {
      "generator": "ElectraForMaskedLM",
      "discriminator": "ElectraForPreTraining",
    }
  for folder, model_class in class_by_folder.items():
    tiny_hf.write_folder(repository_folder / folder, model_class)
    safetensors_path = repository_folder / folder / "model.safetensors"
    if weight_files != "safe":
      arrays = model_folder.read_tensors(str(safetensors_path))
      tensors = {
        key: torch.from_numpy(np.array(array)) for key, array in arrays.items()
      }
      torch.save(tensors, repository_folder / folder / "pytorch_model.bin")
      safetensors_path.unlink()
  onnx_path = repository_folder / "onnx" / "model.safetensors"
  onnx_path.parent.mkdir()
  model_folder.write_tensors(str(onnx_path), arrays={}, metadata={})
  requests = []

  def snapshot_download(repo, allow_patterns):
    requests.append(allow_patterns)
    local_folder = tmp_path / "local"
    for file in repository_folder.rglob("*"):
      path = file.relative_to(repository_folder)
      # As on the hub, an asterisk stands for slashes too.
      if file.is_file() and mapping.matches_pattern(str(path), allow_patterns):
        (local_folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, local_folder / path)
    return str(local_folder)

  hub = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  path = loading._download("somebody/model")
  assert hf_files.has_weights(path)
  assert len(requests) == (1 if weight_files == "safe" else 2)
  if weight_files != "towers":
    weights = loading.read("somebody/model")
    assert weights.config["family"] == "bert"


# The fields that name a model's family.
NAMING_FIELDS = ("model_type", "architectures")


@pytest.mark.parametrize(
  "name, family",
  [
    ("BertForMaskedLM", "bert"),
    ("RobertaForMaskedLM", "roberta"),
    ("AlbertForPreTraining", "albert"),
    ("ElectraForPreTraining", "electra"),
    ("DistilBertForMaskedLM", "distilbert"),
    ("OpenAIGPTLMHeadModel", "gpt"),
    ("BertModel", None),
  ],
)
def test_the_arrays_identify_the_family_without_a_config(
  tmp_path, capsys, name, family
):
  path = tiny_hf.write_folder(tmp_path / "hf", name, drop=NAMING_FIELDS)
  if family is None:
    # Without a prefix, the arrays of RoBERTa and BERT have the same names.
    with pytest.raises(hf_tasks.UnknownFamily, match="--family=NAME"):
      loading.read(path)
    family = "bert"
    assert loading.read(path, "bert").config["family"] == "bert"
  else:
    assert loading.read(path).config["family"] == family
    assert "names no family; by the names in" in capsys.readouterr().err
  # If the config names an unknown family, the arrays do not decide.
  other_path = tiny_hf.write_folder(
    tmp_path / "t5", name, model_type="t5", drop=NAMING_FIELDS[1:]
  )
  with pytest.raises(hf_tasks.UnknownFamily, match="model_type is 't5'"):
    loading.read(other_path)


def test_every_command_has_the_flag_family(tmp_path):
  """If no field of config.json names the family, a command needs --family."""
  path = tiny_hf.write_folder(tmp_path / "hf", "BertModel", drop=NAMING_FIELDS)
  (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
  file_flags = ["--input", str(tmp_path / "in.jsonl"), "--output"]
  commands = [
    (
      "predict",
      [*file_flags, str(tmp_path / "out.jsonl")],
      "no head to predict",
    ),
    ("export", ["--output", str(tmp_path / "x")], "it has no head"),
    ("likelihood", ["--blimp", str(tmp_path)], "has no likelihood; use"),
  ]
  for command, flags, message in commands:
    flags = ["--model", path, *flags]
    with pytest.raises(SystemExit, match="pass family="):
      run_command(command, *flags)
    with pytest.raises(SystemExit, match=message):
      run_command(command, *flags, "--family", "bert")
  flags = ["--model", "m", "--data", "d", "--family", "bert"]
  assert parser_of("evaluate").parse(flags).family == "bert"
