"""Tests features of texts, files of features, and a tagger on features."""

import functools
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_models

from bert_jax.cli.main import execute
from bert_jax.text import words as word_vocabulary
from bert_jax.use import bilstm_tagger, feature_files, row_batches, text_inputs
from bert_jax.use import features as features_lib
from bert_jax.use.features import Spec
from bert_jax.weights.load import open_model

TEXT = "the cats sat. unaffable"
# The compared float32 numbers are about 1. Two programs may add numbers in
# different orders.
TOLERANCE = 1e-5


pytestmark = pytest.mark.usefixtures("fast_compilation")


def open_tiny_model(path, family, **options):
  return open_model(tiny_models.write_model(path / family, family, **options))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  return open_tiny_model(tmp_path_factory.mktemp("bert"), "bert")


def extract(model, texts, **options):
  tokens = options.pop("tokens", 8192)
  return list(features_lib.extract(model, texts, Spec(**options), tokens))


@functools.partial(jax.jit, static_argnums=0)
def encode_layers(encoder, params, ids):
  """Calls the encoder on one row; returns [tokens, layers, width]."""
  if ids.ndim == 2:  # ELMo reads the characters of words, [words, 50].
    return encoder.apply({"params": params}, ids[None])[0].swapaxes(0, 1)
  _, collected = encoder.apply({"params": params}, ids[None], collect=True)
  all_layers = [collected["embeddings"], *collected["hidden"]]
  return jax.numpy.stack([layer[0] for layer in all_layers], 1)


def expected_layers(model, token_ids):
  token_ids = np.asarray(token_ids, np.int32)
  return np.asarray(
    encode_layers(model.module.encoder, model.params["encoder"], token_ids)
  )


@pytest.mark.parametrize("family", ["roberta", "gpt", "elmo"])
def test_the_extracted_layers_equal_those_of_the_encoder(family, tmp_path):
  model = open_tiny_model(tmp_path, family)
  texts = [TEXT, "", "cat"]
  encoded = text_inputs.encode(
    model, [text_inputs.text_of_string(id=0, text=text) for text in texts]
  )
  expected = expected_layers(model, encoded[0].ids)
  num_layers = features_lib.num_layers_with_embeddings(model)
  assert expected.shape[1] == num_layers
  features = extract(model, texts, layers=range(num_layers), combine="stack")
  lengths = [len(tokens.ids) for tokens in encoded]
  assert [len(text_features.vectors) for text_features in features] == lengths
  np.testing.assert_allclose(features[0].vectors, expected, atol=TOLERANCE)
  unit = "mean" if family == "elmo" else "cls"
  (text_features,) = extract(model, [TEXT], layers=(0, -1), unit=unit)
  pooled_by_family = {"gpt": expected[-1], "elmo": expected.mean(0)}
  pooled_layers = pooled_by_family.get(family, expected[0])
  np.testing.assert_allclose(
    text_features.vectors,
    np.concatenate(pooled_layers[[0, -1]]),
    atol=TOLERANCE,
  )


def test_the_default_tower_of_electra_is_the_discriminator(tmp_path):
  path = tiny_models.write_model(
    tmp_path / "electra", "electra", "pretraining", generator_hidden=8, mlp=64
  )
  for tower, width in ((None, 16), ("generator", 8)):
    model = open_model(path, tower=tower, default_tower="discriminator")
    (features,) = extract(model, ["the cat"])
    assert features.vectors.shape == (4, width)
  with pytest.raises(ValueError, match="both towers of ELECTRA"):
    extract(open_model(path), ["the cat"])


def test_elmos_tokenizer_splits_a_text_but_not_a_list_of_words(tmp_path):
  model = open_tiny_model(tmp_path, "elmo")
  vocabulary = word_vocabulary.build([*word_vocabulary.SPECIAL_WORDS, "a"])
  vars(model)["tokenizer"] = vocabulary.special_tokenizer
  texts = [
    text_inputs.text_of_string(id=0, text="a-b (c)"),
    text_inputs.text_of_words(id=0, words=["(c)", "a"]),
  ]
  text_tokens, word_tokens = text_inputs.encode(model, texts)
  assert text_tokens.pieces[1:-1] == ["a-b", "(", "c", ")"]
  assert word_tokens.pieces[1:-1] == ["(c)", "a"]
  assert text_tokens.ids.shape == (6, 50) and word_tokens.ids.shape == (4, 50)


def test_layers_are_combined_by_each_method(bert):
  stack_spec = Spec(layers=(0, -2, -1), combine="stack")
  stacked_vectors = extract(bert, [TEXT], **stack_spec._asdict())[0].vectors
  assert stacked_vectors.shape == (9, 3, 16)
  weights = np.array([0.5, -1.0, 2.0])
  layer_shares = np.exp(weights) / np.exp(weights).sum()
  mix_spec = stack_spec._replace(combine="mix", mix=tuple(weights), gamma=1.5)
  expected_by_spec = {
    stack_spec._replace(combine="concat"): stacked_vectors.reshape(9, 48),
    stack_spec._replace(combine="sum"): stacked_vectors.sum(1),
    stack_spec._replace(combine="mean"): stacked_vectors.mean(1),
    mix_spec: 1.5 * (stacked_vectors * layer_shares[:, None]).sum(1),
  }
  layer_vectors = [stacked_vectors[None, :, i] for i in range(3)]
  for spec, expected in expected_by_spec.items():
    (combined,) = features_lib._combine_layers(layer_vectors, spec)
    np.testing.assert_allclose(combined, expected, atol=TOLERANCE)
  (text_features,) = extract(bert, [TEXT], **mix_spec._asdict())
  np.testing.assert_allclose(
    text_features.vectors, expected_by_spec[mix_spec], atol=TOLERANCE
  )


def test_words_have_the_vector_of_the_first_piece_or_the_mean(bert):
  (text_features,) = extract(bert, [TEXT])
  # The tokens are [CLS] the cats sat . un ##aff ##able [SEP].
  pieces_by_word = [[1], [2], [3, 4], [5, 6, 7]]
  (first_piece_features,) = extract(bert, [TEXT], unit="word")
  assert first_piece_features.tokens == ("the", "cats", "sat.", "unaffable")
  np.testing.assert_allclose(
    first_piece_features.vectors,
    text_features.vectors[[1, 2, 3, 5]],
    atol=TOLERANCE,
  )
  (mean_features,) = extract(bert, [TEXT], unit="word", pieces="mean")
  expected = [
    text_features.vectors[word_pieces].mean(0) for word_pieces in pieces_by_word
  ]
  np.testing.assert_allclose(mean_features.vectors, expected, atol=TOLERANCE)


def test_each_separate_word_has_one_vector(bert):
  """A word may contain a space, or have no characters or no pieces.

  A word without pieces has a vector of zeros.
  """
  words = ["the cats", "", "sat", "\u200b", "."]
  (features,) = extract(bert, [words], unit="word", pieces="mean")
  assert features.tokens == tuple(words)
  (text_features,) = extract(bert, ["the cats sat ."])
  expected = text_features.vectors[[1, 3, 4]]
  expected[0] = text_features.vectors[1:3].mean(0)
  vectors = features.vectors
  np.testing.assert_allclose(vectors[[0, 2, 4]], expected, atol=TOLERANCE)
  assert not vectors[[1, 3]].any()


def test_a_space_belongs_to_the_word_after_it(tmp_path):
  model = open_tiny_model(tmp_path, "roberta")
  (tokens,) = text_inputs.encode(
    model, [text_inputs.text_of_words(id=0, words=["é", "a b", "c"])]
  )
  # The first tokens are <s> and the two bytes of é.
  assert tokens.word_indices.tolist() == [-1, 0, 0, 1, 1, 1, 1, 2, 2, -1]


def test_the_time_to_encode_a_text_grows_with_its_length_only(bert):
  """Counts how often `encode` accesses the library's encoding of a text.

  Each access copies all offsets of the text. So a longer text must not need
  more accesses.
  """
  accessed_names = []

  class Encoding:
    def __init__(self, encoding):
      self._encoding = encoding

    def __getattr__(self, name):
      accessed_names.append(name)
      return getattr(self._encoding, name)

  class Tokenizer:
    normalizer = bert.tokenizer.normalizer

    def encode_batch(self, texts):
      return [
        Encoding(encoding) for encoding in bert.tokenizer.encode_batch(texts)
      ]

  model = SimpleNamespace(config=bert.config, tokenizer=Tokenizer())
  for text in ("the cat", "the cat sat on a mat"):
    text_inputs.encode(model, [text_inputs.text_of_string(id=0, text=text)])
  accesses_of_short_text, accesses_of_long_text = np.split(
    np.array(accessed_names), 2
  )
  assert accesses_of_short_text.tolist() == accesses_of_long_text.tolist()


def test_windows_have_no_gaps_and_each_token_has_the_most_context():
  rng = np.random.default_rng(0)
  for _ in range(200):
    num_pieces, max_length = int(rng.integers(0, 60)), int(rng.integers(8, 20))
    overlap = int(rng.integers(0, 12))
    ids = np.arange(num_pieces + 2)
    tokens = text_inputs.Tokens(
      ids=ids,
      pieces=[],
      offsets=[],
      word_indices=ids,
      tokenizer_word_indices=ids,
      begin=1,
      end=num_pieces + 1,
    )
    rows = list(
      features_lib._windows_of(
        text_index=0, encoded=tokens, max_length=max_length, overlap=overlap
      )
    )
    joined_ids = []
    for row in rows:
      assert len(row.ids) <= max_length and row.begin < row.end
      assert row.ids[0] == 0 and row.ids[-1] == num_pieces + 1
      assert row.text_position == len(joined_ids)
      joined_ids += row.ids[row.begin : row.end].tolist()
    assert joined_ids == ids.tolist()
    spans = [(row.ids[1], row.ids[-2]) for row in rows if num_pieces]
    for row in rows if len(rows) > 1 else []:
      for token in row.ids[row.begin : row.end]:
        # The context of a token in a window is the number of tokens on the side
        # that has fewer. A side counts as 99 if the text ends there. The first
        # context is that in `row`; then come all windows with the token.
        contexts = [
          min(
            token - first if first > 1 else 99,
            last - token if last < num_pieces else 99,
          )
          for first, last in [(row.ids[1], row.ids[-2]), *spans]
          if first <= token <= last
        ]
        assert not contexts or contexts[0] >= max(contexts) - 1


def test_a_long_text_is_read_in_windows(bert):
  # The text has 42 words and two special tokens. The model takes 34 tokens.
  words = ["the", "cat", "sat", "on", "a", "mat"] * 7
  (text_features,) = extract(bert, [words], overlap=10)
  (tokens,) = text_inputs.encode(
    bert, [text_inputs.text_of_words(id=0, words=words)]
  )
  cls_id, sep_id = tokens.ids[[0, -1]]
  # Counted from 0, words 10 to 31 are in both windows. The vectors before word
  # 21 come from the first window, and all later vectors from the second.
  first_window, second_window = (
    expected_layers(bert, [cls_id, *tokens.ids[1:-1][window], sep_id])[:, -1]
    for window in (slice(0, 32), slice(10, 42))
  )
  expected = np.concatenate([first_window[:22], second_window[12:]])
  np.testing.assert_allclose(text_features.vectors, expected, atol=TOLERANCE)
  (text_features,) = extract(
    bert, [words], overlap=10, unit="mean", normalize=True
  )
  mean = expected.mean(0) / np.linalg.norm(expected.mean(0))
  np.testing.assert_allclose(text_features.vectors, mean, atol=TOLERANCE)
  (text_features,) = extract(bert, [words], overlap=10, unit="cls")
  np.testing.assert_allclose(
    text_features.vectors,
    (first_window[0] + second_window[0]) / 2,
    atol=TOLERANCE,
  )


def test_batches_hold_every_row_once_in_few_shapes():
  rng = np.random.default_rng(1)
  rows = [
    np.full(length, length, np.int32) for length in rng.integers(0, 81, 300)
  ]
  row_indices, shapes = [], set()
  for batch in row_batches.batches(rows, max_length=80, batch_tokens=640):
    ids, token_masks = batch.inputs["input_ids"], batch.inputs["sequence_ids"]
    shapes.add(ids.shape)
    assert ids.size <= 640 and ids.shape[1] <= 80
    for row_number, row, mask in zip(
      batch.row_indices, ids, token_masks, strict=False
    ):
      np.testing.assert_array_equal(row[mask == 1], rows[row_number])
    assert not token_masks[len(batch.row_indices) :].any()
    row_indices += batch.row_indices.tolist()
  assert sorted(row_indices) == list(range(300))
  # The lengths are 16, 24, 32, 48, 64 and 80.
  assert len({length for _, length in shapes}) == len(shapes) == 6


def test_neither_order_nor_batches_change_a_vector(bert):
  rng = np.random.default_rng(2)
  texts = [["cat"] * int(num_words) for num_words in rng.integers(0, 20, 40)]
  one_by_one = extract(bert, texts, tokens=1, unit="mean")
  in_batches = extract(bert, texts[::-1], tokens=512, unit="mean")[::-1]
  assert [text_features.id for text_features in one_by_one] == list(range(40))
  for text_features, batch_features in zip(one_by_one, in_batches, strict=True):
    np.testing.assert_allclose(
      text_features.vectors, batch_features.vectors, atol=TOLERANCE
    )


def test_jsonl_npz_and_hdf5_hold_the_same_features(bert, tmp_path, monkeypatch):
  h5py = pytest.importorskip("h5py")
  monkeypatch.setattr(feature_files, "_CHUNK_SIZE", 2)
  features = extract(bert, ["the cat", "", "a b c"], layers=(0, 1))
  path_by_extension = {
    extension: str(tmp_path / f"f.{extension}")
    for extension in ("jsonl", "npz", "h5")
  }
  for path in path_by_extension.values():
    assert feature_files.write(path, features) == 3
  vectors = np.concatenate(
    [text_features.vectors for text_features in features]
  )
  rows = read_rows(tmp_path / "f.jsonl")
  assert [row["tokens"] for row in rows] == [
    list(text_features.tokens) for text_features in features
  ]
  json_vectors = np.concatenate(
    [np.array(row["vectors"], np.float32) for row in rows]
  )
  np.testing.assert_array_equal(json_vectors, vectors)
  arrays = np.load(path_by_extension["npz"])
  with h5py.File(path_by_extension["h5"]) as h5_file:
    for key in arrays:
      is_text = key in ("ids", "tokens")
      h5_array = h5_file[key].asstr()[:] if is_text else h5_file[key][:]
      np.testing.assert_array_equal(h5_array, arrays[key])
  assert arrays["starts"].tolist() == [0, 4, 6, 11]
  np.testing.assert_array_equal(arrays["vectors"], vectors)
  assert arrays["tokens"][:4].tolist() == ["[CLS]", "the", "cat", "[SEP]"]


def read_rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def run_features(*arguments):
  execute(["features", *map(str, arguments)])


@pytest.fixture
def command_flags(tmp_path):
  model_path = tiny_models.write_model(tmp_path / "model", "bert")
  (tmp_path / "in.txt").write_text("the cat\na b\n")
  return "--model", model_path, "--output", tmp_path / "out.jsonl", "--input"


def test_the_command_keeps_ids_and_order(command_flags, tmp_path, capsys):
  lines = [
    {"id": "x", "words": ["un", "cats"]},
    {"text": "the cat sat"},
    {"id": 7, "text": "cat"},
  ]
  path = tmp_path / "in.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  run_features(*command_flags, path, "--pooling", "word", "--layers", "all")
  assert "3 texts" in capsys.readouterr().out
  rows = read_rows(tmp_path / "out.jsonl")
  assert [row["id"] for row in rows] == ["x", 1, 7]
  assert rows[0]["tokens"] == ["un", "cats"]
  assert np.shape(rows[1]["vectors"]) == (3, 48)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--layers", "3"], "layer 3: the model has layers 0 (embeddings) to 2"),
    (["--layers", "x"], "--layers x"),
    (["--combine", "mix"], "mix has 0 weights, but 1 layers"),
    (["--length", "35"], "the model takes 8 to 34"),
    (["--length", "0"], "windows of 0 tokens"),
    (
      ["--pooling", "mean", "--output", "a.txt"],
      "must end in .jsonl or .npz or",
    ),
    (["--model", "nowhere/at/all"], "there is no folder"),
    (["--input", "bad.jsonl"], 'bad.jsonl:2: the object has neither "text"'),
    (["--input", "not.jsonl"], "not.jsonl:1: the line is not JSON"),
    (["--input", "latin.txt"], "latin.txt:2: the line is not UTF-8"),
    (["--input", "none.txt"], "none.txt: No such file"),
    (["--input", "empty.txt"], "empty.txt has no lines"),
    (["--combine", "mix", "--mix", "nan"], "--mix nan: not all are finite"),
    (["--output", "bad.jsonl", "--input", "bad.jsonl"], "is the input"),
  ],
)
def test_bad_input_gets_one_sentence(
  arguments, message, command_flags, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"words": "a"}\n')
  (tmp_path / "not.jsonl").write_text("a\n")
  (tmp_path / "latin.txt").write_bytes(b"a\n\xe9\n")
  (tmp_path / "empty.txt").touch()
  files_before = sorted(tmp_path.iterdir())
  with pytest.raises(SystemExit) as exit_info:
    run_features(*command_flags, "in.txt", *arguments)
  assert str(exit_info.value).startswith("error: ") and message in str(
    exit_info.value
  )
  assert "\n" not in str(exit_info.value)
  assert sorted(tmp_path.iterdir()) == files_before


def test_sentence_vectors_are_those_of_transformers(tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
  config = transformers.BertConfig(
    vocab_size=len(tiny_models.WORDS), intermediate_size=24, **sizes
  )
  torch.manual_seed(0)
  torch_model = transformers.BertModel(config).eval()
  torch_model.save_pretrained(tmp_path / "hf")
  (tmp_path / "hf" / "vocab.txt").write_text("\n".join(tiny_models.WORDS))
  tokenizer = transformers.BertTokenizerFast(str(tmp_path / "hf" / "vocab.txt"))
  texts = [TEXT, "the", "a b c " * 9]
  batch = tokenizer(texts, padding=True, return_tensors="pt")
  with torch.no_grad():
    hidden = torch_model(**batch)[0]
  mask = batch["attention_mask"][..., None]
  mean = (hidden * mask).sum(1) / mask.sum(1)
  expected = torch.nn.functional.normalize(mean).numpy()
  model = open_model(str(tmp_path / "hf"))
  features = extract(model, texts, unit="mean", normalize=True)
  np.testing.assert_allclose(
    [text_features.vectors for text_features in features],
    expected,
    atol=TOLERANCE,
    rtol=0,
  )


def test_a_tagger_on_frozen_features_learns(bert):
  rng = np.random.default_rng(3)
  words = ["cat", "cats", "a", "b", "mat"]
  texts = [
    rng.choice(words, num_words).tolist()
    for num_words in rng.integers(1, 9, 24)
  ]
  # The tag is 1 if a word repeats the word before it, so context is needed.
  tags = [
    np.int32([i > 0 and text[i] == text[i - 1] for i in range(len(text))])
    for text in texts
  ]
  features = [
    text_features.vectors
    for text_features in extract(bert, texts, layers=(0,), unit="word")
  ]
  features.insert(2, np.zeros((0, 16), np.float32))
  tags.insert(2, np.zeros(0, np.int32))
  sentences = bilstm_tagger.TaggedSentences(features, tags)
  module = bilstm_tagger.BiLstmTagger(2, hidden=16, num_layers=1, dropout=0.1)
  options = bilstm_tagger.TrainingOptions(epochs=60, batch_size=24, rate=0.03)
  *_, (params, loss) = bilstm_tagger.fit(module, sentences, options)
  predicted_tags = bilstm_tagger.predict(
    module, params, sentences, batch_size=24
  )
  is_correct = np.concatenate(
    [
      predicted == expected
      for predicted, expected in zip(predicted_tags, tags, strict=True)
    ]
  )
  assert loss < 0.1 and is_correct.mean() > 0.97
  assert [len(row) for row in predicted_tags] == [len(row) for row in tags]
  # Vectors in the padding of a row do not change the logits of its words.
  _, batch = next(bilstm_tagger.batches(sentences, 24))
  apply = jax.jit(module.apply)
  logits = apply(params, batch["features"], batch["lengths"])
  noise = batch["features"].copy()
  is_word = np.arange(noise.shape[1]) < batch["lengths"][:, None]
  noise[~is_word] = 7.0
  logits_with_noise = apply(params, noise, batch["lengths"])
  np.testing.assert_array_equal(logits[is_word], logits_with_noise[is_word])


def test_a_tagger_learns_which_layer_to_read():
  rng = np.random.default_rng(1)
  features = [rng.normal(size=(5, 3, 4)).astype(np.float32) for _ in range(32)]
  # The tag depends only on the second layer.
  tags = [(vectors[:, 1, 0] > 0).astype(np.int32) for vectors in features]
  sentences = bilstm_tagger.TaggedSentences(features, tags)
  module = bilstm_tagger.BiLstmTagger(2, hidden=4, num_layers=1, dropout=0.0)
  options = bilstm_tagger.TrainingOptions(epochs=30, batch_size=32, rate=0.05)
  *_, (params, loss) = bilstm_tagger.fit(module, sentences, options)
  mix = params["params"]["mix"]
  assert np.argmax(mix["weights"]) == 1 and loss < 0.3
  # A tagger without a mix predicts these tags too, if the test mixes the
  # layers.
  layer_shares = np.exp(mix["weights"]) / np.exp(mix["weights"]).sum()
  mixed_features = [
    mix["gamma"] * np.einsum("lkd,k->ld", vectors, layer_shares)
    for vectors in features
  ]
  params_without_mix = {
    name: param for name, param in params["params"].items() if name != "mix"
  }
  mixed_sentences = bilstm_tagger.TaggedSentences(
    [np.asarray(vectors) for vectors in mixed_features], tags
  )
  for predicted, expected in zip(
    bilstm_tagger.predict(module, params, sentences, batch_size=32),
    bilstm_tagger.predict(
      module, {"params": params_without_mix}, mixed_sentences, batch_size=32
    ),
    strict=True,
  ):
    np.testing.assert_array_equal(predicted, expected)
