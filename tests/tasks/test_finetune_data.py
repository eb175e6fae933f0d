"""Tests rows and batches of tasks: layouts, tags, order and padding."""

import json
import pathlib
import subprocess
import sys

import finetune_files as files
import numpy as np
import pytest

from bert_jax.tasks import (
  batches,
  encode,
  encoded_rows,
  layouts,
  prepare_task,
  tagging,
  task_inputs,
)
from bert_jax.tasks.encoded_rows import Rows, Task

CLASSIFICATION_TASK = Task(
  "two", "classification", ("no", "yes"), num_choices=1, metrics=("accuracy",)
)
TAGGING_TASK = Task(
  "t", "tagging", ("O", "B-X", "I-X"), num_choices=1, metrics=("tagging_f1",)
)


@pytest.fixture(scope="module")
def vocab_folder(tmp_path_factory):
  return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def bert_vocabulary(vocab_folder):
  return files.load_vocabulary(files.write_wordpiece(vocab_folder))


def pieces_of(vocabulary, row):
  return [vocabulary.pieces[i] for i in row]


def row_ids(encoded, i):
  rows = encoded.rows
  return rows.ids[rows.starts[i] : rows.starts[i + 1]].tolist()


def text_example(*texts, label="no"):
  return dict(id="0", texts=list(texts), label=label)


def test_rows_of_bert_have_its_special_tokens(bert_vocabulary):
  encoded = encode.encode_texts(
    CLASSIFICATION_TASK,
    [text_example("the cat"), text_example("the cat", "a dog")],
    bert_vocabulary,
    length=16,
  )
  assert pieces_of(bert_vocabulary, row_ids(encoded, 0)) == [
    "[CLS]",
    "the",
    "cat",
    "[SEP]",
  ]
  assert pieces_of(bert_vocabulary, row_ids(encoded, 1)) == (
    ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
  )
  assert encoded.rows.second_begins.tolist() == [4, 4]
  assert encoded.rows.labels.dtype == np.int32


def test_pairs_of_roberta_have_two_separators_and_no_segments(vocab_folder):
  vocabulary = files.load_vocabulary(files.write_roberta(vocab_folder))
  encoded = encode.encode_texts(
    CLASSIFICATION_TASK,
    [text_example("ab", "c"), text_example("ab")],
    vocabulary,
    length=16,
  )
  pair = ["<s>", "a", "b", "</s>", "</s>", "c", "</s>"]
  assert pieces_of(vocabulary, row_ids(encoded, 0)) == pair
  assert encoded.rows.second_begins.tolist() == [7, 4]
  batch = batches.Batches(
    CLASSIFICATION_TASK, encoded.rows, pad=1, batch_size=2, shuffle=False
  ).batch(0)
  assert not batch["segment_ids"].any()
  assert batch["input_ids"][1, 4:].tolist() == [1] * 12


def test_gpt1_has_three_new_tokens(vocab_folder):
  vocabulary = files.load_vocabulary(files.write_gpt1(vocab_folder))
  size = vocabulary.vocab_size
  encoded = encode.encode_texts(
    CLASSIFICATION_TASK, [text_example("ab", "c")], vocabulary, length=16
  )
  row = row_ids(encoded, 0)
  assert [row[0], row[3], row[-1]] == [size, size + 1, size + 2]
  assert len(row) == 6
  assert layouts.layout_of(vocabulary).vocab_size == size + 3


@pytest.mark.parametrize(
  "write_vocabulary",
  [files.write_wordpiece, files.write_roberta, files.write_gpt1],
)
def test_a_padded_batch_has_the_rows_of_a_task(tmp_path, write_vocabulary):
  vocabulary = files.load_vocabulary(write_vocabulary(tmp_path))
  texts = [("the cat", "a dog"), "the cat", "the cat sat " * 20, ""]
  batch = layouts.padded_batch(vocabulary, texts, length=16)
  examples = [
    text_example(*([text] if isinstance(text, str) else text)) for text in texts
  ]
  rows = encode.encode_texts(
    CLASSIFICATION_TASK, examples, vocabulary, length=16
  ).rows
  pad = layouts.layout_of(vocabulary).pad
  expected = batches.Batches(
    CLASSIFICATION_TASK,
    rows,
    pad=pad,
    batch_size=4,
    shuffle=False,
    buckets=(16,),
  ).batch(0)
  assert {*batch} == {"input_ids", "segment_ids", "sequence_ids"}
  for name, array in batch.items():
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, expected[name])
  with pytest.raises(ValueError, match="leaves no space for text"):
    layouts.padded_batch(vocabulary, texts, length=4)


def test_a_padded_batch_marks_second_texts_and_padding(bert_vocabulary):
  batch = layouts.padded_batch(
    bert_vocabulary, [("the cat", "a dog")], length=9
  )
  (row,) = batch["input_ids"]
  assert pieces_of(bert_vocabulary, row) == (
    ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]", "[PAD]", "[PAD]"]
  )
  assert batch["segment_ids"].tolist() == [[0] * 4 + [1] * 3 + [0] * 2]
  assert batch["sequence_ids"].tolist() == [[1] * 7 + [0] * 2]


def test_pairs_are_cut_as_the_published_code_cuts_them():
  def cut_one_by_one(first, second, capacity):
    while first + second > capacity:
      if first > second:
        first -= 1
      else:
        second -= 1
    return first, second

  for first in range(12):
    for second in range(12):
      for capacity in range(2, 20):
        expected = cut_one_by_one(first, second, capacity)
        assert layouts.cut_lengths(first, second, capacity) == expected


def test_choices_are_rows_of_one_example(bert_vocabulary):
  task = Task("c", "choice", ("0", "1"), num_choices=2, metrics=("accuracy",))
  texts = [["the cat", "sat"], ["the cat", "ran on the mat"]]
  encoded = encode.encode_texts(
    task, [dict(id="0", texts=texts, label="1")] * 3, bert_vocabulary, length=16
  )
  assert encoded.rows.example_indices.tolist() == [0, 0, 1, 1, 2, 2]
  assert encoded.rows.labels.tolist() == [1] * 6
  batch = batches.Batches(
    task, encoded.rows, pad=0, batch_size=2, shuffle=False
  ).batch(1)
  assert batch["input_ids"].shape == (2, 2, 16)
  assert batch["row"].tolist() == [4, -1]
  assert batch["labels"].tolist() == [1, 0]
  assert batch["label_weights"].tolist() == [1.0, 0.0]
  assert not batch["sequence_ids"][1].any()
  assert batch["input_ids"][0, 1, :5].tolist() == row_ids(encoded, 1)[:5]


def tagged_example(words, tags, **fields):
  return dict(id="0", words=words, tags=tags, document=None) | fields


def test_only_the_first_piece_of_a_word_has_the_tag(bert_vocabulary):
  # Each word has two pieces. The second piece must not get the tag B-X.
  encoded = tagging.encode_sentences(
    TAGGING_TASK,
    [tagged_example(["xy", "zx"], ["B-X", "I-X"])],
    bert_vocabulary,
    length=16,
  )
  assert encoded.rows.labels.tolist() == [-1, 1, -1, 2, -1, -1]
  assert encoded.rows.offsets[:, 0].tolist() == [-1, 0, -1, 1, -1, -1]
  batch = batches.Batches(
    TAGGING_TASK, encoded.rows, pad=0, batch_size=1
  ).batch(0)
  assert batch["label_weights"][0, :6].tolist() == [0, 1, 0, 1, 0, 0]
  assert batch["labels"][0, :6].tolist() == [0, 1, 0, 2, 0, 0]


def test_words_without_a_piece_are_in_the_notes_and_get_no_label(
  bert_vocabulary,
):
  words = ["\u200d", "cat", "\ufe0f", "xyz"]
  encoded = tagging.encode_sentences(
    TAGGING_TASK,
    [tagged_example(words, ["B-X", "I-X", "O", "B-X"])],
    bert_vocabulary,
    length=16,
  )
  assert encoded.rows.offsets[:, 0].max() == 3
  has_word = encoded.rows.offsets[:, 0] >= 0
  assert encoded.rows.offsets[has_word, 0].tolist() == [1, 3]
  assert encoded.rows.labels[has_word].tolist() == [2, 1]
  assert encoded.notes == {"words without a piece": ["'\\u200d'", "'\\ufe0f'"]}


@pytest.mark.parametrize("length", [8, 11, 16, 30])
def test_every_word_has_one_first_piece_in_all_windows(bert_vocabulary, length):
  rng = np.random.default_rng(length)
  examples = []
  for num_words in (1, 3, 9, 40, 83):
    words = ["x" * int(size) for size in rng.integers(1, 9, num_words)]
    examples.append(
      tagged_example(
        words, [TAGGING_TASK.labels[len(word) % 3] for word in words]
      )
    )
  # Add a word that is longer than a window.
  examples.append(tagged_example(["cat", "x" * 60, "dog"], ["O", "B-X", "I-X"]))
  rows = tagging.encode_sentences(
    TAGGING_TASK, examples, bert_vocabulary, length=length
  ).rows
  assert encoded_rows.lengths(rows).max() <= length
  example_of_token = np.repeat(rows.example_indices, encoded_rows.lengths(rows))
  for example_index, example in enumerate(examples):
    is_first_piece = (example_of_token == example_index) & (
      rows.offsets[:, 0] >= 0
    )
    words = rows.offsets[is_first_piece, 0].tolist()
    assert words == list(range(len(example["words"])))
    tags = [TAGGING_TASK.labels[i] for i in rows.labels[is_first_piece]]
    assert tags == example["tags"]


def test_a_sentence_has_the_text_around_it_as_context(bert_vocabulary):
  sentences = [["a"] * 3, ["b"] * 4, ["cat"] * 5, ["dog"] * 2]
  examples = [
    tagged_example(words, ["O"] * len(words), document=1)
    for words in sentences[:3]
  ]
  examples.append(tagged_example(sentences[3], ["O"] * 2, document=2))
  encoded = tagging.encode_sentences(
    TAGGING_TASK, examples, bert_vocabulary, length=10, with_context=True
  )
  # Row 1 has eight pieces: four of its sentence, and two on each side.
  assert (
    pieces_of(bert_vocabulary, row_ids(encoded, 1))[1:-1]
    == ["a"] * 2 + ["b"] * 4 + ["cat"] * 2
  )
  assert pieces_of(bert_vocabulary, row_ids(encoded, 0))[1:-1] == ["a"] * 3 + [
    "b"
  ] * 4 + ["cat"]
  assert pieces_of(bert_vocabulary, row_ids(encoded, 3))[1:-1] == ["dog"] * 2
  for row_number, words in enumerate(sentences):
    begin, end = encoded.rows.starts[row_number : row_number + 2]
    word_indices = encoded.rows.offsets[begin:end, 0]
    assert word_indices[word_indices >= 0].tolist() == list(range(len(words)))
    labelled_words = encoded.rows.ids[begin:end][word_indices >= 0]
    assert {bert_vocabulary.pieces[i] for i in labelled_words} == {words[0]}


def random_rows(count, seed=0, max_length=60):
  rng = np.random.default_rng(seed)
  sizes = rng.integers(1, max_length, count)
  return Rows(
    ids=rng.integers(5, 99, sizes.sum()).astype(np.int32),
    starts=np.cumsum([0, *sizes]),
    second_begins=sizes.astype(np.int32),
    example_indices=np.arange(count),
    labels=rng.integers(-1, 2, count).astype(np.int32),
    offsets=np.zeros((0, 2), np.int32),
  )


@pytest.mark.parametrize("group_by_length", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 16])
def test_an_epoch_has_every_row_once(batch_size, group_by_length):
  rows = random_rows(10)
  epoch_batches = batches.Batches(
    CLASSIFICATION_TASK,
    rows,
    pad=0,
    batch_size=batch_size,
    group_by_length=group_by_length,
  )
  assert epoch_batches.steps_per_epoch == -(-10 // batch_size)
  row_orders = []
  for epoch in range(3):
    row_order = []
    for step in range(epoch_batches.steps_per_epoch):
      batch = epoch_batches.batch(epoch * epoch_batches.steps_per_epoch + step)
      assert len(batch["row"]) == batch_size
      for entry, row_number in enumerate(batch["row"]):
        length = batch["sequence_ids"][entry].sum()
        if row_number < 0:
          assert length == 0 and batch["label_weights"][entry] == 0
          continue
        tokens = rows.ids[rows.starts[row_number] : rows.starts[row_number + 1]]
        assert batch["input_ids"][entry, :length].tolist() == tokens.tolist()
        assert batch["label_weights"][entry] == (rows.labels[row_number] >= 0)
        row_order.append(int(row_number))
    assert sorted(row_order) == list(range(10))
    row_orders.append(row_order)
  # The epochs have different orders, except if all rows fit in one batch that
  # `group_by_length` sorts by length.
  assert row_orders[0] != row_orders[1] != row_orders[2] or (
    group_by_length and batch_size >= 10
  )


def test_a_batch_depends_only_on_its_number():
  rows = random_rows(50)
  read_batches = batches.Batches(
    CLASSIFICATION_TASK, rows, pad=0, batch_size=4, seed=3, group_by_length=True
  )
  unread_batches = batches.Batches(
    CLASSIFICATION_TASK, rows, pad=0, batch_size=4, seed=3, group_by_length=True
  )
  batches_of_other_seed = batches.Batches(
    CLASSIFICATION_TASK, rows, pad=0, batch_size=4, seed=4, group_by_length=True
  )
  batches_in_order = [read_batches.batch(i) for i in range(40)]
  for name, array in unread_batches.batch(39).items():
    np.testing.assert_array_equal(array, batches_in_order[39][name])
  is_equal = [
    (batches_of_other_seed.batch(i)["row"] == batches_in_order[i]["row"]).all()
    for i in range(40)
  ]
  assert not all(is_equal)


def test_hosts_have_shares_of_one_batch():
  rows = random_rows(21)
  batches_of_single_host = batches.Batches(
    CLASSIFICATION_TASK, rows, pad=0, batch_size=8
  )
  batches_of_hosts = [
    batches.Batches(
      CLASSIFICATION_TASK,
      rows,
      pad=0,
      batch_size=8,
      host_index=host,
      host_count=4,
    )
    for host in range(4)
  ]
  for step in range(batches_of_single_host.steps_per_epoch):
    expected = batches_of_single_host.batch(step)
    shares = [host.batch(step) for host in batches_of_hosts]
    for name in expected:
      joined_shares = np.concatenate([share[name] for share in shares])
      np.testing.assert_array_equal(joined_shares, expected[name])


def test_batches_have_lengths_of_buckets_and_grouping_pads_less():
  rows = random_rows(3000, max_length=200)
  ungrouped_batches = batches.Batches(
    CLASSIFICATION_TASK, rows, pad=0, batch_size=8, buckets=(32, 64, 128)
  )
  grouped_batches = batches.Batches(
    CLASSIFICATION_TASK,
    rows,
    pad=0,
    batch_size=8,
    buckets=(32, 64, 128),
    group_by_length=True,
  )
  assert ungrouped_batches.buckets == (32, 64, 128, 199)
  padding_shares = []
  for split_batches in (ungrouped_batches, grouped_batches):
    all_batches = [
      split_batches.batch(i) for i in range(split_batches.steps_per_epoch)
    ]
    num_positions = sum(batch["input_ids"].size for batch in all_batches)
    num_tokens = sum(int(batch["sequence_ids"].sum()) for batch in all_batches)
    assert num_tokens == len(rows.ids)
    assert split_batches.padding() == pytest.approx(
      1 - num_tokens / num_positions
    )
    lengths = {batch["input_ids"].shape[1] for batch in all_batches}
    assert lengths <= set(split_batches.buckets)
    padding_shares.append(split_batches.padding())
  assert padding_shares[1] < 0.6 * padding_shares[0]


def test_unshuffled_batches_keep_the_order_of_rows():
  split_batches = batches.Batches(
    CLASSIFICATION_TASK, random_rows(7), pad=0, batch_size=3, shuffle=False
  )
  row_numbers = [split_batches.batch(i)["row"].tolist() for i in range(6)]
  assert (
    row_numbers[:3] == [[0, 1, 2], [3, 4, 5], [6, -1, -1]] == row_numbers[3:]
  )


def test_labels_of_a_regression_are_float32(bert_vocabulary):
  task = Task("r", "regression", (), num_choices=1, metrics=("pearson",))
  labels = [0.0, 2.5, 3.8, None]
  examples = [text_example("the cat", label=label) for label in labels]
  encoded = encode.encode_texts(task, examples, bert_vocabulary, length=16)
  batch = batches.Batches(
    task, encoded.rows, pad=0, batch_size=5, shuffle=False
  ).batch(0)
  assert batch["labels"].dtype == np.float32 and batch["labels"].shape == (5,)
  np.testing.assert_allclose(batch["labels"], [0, 2.5, 3.8, 0, 0], atol=1e-6)
  assert batch["label_weights"].tolist() == [1, 1, 1, 0, 0]


def prepare_folder(folder, name, inputs, **options):
  task = task_inputs.find_task(name)
  parsed_inputs = task_inputs.parse_inputs(task, inputs)
  output = str(folder / options.pop("output", name))
  vocab = options.pop("vocab", str(folder / "vocab.txt"))
  return output, prepare_task.prepare(
    task, parsed_inputs, vocab, output, **options
  )


def test_a_folder_holds_the_encoded_rows_and_is_made_once(
  tmp_path, bert_vocabulary
):
  vocab_path = files.write_wordpiece(tmp_path)
  text = "sentence\tlabel\nthe good cat \t1\nbad mat\t0\n"
  train_path = files.write_text(tmp_path / "train.tsv", text)
  output, meta = prepare_folder(
    tmp_path, "sst2", [f"train={train_path}"], length=12
  )
  task, rows, examples = encoded_rows.load(output, "train")
  assert task.labels == ("0", "1") and meta["pad"] == 0
  expected = encode.encode_texts(
    task, examples, bert_vocabulary, length=12
  ).rows
  for name, array in expected._asdict().items():
    np.testing.assert_array_equal(getattr(rows, name), array)
  assert examples[0] == {"id": "0", "texts": ["the good cat "], "label": "1"}
  assert rows.labels.tolist() == [1, 0]
  # The same command writes nothing. A different length, tokenizer or input is
  # an error.
  assert (
    prepare_folder(tmp_path, "sst2", [f"train={train_path}"], length=12)[1]
    == meta
  )
  with pytest.raises(ValueError, match="made with another length"):
    prepare_folder(tmp_path, "sst2", [f"train={train_path}"], length=13)
  pieces = [*files.PIECES[:-1], "Cat"]
  files.write_text(tmp_path / "vocab.txt", "\n".join(pieces) + "\n")
  with pytest.raises(ValueError, match="made with another tokenizer"):
    prepare_folder(
      tmp_path, "sst2", [f"train={train_path}"], length=12, vocab=vocab_path
    )
  files.write_text(tmp_path / "train.tsv", text + "dog\t0\n")
  files.write_wordpiece(tmp_path)
  with pytest.raises(ValueError, match="made with another input"):
    prepare_folder(tmp_path, "sst2", [f"train={train_path}"], length=12)
  with pathlib.Path(output, "train.npz").open("r+b") as file:
    # Overwrite three bytes of the file.
    file.seek(300)
    file.write(b"\xff\xff\xff")
  with pytest.raises(ValueError, match="damaged: train.npz is not the file"):
    encoded_rows.load(output, "train")


def test_prepare_task_writes_the_folder_of_a_custom_task(tmp_path):
  files.write_wordpiece(tmp_path)
  lines = [{"message": "the cat", "verdict": "spam"}] * 2
  lines += [{"message": "a dog", "verdict": "not spam"}]
  files.write_jsonl(tmp_path / "train.jsonl", lines)
  command = [sys.executable, "-m", "bert_jax", "prepare-task", "--task", "spam"]
  command += ["--columns=text=message,label=verdict", "--length=16"]
  command += [f"--vocab={tmp_path}/vocab.txt", f"--output={tmp_path}/out"]
  process = subprocess.run(
    [*command, f"--input=train={tmp_path}/train.jsonl"],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  assert "train: 3 examples, 3 rows of 4.0 tokens" in process.stdout
  meta = json.loads((tmp_path / "out" / "meta.json").read_text())
  assert meta["task"]["labels"] == ["not spam", "spam"]
  process = subprocess.run(
    [*command, f"--input=train={tmp_path}/no.jsonl"],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1 and "Traceback" not in process.stderr
