"""Augmentation beside its published rules, a word at a time; the command."""

import itertools
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_tasks
from tiny_families import jit

import bert_jax
from bert_jax import hashing
from bert_jax.cli import augment
from bert_jax.cli.main import parser_of
from bert_jax.tasks import task_inputs
from bert_jax.tasks.files import glue
from bert_jax.use import augment_task, augmentation, predict, word_vectors

pytestmark = pytest.mark.usefixtures("compiled", "unoptimized")

# "cats" is two pieces, "ox" none; "it" is a stop word.
WORDS = (*tiny_tasks.WORDS, "cats", "it", "ox", "?", "12")
OPTIONS = augmentation.Options(samples=6, threshold=0.5, candidates=4, seed=3)
# Pairs of directions: the nearest of "cats" are "dogs", then "birds".
VECTORS = """cats 1 0 0
Cats 0 0 1
dogs 3 0.3 0
birds 0 0 -2
trees -1 0 0
birds 1 0 0
of two 0.1 0.1 0
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """A model, vectors and a training file."""
  path = tmp_path_factory.mktemp("made")
  tiny_tasks.write_model(path / "model")
  tiny_tasks.write_tuned(path / "tuned", "classification")
  (path / "vectors.txt").write_text(VECTORS)
  rng = random.Random(0)
  lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 7))) for _ in range(9)]
  rows = [f"{text} \t{i % 2}\n" for i, text in enumerate([*lines, lines[0]])]
  (path / "train.tsv").write_text("sentence\tlabel\n" + "".join(rows))
  return path


@pytest.fixture(scope="module")
def predictor(made):
  return predict.open_predictor(str(made / "model"), 4, top=OPTIONS.candidates)


@pytest.fixture(scope="module")
def likeliest(made):
  """(ids of a text, which is masked, candidates) -> words, by the module."""
  model = bert_jax.load(str(made / "model"))
  apply = jit(model.module.apply)
  length = model.module.encoder.max_length

  def find(ids, place, count):
    whole = [2, *ids, 3, *ids, 3][:length]
    whole[1 + place] = 4
    row = np.zeros((1, length), np.int32)
    row[0, : len(whole)] = whole
    column = np.arange(length)
    batch = dict(
      input_ids=row,
      sequence_ids=(column < len(whole)).astype(np.int32)[None],
      segment_ids=((column >= len(ids) + 2) & (column < len(whole))).astype(
        np.int32
      )[None],
      mlm_positions=np.array([[1 + place]], np.int32),
      cls_positions=np.zeros((1, 1), np.int32),
    )
    logits = apply({"params": model.params}, batch)["mlm_logits"][0, 0]
    best = np.argsort(-np.asarray(logits))[:count]
    pieces = [tiny_tasks.PIECES[i] for i in best]
    return [p for p in pieces if not re.match(r"##|\[.*\]$", p)]

  return find


def restated(text, line, likeliest, near):
  """All variants of a text, by the rules, from the vocabulary alone."""
  pieces = tiny_tasks.PIECES
  words = re.findall(r"[a-z0-9]+|\?", text.lower())
  split = [
    [w] if w in pieces else ["cat", "##s"] if w == "cats" else ["[UNK]"]
    for w in words
  ]
  ids = [pieces.index(p) for parts in split for p in parts]
  begins = [0, *itertools.accumulate(map(len, split))]
  chosen = {}
  for i, word in enumerate(words):
    if not word.isalpha() or word in ("it", "of"):
      continue
    found = near.get(word, [])
    if len(split[i]) == 1:
      found = likeliest(ids, begins[i], OPTIONS.candidates)
    chosen[i] = found or [word]
  key = ["augment", OPTIONS.seed, 0]
  which = hashing.make_key(*key, "which")
  what = hashing.make_key(*key, "what")
  sentences = [text]
  for sample in range(OPTIONS.samples):
    new = list(words)
    for i, found in chosen.items():
      at = sample * len(words) + i
      if hashing.uniform(which, line, at) < OPTIONS.threshold:
        new[i] = found[int(hashing.randint(what, line, at, len(found)))]
    if " ".join(new) not in sentences:
      sentences.append(" ".join(new))
  return sentences


@pytest.mark.parametrize("with_vectors", [False, True])
def test_variants_are_those_of_the_rules(
  made, predictor, likeliest, with_vectors
):
  vectors, near = None, {}
  if with_vectors:
    vectors = word_vectors.read(str(made / "vectors.txt"))
    near = {"cats": ["dogs", "of two", "Cats", "birds"]}
  rows = (made / "train.tsv").read_text().splitlines()[1:]
  rows = [row.split("\t") for row in rows]
  examples = [augmentation.Example((text,), label) for text, label in rows]
  found = [*augmentation.expand(predictor, vectors, OPTIONS, examples)]
  wanted = [
    ((sentence,), label)
    for line, (text, label) in enumerate(rows)
    for sentence in restated(text, line, likeliest, near)
  ]
  assert found == wanted and len(found) > 40
  # The last line has the text of the first, and other draws.
  first = [e.texts[0] for e in found if e.label == "0"][1:4]
  assert first != [e.texts[0] for e in found][-3:]


def test_of_a_pair_each_text_is_varied_beside_the_other(predictor):
  one, two = "red cat runs .", "blue dog sings"
  example = augmentation.Example((one, two), "x")
  found = [*augmentation.expand(predictor, None, OPTIONS, [example])]
  assert found[0] == example and {e.label for e in found} == {"x"}
  for new in found[1:]:
    assert (new.texts[0] == one) != (new.texts[1] == two)
  assert {e.texts[0] for e in found} > {one}
  assert {e.texts[1] for e in found} > {two}


def test_words_that_stay():
  for word in ("it", "The", "don", "s", "3d", "café", "?", ""):
    assert not augmentation.may_change(word), word
  for word in ("film", "What", "who", "USA"):
    assert augmentation.may_change(word), word
  assert len(augmentation.STOP_WORDS) == 145


def test_a_text_longer_than_the_model(predictor):
  """Its words beyond the last place stay, and those before may change."""
  length = predictor.length
  words = ["cat"] * (length + 5)
  (part,) = augmentation.split(predictor.vocabulary, [" ".join(words)])
  (found,) = augmentation.candidates(predictor, None, [part], 4)
  assert all(found[i] == ["cat"] for i in range(length - 1, len(words)))
  assert all(len(found[i]) > 1 for i in range(length - 1))
  rows, places = augmentation.masked_rows(
    [(part.ids, length - 2)], predictor.vocabulary.special, length
  )
  assert rows.starts.tolist() == [0, length] and rows.second == [length]
  assert rows.ids[places[0]] == 4 and places == [length - 1]


def test_nearest_words(made):
  vectors = word_vectors.read(str(made / "vectors.txt"))
  # Of a word that is there twice the first line counts.
  assert vectors.nearest("cats", 2) == ["dogs", "of two"]
  assert vectors.nearest("Cats", 3) == ["Cats", "Dogs", "Trees"]
  assert vectors.nearest("cow", 3) == []
  assert len(vectors.nearest("cats", 99)) == 5
  few = word_vectors.read(str(made / "vectors.txt"), most=3)
  assert few.words == ["cats", "Cats", "dogs"]


def command(made, **flags):
  flags = (
    dict(
      model=made / "model",
      task="sst2",
      input=made / "train.tsv",
      output=made / "out.tsv",
      samples=5,
      candidates=4,
    )
    | flags
  )
  return parser_of("augment").parse(
    [f"--{name}={value}" for name, value in flags.items()]
  )


def test_the_output_is_read_as_the_task(made, capsys):
  augment.run(command(made, vectors=made / "vectors.txt"))
  first = (made / "out.tsv").read_bytes()
  augment.run(command(made, vectors=made / "vectors.txt"))
  assert (made / "out.tsv").read_bytes() == first
  augment.run(command(made, vectors=made / "vectors.txt", seed=1))
  assert (made / "out.tsv").read_bytes() != first
  known = task_inputs.find("sst2")
  read = task_inputs.read(
    known, [task_inputs.Input("train", str(made / "out.tsv"))]
  ).splits["train"]
  old = task_inputs.read(
    known, [task_inputs.Input("train", str(made / "train.tsv"))]
  ).splits["train"]
  assert len(old) == 10 < len(read)
  texts = [(e["texts"], e["label"]) for e in read]
  for example in old:
    assert (example["texts"], example["label"]) in texts
  assert not list(made.glob("*.partial"))
  said = capsys.readouterr().out.splitlines()[-1]
  assert said == f"{made / 'out.tsv'}: {len(read)} examples of 10"


@pytest.mark.parametrize("task", glue.TEXTS)
def test_what_is_written_of_every_task_is_read(tmp_path, task):
  known, names = augment_task.task_columns(task, None, None)
  label = (known.task.labels or ("2.5",))[-1]
  texts = [f"a {i} cat" for i in range(len(names) - 1)]
  lines = ["\t".join(names), "\t".join([*texts, label])]
  (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
  (example,) = task_inputs.read(
    known, [task_inputs.Input("train", str(tmp_path / "a.tsv"))]
  ).splits["train"]
  assert (example["texts"], str(example["label"])) == (texts, label)


def test_a_task_of_ones_own(made):
  rows = '"a, red cat","b\tdog",1.5\n"cat","bird",2\n'
  (made / "own.csv").write_text("x,y,z\n" + rows)
  own = dict(columns="text=x,pair=y,label=z", kind="regression")
  augment.run(command(made, task="likeness", input=made / "own.csv", **own))
  lines = (made / "out.tsv").read_text().splitlines()
  assert lines[:2] == ["x\ty\tz", "a, red cat\tb dog\t1.5"]
  assert {line.split("\t")[2] for line in lines[1:]} == {"1.5", "2.0"}


@pytest.mark.parametrize(
  "flags, words",
  [
    (dict(task="sst3"), "sst3: no such task; did you mean sst2"),
    (dict(task="squad"), "--task=squad: augmented are cola, sst2"),
    (dict(samples=0), "--samples=0: must be at least 1"),
    (dict(threshold=1.5), "--threshold=1.5: must be from 0 to 1"),
    (dict(output="x.csv"), "ends in .tsv"),
    (dict(input="nowhere.tsv"), "nowhere.tsv: no such file"),
    (dict(input="bad.tsv"), "bad.tsv:3: label '7' is none of 0, 1"),
    (
      dict(input="tab.csv", task="own", columns="text=x,label=y"),
      r"tab.csv:2: label 'a\\tb' has a tab",
    ),
    (dict(vectors="bad.txt"), "bad.txt:2: no word with 3 finite numbers"),
    (dict(vectors="header.txt"), "header.txt:1: .* without a header"),
    (dict(vectors="nowhere.txt"), "nowhere.txt: no such file"),
    (dict(model="tuned"), "is a model for classification; words are pred"),
  ],
)
def test_bad_input_is_one_sentence(made, flags, words):
  (made / "bad.tsv").write_text("sentence\tlabel\na cat\t1\na dog\t7\n")
  (made / "tab.csv").write_text('x,y\na cat,"a\tb"\na dog,c\n')
  (made / "bad.txt").write_text("a 1 2 3\nb 1 2\n")
  (made / "header.txt").write_text("4000 300\na 1 2 3\n")
  files = ("input", "model", "vectors")
  flags = {k: made / v if k in files else v for k, v in flags.items()}
  with pytest.raises(ValueError, match=words) as raised:
    augment.run(command(made, **({"output": made / "none.tsv"} | flags)))
  assert "\n" not in str(raised.value)
  assert not list(made.glob("none.tsv*"))


def test_the_command_answers_without_a_traceback(made):
  done = subprocess.run(
    [sys.executable, "-m", "bert_jax", "augment", "--model=x", "--task=sst2"]
    + [f"--input={made / 'train.tsv'}", f"--output={made / 'train.tsv'}"],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and not done.stdout
  assert done.stderr.startswith("error: --output=")
  assert done.stderr.endswith("is the input; choose another.\n")
