"""Tests ELMo: directions, padding, state, characters, published embeddings."""

import json
import os
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax.models import elmo, from_config, lstm
from bert_jax.text import characters
from bert_jax.weights import model_folder

DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")
TINY_SIZES = dict(filters=[[1, 4], [2, 6]], highways=1, hidden=5, cell=7)
SENTENCES = [["A", "naïve", "cat"], ["x" * 60], ["one", "two"] * 4]


@pytest.fixture(scope="module")
def tiny_elmo():
  """Returns the module, parameters with large values, and a jitted apply."""
  module = elmo.build("original", **TINY_SIZES)
  batch = characters.make_batch(SENTENCES)
  shapes = jax.eval_shape(module.init, jax.random.key(0), batch["char_ids"])
  rng = np.random.default_rng(0)
  draw = lambda x: rng.normal(0, 0.7, x.shape).astype(np.float32)  # noqa: E731
  params = jax.tree.map(draw, nn.unbox(shapes)["params"])
  apply = fast_jit(lambda p, **inputs: module.apply({"params": p}, **inputs))
  return module, params, apply


def lstm_step_by_step(x, kernel, bias, projection, clip):
  """Computes TensorFlow's LSTMCell with `num_proj`, one word after another."""
  # c is the cell and h the output. i, j, f and o are TensorFlow's names: the
  # input gate, the new input, the forget gate and the output gate.
  sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
  c, h, outputs = np.zeros(len(projection)), np.zeros(projection.shape[1]), []
  for word in x:
    i, j, f, o = np.split(np.concatenate([word, h]) @ kernel + bias, 4)
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
    c = np.clip(c, -clip, clip)
    h = np.clip((sigmoid(o) * np.tanh(c)) @ projection, -clip, clip)
    outputs.append(h)
  return np.array(outputs)


@pytest.mark.parametrize("unroll", [0, 1, 3])
def test_a_layer_equals_a_loop_over_single_words(unroll):
  layer = lstm.Lstm(
    cell=6, features=4, clip=0.3, dtype=jnp.dtype("float32"), unroll=unroll
  )
  rng = np.random.default_rng(0)
  x = rng.normal(size=(3, 9, 5)).astype(np.float32)
  lengths = [9, 4, 1]
  ids = (np.arange(9) < np.array(lengths)[:, None]).astype(np.int32)
  shapes = jax.eval_shape(layer.init, jax.random.key(0), x, ids)
  params = jax.tree.map(
    lambda s: rng.normal(size=s.shape).astype(np.float32),
    nn.unbox(shapes)["params"],
  )
  layer_params = [params[name] for name in ("kernel", "bias", "projection")]
  for reverse in (False, True):
    outputs, (_, last_outputs) = layer.apply(
      {"params": params}, x, ids, reverse=reverse
    )
    for row, length in enumerate(lengths):
      words = x[row, :length]
      expected = lstm_step_by_step(
        words[::-1] if reverse else words, *layer_params, 0.3
      )
      np.testing.assert_allclose(last_outputs[row], expected[-1], atol=1e-5)
      expected = expected[::-1] if reverse else expected
      np.testing.assert_allclose(outputs[row, :length], expected, atol=1e-5)
      assert not np.asarray(outputs[row, length:]).any()
    # The largest value is equal to the bound, so clipping acts.
    assert np.isclose(abs(np.asarray(outputs)).max(), 0.3)


def test_vectors_do_not_depend_on_padding_or_batch(tiny_elmo):
  """A sentence has the same vectors alone, in a batch, and with padding.

  The padding may be on either side.
  """
  _, params, apply = tiny_elmo
  batch = characters.make_batch(SENTENCES)
  batch_vectors = apply(params, **batch)
  assert batch_vectors.shape == (3, 3, 10, 10)
  np.testing.assert_array_equal(batch_vectors, apply(params, **batch))
  for i, sentence in enumerate(SENTENCES):
    single_batch = characters.make_batch([sentence])
    length = len(sentence) + 2
    vectors = apply(params, **single_batch)[0]
    np.testing.assert_allclose(vectors, batch_vectors[i, :, :length], atol=1e-5)
    assert not np.asarray(batch_vectors[i, :, length:]).any()
    for pad_before, pad_after in ((0, 14 - length), (14 - length, 0)):
      pad = ((0, 0), (pad_before, pad_after))
      padded_vectors = apply(
        params,
        char_ids=np.pad(single_batch["char_ids"], (*pad, (0, 0))),
        sequence_ids=np.pad(single_batch["sequence_ids"], pad),
      )[0]
      np.testing.assert_allclose(
        padded_vectors[:, pad_before : pad_before + length], vectors, atol=1e-5
      )


def test_sentences_of_a_packed_row_do_not_see_each_other(tiny_elmo):
  _, params, apply = tiny_elmo
  single_batches = [
    characters.make_batch([sentence_words])
    for sentence_words in (SENTENCES[0], SENTENCES[2])
  ]
  char_ids = [single_batch["char_ids"] for single_batch in single_batches]
  padding = np.zeros((1, 2, characters.MAX_CHARS), np.int32)
  ids = np.array([[1] * 5 + [0] * 2 + [2] * 10], np.int32)
  row = np.concatenate([char_ids[0], padding, char_ids[1]], 1)
  row_vectors = apply(params, char_ids=row, sequence_ids=ids)[0]
  for sentence, begin in zip(char_ids, (0, 7), strict=True):
    sentence_vectors = apply(params, char_ids=sentence)[0]
    end = begin + sentence.shape[1]
    np.testing.assert_allclose(
      row_vectors[:, begin:end], sentence_vectors, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(1, 0, 50), (0, 3, 50), (2, 0, 50)])
def test_a_batch_without_words_gives_no_vectors(tiny_elmo, shape):
  """There is no sentence, or no sentence has a word, not even <S> or </S>."""
  encoder, params, _ = tiny_elmo
  batch = characters.make_batch([[]] * shape[0], adds_sentence_ends=False)
  ids = np.zeros(shape, np.int32)
  if shape[1] == 0:
    np.testing.assert_array_equal(batch["char_ids"], ids)
  vectors = encoder.apply({"params": params}, ids)
  num_states = encoder.num_layers + 1
  assert vectors.shape == (shape[0], num_states, shape[1], 2 * encoder.hidden)


def test_each_direction_sees_only_the_words_on_its_side(tiny_elmo):
  """Layer 0 sees only the word; later layers also see the words on one side."""
  _, params, apply = tiny_elmo
  vectors = apply(params, **characters.make_batch([["a", "b", "c"]]))[0]
  changed_vectors = apply(params, **characters.make_batch([["a", "X", "c"]]))[0]
  is_changed = np.asarray((vectors != changed_vectors).any(-1))
  is_forward_changed = np.asarray(
    (vectors[..., :5] != changed_vectors[..., :5]).any(-1)
  )
  is_backward_changed = np.asarray(
    (vectors[..., 5:] != changed_vectors[..., 5:]).any(-1)
  )
  assert is_changed[0].tolist() == [False, False, True, False, False]
  for layer in (1, 2):
    assert is_forward_changed[layer].tolist() == [
      False,
      False,
      True,
      True,
      True,
    ]
    assert is_backward_changed[layer].tolist() == [
      True,
      True,
      True,
      False,
      False,
    ]


def test_layer_0_is_the_words_twice_and_layer_2_has_a_residual(
  tiny_elmo,
):
  module, params, apply = tiny_elmo
  batch = characters.make_batch(SENTENCES)
  vectors_with_residual = np.asarray(apply(params, **batch))
  np.testing.assert_array_equal(
    vectors_with_residual[:, 0, :, :5], vectors_with_residual[:, 0, :, 5:]
  )
  module_without_residual = module.copy(residual=False)
  vectors_without_residual = fast_jit(
    lambda p: module_without_residual.apply({"params": p}, **batch)
  )(params)
  np.testing.assert_allclose(
    vectors_with_residual[:, 1], vectors_without_residual[:, 1], atol=1e-6
  )
  np.testing.assert_allclose(
    vectors_with_residual[:, 2],
    vectors_without_residual[:, 2] + vectors_with_residual[:, 1],
    atol=1e-6,
  )


def test_the_state_after_half_a_row_continues_the_text(tiny_elmo):
  """The forward vectors of a row equal those of its two halves, joined.

  The second half must begin with the state after the first half. Without this
  state, the vectors of the second half differ.
  """
  module, params, _ = tiny_elmo
  row = characters.make_batch([["a", "b", "c", "d"]])["char_ids"]
  ids = np.ones(row.shape[:2], np.int32)

  @fast_jit
  def run(chars, ids, states):
    return module.apply(
      {"params": params}, chars, ids, states, method=module.encode_with_states
    )

  full_vectors, _ = run(row, ids, None)
  first_half, states = run(row[:, :3], ids[:, :3], None)
  second_half, _ = run(row[:, 3:], ids[:, 3:], states)
  joined_vectors = jnp.concatenate([first_half, second_half], 2)[..., :5]
  np.testing.assert_allclose(joined_vectors, full_vectors[..., :5], atol=1e-6)
  half_without_state, _ = run(row[:, 3:], ids[:, 3:], None)
  assert abs(half_without_state - second_half).max() > 1e-3


def test_dropout_depends_on_its_key_and_bfloat16_is_finite(tiny_elmo):
  module, params, _ = tiny_elmo
  batch = characters.make_batch(SENTENCES)

  @fast_jit
  def train(seed):
    rngs = {"dropout": jax.random.key(seed)}
    return module.apply({"params": params}, **batch, train=True, rngs=rngs)

  assert (train(0) == train(0)).all() and (train(0) != train(1)).any()
  bfloat16_module = module.copy(dtype=jnp.dtype("bfloat16"))
  bfloat16_vectors = fast_jit(
    lambda p: bfloat16_module.apply({"params": p}, **batch)
  )(params)
  assert bfloat16_vectors.dtype == jnp.bfloat16 and bool(
    jnp.isfinite(bfloat16_vectors).all()
  )


def test_the_weighted_sum_of_layers_equals_its_formula():
  rng = np.random.default_rng(0)
  layer_vectors = rng.normal(2.0, 3.0, (2, 3, 4, 6)).astype(np.float32)
  ids = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], np.int32)
  layer_weights, gamma = np.array([0.3, -1.0, 2.0], np.float32), np.float32(1.7)
  params = {"layer_weights": layer_weights, "gamma": gamma}
  exponentials = np.exp(layer_weights + 1 / 3)
  layer_sum = elmo.ScalarMix().apply({"params": params}, layer_vectors, ids)
  expected = gamma * np.einsum(
    "n,bnld->bld", exponentials / exponentials.sum(), layer_vectors
  )
  np.testing.assert_allclose(layer_sum, expected, rtol=1e-5)
  word_vectors = layer_vectors.transpose(1, 0, 2, 3)[:, ids != 0]
  normalized_layers = [
    (s - x.mean()) / x.std()
    for s, x in zip(
      layer_vectors.transpose(1, 0, 2, 3), word_vectors, strict=True
    )
  ]
  layer_sum = elmo.ScalarMix(normalises_layers=True).apply(
    {"params": params}, layer_vectors, ids
  )
  expected = gamma * np.einsum(
    "n,nbld->bld",
    exponentials / exponentials.sum(),
    np.array(normalized_layers),
  )
  np.testing.assert_allclose(layer_sum, expected, rtol=1e-4, atol=1e-5)
  initial_params = elmo.ScalarMix().init(jax.random.key(0), layer_vectors, ids)[
    "params"
  ]
  assert (
    not initial_params["layer_weights"].any() and initial_params["gamma"] == 1.0
  )


def test_character_ids_of_words_are_as_published():
  """Each id is 1 larger than in bilm/data.py.

  A word is a marker, up to 48 bytes, a second marker, and padding.
  """
  ids = characters.word_ids("aé")
  assert ids[:6] == [259, 98, 196, 170, 260, 261] and set(ids[5:]) == {261}
  long_word = characters.word_ids("x" * 99)
  assert long_word == [259] + [121] * 48 + [260]
  assert characters.word_ids(characters.BEGIN_SENTENCE)[:3] == [259, 257, 260]
  assert elmo.NUM_CHARS == characters.NUM_CHARS == characters.PAD + 2
  assert elmo.MAX_CHARS == characters.MAX_CHARS
  batch = characters.make_batch([["a"], ["b", "c"]])
  assert batch["char_ids"].shape == (2, 4, 50)
  assert batch["sequence_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
  assert not batch["char_ids"][0, 3].any()


def test_published_sizes_have_the_published_numbers_of_parameters():
  """The numbers are from allennlp.org/elmo; they leave out the softmax."""
  chars = jax.ShapeDtypeStruct((1, 1, 50), jnp.int32)
  for variant, millions in dict(original=93.6, medium=28.0, small=13.6).items():
    module = elmo.build(variant)
    shapes = jax.eval_shape(module.init, jax.random.key(0), chars)
    num_parameters = sum(x.size for x in jax.tree.leaves(shapes))
    assert abs(num_parameters / 1e6 - millions) < 0.05, variant
  with pytest.raises(ValueError, match="widest filter needs words of 7"):
    elmo.build("small").init(jax.random.key(0), jnp.ones((1, 1, 6), jnp.int32))


@pytest.mark.parametrize("filters", [(), 3, [(0, 4)], [(1, 2, 3)], [(51, 4)]])
def test_invalid_filters_are_refused(filters):
  with pytest.raises(ValueError, match="^model.filters=.*must be pairs"):
    elmo.build("small", filters=filters)


def test_padding_gets_no_gradient(tiny_elmo):
  """Embeddings of characters that occur only at padding get a gradient of 0."""
  module, params, _ = tiny_elmo
  batch = characters.make_batch([["a", "b", "c"]])
  batch["sequence_ids"][0, 2:4] = 0

  @fast_jit
  def gradient(params):
    apply_elmo = lambda p: module.apply({"params": p}, **batch)  # noqa: E731
    return jax.grad(lambda p: (apply_elmo(p) ** 2).sum())(params)

  char_gradients = np.asarray(gradient(params)["words"]["chars"]["embedding"])
  assert np.isfinite(char_gradients).all()
  assert char_gradients[ord("a") + 1].any()
  for padding_char_id in (0, ord("b") + 1, ord("c") + 1):
    assert not char_gradients[padding_char_id].any()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_initial_values_have_the_published_distributions(activation):
  """The distributions are from bilm/training.py and TensorFlow's LSTM."""
  module = elmo.build(
    "small", filters=[[3, 64]], cell=96, hidden=32, activation=activation
  )
  chars = characters.make_batch([["a"]])["char_ids"]
  params = nn.unbox(fast_jit(module.init)(jax.random.key(0), chars))["params"]

  def assert_uniform(array, bound):
    assert bound * 0.98 < array.max() <= bound, array.max()
    assert -bound * 0.98 > array.min() >= -bound, array.min()
    assert abs(array.mean()) < bound * 0.1

  words, layer = params["words"], params["lstm_backward_1"]
  assert_uniform(words["chars"]["embedding"], 1.0)
  kernel = words["convolution_0"]["kernel"]
  if activation == "relu":
    assert_uniform(kernel, 0.05)
  else:
    assert np.isclose(kernel.std(), (3 * 16) ** -0.5, rtol=0.1)
  assert_uniform(layer["kernel"], (6 / (64 + 4 * 96)) ** 0.5)
  assert_uniform(layer["projection"], (6 / (96 + 32)) ** 0.5)
  highway = words["highway_0"]
  assert (highway["gate"]["bias"] == -2).all()
  for name in ("gate", "new"):
    assert np.isclose(highway[name]["kernel"].std(), 64**-0.5, rtol=0.1)
  assert np.isclose(words["project"]["kernel"].std(), 64**-0.5, rtol=0.1)


needs_published_models = pytest.mark.skipif(
  not DATA_FOLDER,
  reason="BERT_JAX_TEST_DATA names no folder with published models of ELMo",
)


def open_published_model(name):
  """Returns a published model's folder, module and parameters, and h5py."""
  h5py = pytest.importorskip("h5py", reason="h5py is not installed")
  from bert_jax.weights import bilm

  path = pathlib.Path(DATA_FOLDER) / "elmo_fixtures" / name
  weights = bilm.read(str(path), "elmo")
  params = model_folder.unflatten(weights.arrays)
  return path, from_config.build(weights.config), params, h5py


@needs_published_models
@pytest.mark.parametrize(
  "name, sentences_file",
  [
    ("bilm", "lm_embeddings_sentences.json"),
    ("allennlp", "sentences.json"),
  ],
)
def test_embeddings_agree_with_published_ones(name, sentences_file):
  """The vectors of the top layer agree with those of bilm-tf within 1e-5.

  Of the two models, one has residuals. When bilm-tf's vectors were recorded,
  each sentence of a group began with the state after the sentence before it. So
  without a state, our vectors agree only for the first sentence of a group.
  """
  path, module, params, h5py = open_published_model(name)
  groups = json.loads((path / sentences_file).read_text())
  apply_without_state = fast_jit(
    lambda batch: module.apply({"params": params}, batch)["layers"]
  )
  run = fast_jit(
    lambda batch, states: module.apply(
      {"params": params},
      *(batch["char_ids"], batch["sequence_ids"], states),
      method=lambda m, *args: m.encoder.encode_with_states(*args),
    )
  )
  initial_states_of_direction = (
    np.zeros((3, 64), np.float32),
    np.zeros((3, 16), np.float32),
  )
  states = ((initial_states_of_direction,) * 2,) * 2
  files = [h5py.File(path / f"lm_embeddings_{i}.hdf5") for i in range(3)]
  for sentence_index in range(10):
    batch = characters.make_batch(
      [group[sentence_index].split() for group in groups]
    )
    # All batches are padded to one length, so that jax compiles once.
    num_padding = 55 - batch["char_ids"].shape[1]
    batch = {
      key: np.pad(array, ((0, 0), (0, num_padding), (0, 0))[: array.ndim])
      for key, array in batch.items()
    }
    vectors, states = run(batch, states)
    vectors_without_state = np.asarray(apply_without_state(batch))
    for row, file in enumerate(files):
      expected = np.concatenate(file[str(sentence_index)][...], -1)
      top_vectors = vectors[row, -1, 1 : len(expected) + 1]
      np.testing.assert_allclose(top_vectors, expected, rtol=0, atol=1e-5)
      difference = abs(
        vectors_without_state[row, -1, 1 : len(expected) + 1] - expected
      ).max()
      assert difference < 1e-5 if sentence_index == 0 else difference > 1e-4


@needs_published_models
def test_vectors_of_words_agree_with_published_ones():
  """The vectors of 458 words agree with the published ones within 1e-5.

  The compared vectors are of layer 0, which depends on no state.
  """
  path, module, params, h5py = open_published_model("allennlp")
  word_by_mark = {
    "<S>": characters.BEGIN_SENTENCE,
    "</S>": characters.END_SENTENCE,
  }
  words = (path / "vocab_test.txt").read_text().split("\n")
  ids = [characters.word_ids(word_by_mark.get(word, word)) for word in words]
  chars = np.array(ids, np.int32)[:, None]
  outputs = fast_jit(
    lambda: module.apply({"params": params}, {"char_ids": chars})
  )()
  with h5py.File(path / "elmo_token_embeddings.hdf5") as file:
    expected = file["embedding"][...]
  word_vectors = outputs["layers"][:, 0, 0]
  np.testing.assert_allclose(word_vectors[:, :16], expected, rtol=0, atol=1e-5)
  np.testing.assert_array_equal(word_vectors[:, :16], word_vectors[:, 16:])
