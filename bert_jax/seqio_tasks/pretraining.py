"""Every seqio registration: prepared folders and plain text as seqio tasks.

  tasks.register_prepared("wiki", "data/wiki", length=128)
  tasks.register_text("mine", "text/*.txt", "vocab.txt")
  seqio.MixtureRegistry.add("both", [("wiki", 0.7), ("mine", 0.3)])

A row of such a task is what a run sees, by global number and seed. A dataset
that is iterated twice has other rows each time (`num_epochs=2` has the same two
epochs), and two tasks over one folder have other rows in a mixture.
`data.path=MODULE:NAME` trains from one that MODULE registers.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from bert_jax.corpus import reader, sources
from bert_jax.examples import loader, streams
from bert_jax.examples.batch_keys import Features
from bert_jax.examples.text_stream import Records, Text
from bert_jax.seqio_tasks.pretraining_seqio_source import RowSource
from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary
from bert_jax.text import cleaning, open_vocabulary

# Keys whose values are pieces of the vocabulary.
PIECES = ("input_ids", "mlm_ids", "lm_ids")


class RowTask(seqio.Task):
  """A task whose source counts epochs, so that each has its own examples.

  `seqio.Task` would repeat the rows of the first epoch, masks and all, and
  would keep small ones in memory.
  """

  def get_dataset(
    self,
    sequence_length: Mapping[str, int] | None = None,
    split: str = "train",
    use_cached: bool = False,
    shuffle: bool = True,
    shuffle_buffer_size: int | None = None,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    num_epochs: int | None = 1,
    trim_output_features: bool = True,
    try_in_mem_cache: bool = True,
  ) -> tf.data.Dataset:
    """See `seqio.Task.get_dataset` and `RowSource`.

    Raises:
      ValueError: `sequence_length` is not that of the rows; to cut them would
        leave masked positions beyond their end.
    """
    for key, length in (sequence_length or {}).items():
      shape = self.source.features.get(key, (None,))[0]
      if shape and length not in (None, *shape, shape, list(shape)):
        raise ValueError(
          f"sequence_length[{key!r}] is {length}, the rows of {self.name} have"
          f" {shape}; give the length when the task is registered."
        )
    ds = self.source.get_dataset(
      split, shuffle, seed, shard_info, num_epochs=num_epochs
    )
    return self._validate_preprocessing(ds).prefetch(tf.data.AUTOTUNE)


class PretrainFeatureConverter(seqio.FeatureConverter):
  """Passes the rows of a task on as they are, and checks that they are so.

  seqio's `EncoderFeatureConverter` puts loss only where the input equals the
  mask id: a fifth of BERT's targets would get none.

    converter = PretrainFeatureConverter("wiki")
    seqio.get_dataset("wiki", converter.lengths, converter, "train")
  """

  def __init__(self, name: str):
    """Args: `name` of a registered task or mixture of this module's tasks."""
    self._features: Features = components(name)[0][0].features
    self.TASK_FEATURES = self.MODEL_FEATURES = {
      key: self.FeatureSpec(dtype=tf.as_dtype(dtype), rank=len(shape))
      for key, (shape, dtype) in self._features.items()
    }
    self.lengths = {key: s[0] for key, (s, _) in self._features.items()}
    # The shapes are checked below, without an assertion for each row.
    super().__init__(pack=False, apply_length_check=False)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    for key, (shape, _) in self._features.items():
      found = ds.element_spec[key].shape
      if not found.is_compatible_with(shape):
        raise ValueError(f"rows with {key} of shape {found}, not {shape}.")
    return ds.map(
      lambda row: {
        key: tf.ensure_shape(row[key], shape)
        for key, (shape, _) in self._features.items()
      }
    )

  def get_model_feature_lengths(
    self, task_feature_lengths: Mapping[str, int]
  ) -> Mapping[str, int]:
    return task_feature_lengths


def _register(name: str, source: RowSource) -> seqio.Task:
  vocabulary = TextVocabulary(source.tokenizer)
  other = seqio.PassThroughVocabulary(size=0)
  return seqio.TaskRegistry.add(
    name,
    source=source,
    output_features={
      key: seqio.Feature(
        vocabulary if key in PIECES else other,
        add_eos=False,
        dtype=tf.as_dtype(dtype),
        rank=len(shape),
      )
      for key, (shape, dtype) in source.features.items()
    },
    task_cls=RowTask,
    shuffle_buffer_size=None,
  )


def register_prepared(
  name: str, path: str, builder: str = "bert_pairs", **options: Any
) -> seqio.Task:
  """Registers a prepared folder; it is opened when the task is used.

  Args:
    name: of the task.
    path: the folder.
    builder: a name in `BUILDERS`.
    **options: of the builder, for example `length=512`.

  Raises:
    ValueError: no such builder or option, or the name is taken.
  """

  def opener() -> reader.Prepared:
    return reader.open_prepared(path)

  place = os.path.realpath(path)
  return _register(name, RowSource(opener, builder, options, place))


def register_text(
  name: str,
  inputs: str | Sequence[str] | seqio.DataSource,
  vocab: str,
  builder: str = "bert_pairs",
  *,
  validation: str | Sequence[str] | seqio.DataSource | None = None,
  format: str = "auto",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  word_starts: str | None = None,
  heldout: float = 0.005,
  language: str = "en",
  group: int = 128,
  **options: Any,
) -> seqio.Task:
  """Registers text, which is tokenised on the way; see `text.Text`.

  Args:
    name: of the task.
    inputs: as in `sources.find_sources`, or a seqio source (its split `train`)
      of strings or of dicts with a string `text`.
    vocab: path of a vocabulary of any kind, see `vocabulary_files.load`.
    builder: a name in `BUILDERS`.
    validation: the held-out text, like `inputs` (a seqio source's split
      `validation`); None holds out a share of the documents of `inputs`.
    format: as in `sources.find_sources`. Of a seqio source every string is a
      document; with `bert` a sentence, and a blank one ends a document.
    lower_case: False for a cased vocabulary; None for what came with it, True
      if nothing does.
    keep_accents: None for what came with the vocabulary; if nothing did they
      are kept where capitals are.
    word_starts: the rule for a SentencePiece model; see `unigram.unigram`.
    heldout, language, group: see `Text`.
    **options: of the builder.

  Raises:
    ValueError: no such builder or option, or the name is taken.
  """

  def opener() -> Text:
    train, version = _records(inputs, "train", format)
    held = None
    if validation is not None:
      held, other = _records(validation, "validation", format)
      version = [version, other]
    choices: dict[str, Any] = cleaning.asked(lower_case, keep_accents)
    if word_starts is not None:
      choices["word_starts"] = word_starts
    tokenizer = open_vocabulary.load(vocab, **choices)
    return Text(
      name,
      train,
      held,
      tokenizer,
      heldout=heldout,
      language=language,
      group=group,
      version=version,
    )

  place = f"text {inputs!r}"
  return _register(name, RowSource(opener, builder, options, place))


def _records(inputs: Any, split: str, format: str) -> tuple[Records, Any]:
  """Returns what yields the raw documents, and their version."""
  if isinstance(inputs, seqio.DataSource):
    return functools.partial(_read, inputs, split, format), repr(inputs)
  found = sources.find_sources(inputs, format)
  version = [(source.kind, source.version) for source in found]
  return functools.partial(sources.read_records, found), version


def _read(
  source: seqio.DataSource, split: str, format: str
) -> Iterator[sources.Record]:
  """Yields the documents of a seqio source, shard by shard, in order."""
  # All shards at once would come interleaved: sentences of several files.
  count = len(source.list_shards(split))
  for shard in (seqio.ShardInfo(i, count) for i in range(count)):
    ds = source.get_dataset(split=split, shuffle=False, shard_info=shard)
    texts = map(_text, ds.as_numpy_iterator())
    if format != "bert":
      yield from (sources.Record(t, "paragraphs", 0.0) for t in texts)
      continue
    for blank, lines in itertools.groupby(texts, lambda t: not t.strip()):
      if not blank:
        yield sources.Record("\n".join(lines), "lines", 0.0)


def _text(element: Any) -> str:
  text = element.get("text") if isinstance(element, dict) else element
  if not isinstance(text, bytes):
    raise ValueError(
      "a seqio source of text must yield strings, or dicts with a string"
      f" `text`; this one yields {element!r:.80}."
    )
  return text.decode("utf-8", "replace")


def names() -> set[str]:
  """Returns the names of all registered tasks and mixtures."""
  return {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}


def components(name: str) -> tuple[list[RowSource], list[float]]:
  """Returns the sources of a task or mixture, and their rates.

  Raises:
    ValueError: a task that is not one of this module.
  """
  registered = seqio.get_mixture_or_task(name)
  mixed = isinstance(registered, seqio.Mixture)
  tasks = registered.tasks if mixed else [registered]
  for task in tasks:
    if not isinstance(task.source, RowSource):
      raise ValueError(
        f"the seqio task {task.name} does not make rows for pre-training;"
        " register its source with"
        " bert_jax.seqio_tasks.pretraining.register_text."
      )
  one = len(tasks) == 1
  rates = [1.0] if one else [registered.get_rate(task) for task in tasks]
  return [task.source for task in tasks], rates


def open_data(
  name: str,
  builder: str,
  split: str,
  seed: int,
  cased: bool | None,
  **options: Any,
) -> loader.Data:
  """Opens a task or mixture as `loader.open_data` opens a folder.

  No TensorFlow is in the loop. Builder and options are the arguments', those of
  the registration are for seqio's own interface.

  Raises:
    ValueError: with one sentence that says what to change.
  """
  # The accelerator is JAX's; TensorFlow would take all of its memory.
  with contextlib.suppress(RuntimeError):
    tf.config.set_visible_devices([], "GPU")
  parts, rates = components(name)
  opened = tuple(part.opened for part in parts)
  for other in opened[1:]:
    if other.vocab != opened[0].vocab:
      raise ValueError(
        f"{name}: {opened[0].path} and {other.path} have different"
        " vocabularies; register both with one vocab.txt."
      )
  loader.check_cased(opened, cased)
  special, size = opened[0].special, opened[0].vocab_size
  made = loader.make_builder(builder, special, size, options)
  rows = [p.stream(made, split, seed, str(i)) for i, p in enumerate(parts)]
  source = rows[0] if len(rows) == 1 else streams.Mixture(rows, rates, seed)
  return loader.Data(source, size, special, opened)


def open_heldout(
  name: str,
  builder: str,
  split: str,
  limit: int | None,
  cased: bool | None,
  **options: Any,
) -> streams.Heldout:
  """Opens the held-out documents as `loader.open_heldout` does a folder's."""
  parts, _ = components(name)
  opened = parts[0].opened
  loader.check_cased([part.opened for part in parts], cased)
  made = loader.make_builder(
    builder, opened.special, opened.vocab_size, options
  )
  return streams.Heldout([part.corpus(split) for part in parts], made, limit)


loader.OPENERS.append(loader.Opener(names, open_data, open_heldout))
