"""Tests that transformers reads the tokenizers of prepared folders."""

import json

import pytest
from tiny_vocabularies import (
  ALBERT_PIECES,
  BYTES,
  MERGES,
  SPECIAL_LIST,
  bert_vocabulary,
  gpt1_vocabulary,
  roberta_vocabulary,
  sentencepiece_model,
  write_files,
)

from bert_jax.cli.main import execute
from bert_jax.corpus import reader, tokenize
from bert_jax.text import added_tokens, bpe, open_vocabulary

FAIRSEQ_PIECES = ["<unk>", "<s>", "</s>", "▁the", "▁a", "n", "▁", "."]
TEXTS = (
  "The an a, don't É!",
  " the  an\na",
  "the 中文 😀\tcat at.",
  "the <mask> a [MASK]<unk>n <|endoftext|> an",
)


def gpt2_vocabulary():
  pieces = [*BYTES, *(a + b for a, b in MERGES), "<|endoftext|>"]
  return bpe.build_bytelevel(
    {piece: i for i, piece in enumerate(pieces)}, MERGES
  )


def roberta_files_with_gap():
  """Returns files with RoBERTa's gap: three ids before <mask> have no piece."""
  files = dict(roberta_vocabulary().files)
  id_of_piece = json.loads(files["vocab.json"])
  id_of_piece["<mask>"] += 3
  files["vocab.json"] = json.dumps(id_of_piece).encode()
  return files


def tokenizer_json_of(vocabulary):
  tokenizer = added_tokens.make_model_tokenizer(vocabulary)
  return {"tokenizer.json": tokenizer.to_str().encode()}


def fairseq_files(tokenizer_class):
  settings = json.dumps({"tokenizer_class": tokenizer_class})
  return {
    "sentencepiece.bpe.model": sentencepiece_model(FAIRSEQ_PIECES),
    "tokenizer_config.json": settings.encode(),
  }


WORDS = "the a an ##n . , don ' t é e"
CASED_FILES = {
  "vocab.txt": "\n".join([*SPECIAL_LIST, "The", *WORDS.split()]).encode(),
  "tokenizer_config.json": b'{"do_lower_case": false}',
}
# Name -> (a function that makes the files of a vocabulary, the config that
# `prepare` names for it).
TOKENIZER_CASES = {
  "wordpiece": (lambda: bert_vocabulary(WORDS).files, "bert:base"),
  "cased": (lambda: CASED_FILES, "bert:base"),
  "wordpiece json": (
    lambda: tokenizer_json_of(bert_vocabulary(WORDS)),
    "bert:base",
  ),
  "roberta": (lambda: roberta_vocabulary().files, "roberta:base"),
  "roberta with gaps": (roberta_files_with_gap, "roberta:base"),
  "roberta json": (
    lambda: tokenizer_json_of(roberta_vocabulary()),
    "roberta:base",
  ),
  "gpt2": (lambda: gpt2_vocabulary().files, "gpt:gpt1"),
  "gpt2 json": (lambda: tokenizer_json_of(gpt2_vocabulary()), "gpt:gpt1"),
  "gpt1": (lambda: gpt1_vocabulary().files, "gpt:gpt1"),
  "gpt1 json": (lambda: tokenizer_json_of(gpt1_vocabulary()), "gpt:gpt1"),
  "albert": (
    lambda: {"spiece.model": sentencepiece_model(ALBERT_PIECES)},
    "albert:base_v2",
  ),
  "xlm-r": (lambda: fairseq_files("XLMRobertaTokenizer"), "roberta:base"),
  "camembert": (lambda: fairseq_files("CamembertTokenizer"), "roberta:base"),
}


@pytest.fixture(params=TOKENIZER_CASES)
def prepared_case(request, tmp_path, capsys, monkeypatch):
  """Returns (config, vocabulary's path, prepared folder, last printed line)."""

  def ordered_map(make_function, arguments, inputs, processes):
    """Runs in this process, because more processes start slowly."""
    yield from map(make_function(*arguments), inputs)

  monkeypatch.setattr(tokenize, "ordered_map", ordered_map)
  make_files, config = TOKENIZER_CASES[request.param]
  vocab_path = write_files(tmp_path / "vocab", make_files())
  (tmp_path / "text.txt").write_text("the a.\nan a.\n\nan the.\na an.\n" * 2)
  output = str(tmp_path / "out")
  flags = ["--input", str(tmp_path / "text.txt"), "--vocab", vocab_path]
  execute(["prepare", *flags, "--output", output, "--processes=1"])
  line = capsys.readouterr().out.splitlines()[-1]
  return config, vocab_path, output, line


def test_transformers_reads_the_folder_and_the_config_fits(prepared_case):
  transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
  )
  config, vocab_path, output, last_line = prepared_case
  meta = reader.open_prepared(output).meta
  assert last_line == (
    f"next: bert_jax train --config {config} --workdir runs/mine"
    f" --config.data.path={output} --config.data.cased={not meta['lower_case']}"
  )
  vocabulary = open_vocabulary.load(vocab_path)
  special_ids = vocabulary.special
  prepared_vocabulary = open_vocabulary.load(output)
  tokenizer = transformers.AutoTokenizer.from_pretrained(output)
  for text in TEXTS:
    ids = vocabulary.encode_special(text)
    assert prepared_vocabulary.encode_special(text) == ids, text
    text_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert text_ids == ids, text
    ids_with_special = (
      [special_ids.cls, *ids, special_ids.sep] if special_ids.mask else ids
    )
    assert tokenizer(text)["input_ids"] == ids_with_special, text
  assert tokenizer.mask_token_id == special_ids.mask
  if special_ids.mask is not None:
    assert tokenizer.pad_token_id == special_ids.pad
