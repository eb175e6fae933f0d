"""Writes small files of tasks in their formats, and vocabularies for them."""

import json
import string

from bert_jax.text import open_vocabulary

WORDS = ["a", "b", "the", "cat", "sat", "on", "mat", "dog", "ran", "good"]
WORDS += ["bad", "film", "pure", "land", "school"]
LETTERS = string.ascii_lowercase + string.digits + string.punctuation
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = list(
  dict.fromkeys(
    [*SPECIAL, *WORDS, *LETTERS, *(f"##{c}" for c in LETTERS), "é", "##é"]
  )
)
ID = {piece: i for i, piece in enumerate(PIECES)}


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(text.encode("utf-8"))
  return str(path)


def write_jsonl(path, records):
  return write(path, "".join(json.dumps(record) + "\n" for record in records))


def wordpiece(folder):
  return write(folder / "vocab.txt", "".join(f"{p}\n" for p in PIECES))


def roberta(folder):
  """Writes a byte-level vocabulary with RoBERTa's special tokens, no merges."""
  from tokenizers import pre_tokenizers

  pieces = ["<s>", "<pad>", "</s>", "<unk>"]
  pieces += sorted(pre_tokenizers.ByteLevel.alphabet())
  id_of_piece = {p: i for i, p in enumerate([*pieces, "<mask>"])}
  write(folder / "roberta" / "merges.txt", "#version: 0.2\n")
  write(folder / "roberta" / "vocab.json", json.dumps(id_of_piece))
  return str(folder / "roberta")


def gpt1(folder):
  """Writes a vocabulary of GPT-1's BPE without merges."""
  letters = string.ascii_lowercase
  pieces = ["<unk>", *letters, *(f"{c}</w>" for c in letters)]
  id_of_piece = {p: i for i, p in enumerate(pieces)}
  write(folder / "gpt1" / "merges.txt", "#version: 0.2\n")
  write(folder / "gpt1" / "vocab.json", json.dumps(id_of_piece))
  return str(folder / "gpt1")


def load(path):
  return open_vocabulary.load(path)


def squad(paragraphs):
  """Returns SQuAD's JSON of [(context, [(id, question, answers)])].

  The answers of a question are [(text, start)].
  """
  paragraph_dicts = []
  for context, questions in paragraphs:
    qas = []
    for name, question, answers in questions:
      spans = [dict(text=text, answer_start=start) for text, start in answers]
      qas.append(dict(id=name, question=question, answers=spans))
    paragraph_dicts.append(dict(context=context, qas=qas))
  articles = [dict(title="t", paragraphs=paragraph_dicts)]
  return json.dumps(dict(version="1.1", data=articles))
