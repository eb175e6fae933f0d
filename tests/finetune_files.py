"""Small files of tasks in their original formats, and vocabularies for them."""

import json
import string

from bert_jax.text import open_vocabulary

WORDS = "a b the cat sat on mat dog ran good bad film pure land school".split()
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


def write_jsonl(path, values):
  return write(path, "".join(json.dumps(value) + "\n" for value in values))


def wordpiece(folder):
  return write(folder / "vocab.txt", "".join(f"{p}\n" for p in PIECES))


def roberta(folder):
  """A byte-level vocabulary without merges, with RoBERTa's special tokens."""
  from tokenizers import pre_tokenizers

  names = ["<s>", "<pad>", "</s>", "<unk>"]
  names += sorted(pre_tokenizers.ByteLevel.alphabet())
  pieces = {p: i for i, p in enumerate([*names, "<mask>"])}
  write(folder / "roberta" / "merges.txt", "#version: 0.2\n")
  write(folder / "roberta" / "vocab.json", json.dumps(pieces))
  return str(folder / "roberta")


def gpt1(folder):
  """GPT-1's BPE without merges."""
  letters = string.ascii_lowercase
  names = ["<unk>", *letters, *(f"{c}</w>" for c in letters)]
  pieces = {p: i for i, p in enumerate(names)}
  write(folder / "gpt1" / "merges.txt", "#version: 0.2\n")
  write(folder / "gpt1" / "vocab.json", json.dumps(pieces))
  return str(folder / "gpt1")


def load(path):
  return open_vocabulary.load(path)


def squad(paragraphs):
  """SQuAD's JSON of (context, [(id, question, [(text, start)])])."""
  made = []
  for context, asked in paragraphs:
    qas = []
    for name, question, answers in asked:
      given = [dict(text=text, answer_start=start) for text, start in answers]
      qas.append(dict(id=name, question=question, answers=given))
    made.append(dict(context=context, qas=qas))
  data = [dict(title="t", paragraphs=made)]
  return json.dumps(dict(version="1.1", data=data))
