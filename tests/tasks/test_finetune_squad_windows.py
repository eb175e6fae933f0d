"""Tests windows of contexts, and labels and files of questions."""

import os

import finetune_files as files
import numpy as np
import pytest

from bert_jax.tasks import encoded_rows, questions, task_inputs
from bert_jax.tasks.windows import best_window_of_tokens, window_bounds

DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")


@pytest.fixture(scope="module")
def bert_vocabulary(tmp_path_factory):
  return files.load_vocabulary(
    files.write_wordpiece(tmp_path_factory.mktemp("v"))
  )


@pytest.fixture(scope="module")
def roberta_vocabulary(tmp_path_factory):
  return files.load_vocabulary(
    files.write_roberta(tmp_path_factory.mktemp("v"))
  )


def make_question(context, text=None, start=0, question_text="the cat"):
  answers = [] if text is None else [dict(text=text, answer_start=start)]
  return dict(
    id="q", title="", question=question_text, context=context, answers=answers
  )


def test_windows_of_published_sizes():
  # The arguments are the number of tokens in the context, the largest number in
  # a window, and the stride. A row of 128 tokens with a question of 11 tokens
  # and three special tokens has a window of 114 tokens.
  assert window_bounds(157, capacity=114, stride=128) == [(0, 114), (114, 157)]
  assert window_bounds(400, capacity=370, stride=128) == [(0, 370), (128, 400)]
  assert window_bounds(114, capacity=114, stride=128) == [(0, 114)]
  assert window_bounds(0, capacity=114, stride=128) == [(0, 0)]
  with pytest.raises(ValueError, match="windows of 0 tokens"):
    window_bounds(5, capacity=0, stride=1)


def test_windows_leave_no_token_out():
  rng = np.random.default_rng(0)
  for _ in range(500):
    num_tokens, capacity, stride = (
      int(number) for number in rng.integers(1, 200, 3)
    )
    spans = window_bounds(num_tokens, capacity=capacity, stride=stride)
    covered_tokens = set().union(*(range(begin, end) for begin, end in spans))
    assert covered_tokens == set(range(num_tokens))
    assert max(end - begin for begin, end in spans) <= capacity
    # Each window begins and ends later than the window before it.
    assert (np.diff(spans, axis=0) > 0).all()


def test_the_best_window_has_most_context():
  spans = window_bounds(20, capacity=10, stride=4)
  best_window = best_window_of_tokens(20, spans)
  for token in range(20):
    scores = [
      min(token - begin, end - 1 - token) + 0.01 * (end - begin)
      if begin <= token < end
      else -1
      for begin, end in spans
    ]
    assert scores[best_window[token]] == max(scores)
  # For a very long text, an array [windows, tokens] would take too much memory.
  best_window = best_window_of_tokens(
    10**6, window_bounds(10**6, capacity=100, stride=50)
  )
  assert (np.diff(best_window) >= 0).all() and best_window[-1] == 19_998


def label_text(example, rows, i):
  """Returns the part of the context that the labels of row i mark."""
  start, end = rows.labels[i]
  offsets = rows.offsets[rows.starts[i] : rows.starts[i + 1]]
  return example["context"][offsets[start][0] : offsets[end][1]]


@pytest.mark.parametrize(
  "context, answer",
  [
    ("  The Pure Land school", "Pure Land"),
    ("\tthe cat\n sat  on", "sat"),
    ("\n\n the  mat", "the  mat"),
    ("é\u00e9 the good\u00a0film", "good"),
    ("A\u200dB cat, dog. (1990)", "1990"),
    ("cat", "cat"),
  ],
)
def test_the_label_marks_the_raw_text_of_the_answer(
  bert_vocabulary, roberta_vocabulary, context, answer
):
  start = context.index(answer)
  for vocabulary in (bert_vocabulary, roberta_vocabulary):
    example = make_question(context, text=answer, start=start)
    rows = questions.encode_questions([example], vocabulary, length=64).rows
    assert len(rows.example_indices) == 1
    assert label_text(example, rows, 0) == answer
    assert rows.labels[0, 0] > 0


def test_a_row_is_the_question_and_the_context(
  bert_vocabulary, roberta_vocabulary
):
  example = make_question("a dog", text="dog", start=2)
  rows = questions.encode_questions([example], bert_vocabulary, length=32).rows
  pieces = [bert_vocabulary.pieces[i] for i in rows.ids]
  assert pieces == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
  assert rows.second_begins.tolist() == [4] and rows.labels.tolist() == [[5, 5]]
  no_offset = [-1, -1]
  assert rows.offsets.tolist() == [no_offset] * 4 + [[0, 1], [2, 5], no_offset]
  rows = questions.encode_questions(
    [example], roberta_vocabulary, length=32
  ).rows
  # RoBERTa has no segments, but `second_begins` is where the context begins.
  assert rows.second_begins.tolist() == [
    np.flatnonzero(rows.offsets[:, 0] >= 0)[0]
  ]
  separators = [
    token_id
    for token_id in rows.ids.tolist()
    if token_id == roberta_vocabulary.special.sep
  ]
  assert len(separators) == 3


def test_only_windows_with_the_whole_answer_are_labelled(bert_vocabulary):
  words = files.WORDS * 3
  context = " ".join(words)
  begins = np.cumsum([0] + [len(word) + 1 for word in words[:-1]])
  # A row of 15 tokens has three special tokens, two tokens of the question, and
  # ten tokens of the context.
  for first_word in range(len(words)):
    for num_words in (1, 3, 10, 11):
      last_word = first_word + num_words - 1
      if last_word >= len(words):
        continue
      start, end = begins[first_word], begins[last_word] + len(words[last_word])
      example = make_question(
        context, text=context[start:end], start=int(start)
      )
      rows = questions.encode_questions(
        [example], bert_vocabulary, length=15, stride=4
      ).rows
      num_windows_with_answer = 0
      for i, (window_begin, window_end) in enumerate(
        window_bounds(len(words), capacity=10, stride=4)
      ):
        is_inside = window_begin <= first_word and last_word < window_end
        assert (rows.labels[i, 0] > 0) == is_inside
        if is_inside:
          num_windows_with_answer += 1
          assert label_text(example, rows, i) == context[start:end]
          assert rows.labels[i].tolist() == [
            first_word - window_begin + 4,
            last_word - window_begin + 4,
          ]
        else:
          assert rows.labels[i].tolist() == [0, 0]
      # Neighbouring windows share 6 tokens, so one window has the whole of an
      # answer of up to 6 words.
      assert num_windows_with_answer or num_words > 6


def test_labels_of_unanswerable_unlabelled_and_misplaced_questions(
  bert_vocabulary,
):
  correct_question = make_question("the cat sat", text="sat", start=8)
  misplaced_question = make_question("  the cat sat", text="sat", start=8) | {
    "id": "moved"
  }
  unlabelled_question = correct_question | {"answers": None, "id": "hidden"}
  encoded = questions.encode_questions(
    [
      make_question("the cat"),
      correct_question,
      misplaced_question,
      unlabelled_question,
    ],
    bert_vocabulary,
    length=32,
  )
  labels = encoded.rows.labels.tolist()
  assert labels == [[0, 0], [6, 6], [-1, -1], [-1, -1]]
  note = "answers that are not at their offset, not trained on"
  assert encoded.notes == {note: ["moved"]}
  # A space has no piece, so no piece holds the answer " ".
  encoded = questions.encode_questions(
    [make_question("the  cat", text=" ", start=4)], bert_vocabulary, length=32
  )
  assert encoded.notes == {"answers that no piece holds, not trained on": ["q"]}


def test_questions_and_contexts_of_any_size_fit(bert_vocabulary):
  long_text = " ".join(["dog"] * 100)
  encoded = questions.encode_questions(
    [make_question(long_text, question_text=long_text)],
    bert_vocabulary,
    length=32,
  )
  assert encoded_rows.lengths(encoded.rows).max() <= 32
  assert encoded.notes == {"questions cut": ["q"]}
  first_characters = encoded.rows.offsets[encoded.rows.offsets[:, 0] >= 0, 0]
  assert set(first_characters) == {4 * i for i in range(100)}
  encoded = questions.encode_questions(
    [make_question(" \n ", question_text="")], bert_vocabulary, length=32
  )
  assert [bert_vocabulary.pieces[i] for i in encoded.rows.ids] == [
    "[CLS]",
    "[SEP]",
    "[SEP]",
  ]


def test_files_of_both_squad_versions_are_read(tmp_path):
  context = "the cat sat on the mat"
  answered_question, question_without_answer = (
    ("1", "who", [("cat", 4)]),
    ("2", "why", []),
  )
  path = files.write_text(
    tmp_path / "a.json",
    files.squad_json([(context, [answered_question, question_without_answer])]),
  )

  def read_examples(name, split):
    task = task_inputs.find_task(name)
    return task_inputs.read(task, [task_inputs.Input(split, path)]).splits[
      split
    ]

  examples = read_examples("squad2", "train")
  assert [example["answers"] for example in examples] == [
    [{"text": "cat", "answer_start": 4}],
    [],
  ]
  assert read_examples("squad", "test")[1]["answers"] is None
  with pytest.raises(ValueError, match=r"a\.json: id 2 has no answers"):
    read_examples("squad", "train")
  files.write_text(
    tmp_path / "a.json",
    files.squad_json([(context, [answered_question, answered_question])]),
  )
  with pytest.raises(ValueError, match="two questions have the id '1'"):
    read_examples("squad", "train")
  for text, message in (
    ('{"data": [{}]}', "article 1 does not have SQuAD's form"),
    ('{"data":\n [}', r"a\.json:2 is not JSON"),
    ("[]", "is not a file of SQuAD"),
    (" ", "the file is empty"),
  ):
    files.write_text(tmp_path / "a.json", text)
    with pytest.raises(ValueError, match=message):
      read_examples("squad", "train")


@pytest.mark.skipif(not DATA_FOLDER, reason="BERT_JAX_TEST_DATA is not set")
def test_answers_of_real_questions_are_found():
  vocabulary = files.load_vocabulary(
    f"{DATA_FOLDER}/vocab/bert-base-uncased-vocab.txt"
  )
  task = task_inputs.find_task("squad")
  path = f"{DATA_FOLDER}/eval/squad/xquad.en.json"
  examples = task_inputs.read(task, [task_inputs.Input("validation", path)])
  examples = examples.splits["validation"]
  encoded = questions.encode_questions(examples, vocabulary, length=384)
  rows = encoded.rows
  assert len(examples) == 1190 and not encoded.notes
  answered_examples = set()
  for i, example_index in enumerate(rows.example_indices):
    if rows.labels[i, 0] > 0:
      answered_examples.add(int(example_index))
      answer_text = examples[example_index]["answers"][0]["text"]
      assert answer_text in label_text(examples[example_index], rows, i)
  assert answered_examples == set(range(1190))
