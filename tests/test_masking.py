"""Masked-LM predictions: how many, where, and what replaces the tokens."""

import numpy as np
import pytest

from bert_jax.data import masking

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000


def rows(lengths, width, pad=0, left=False):
  """Returns (ids, maskable, lengths): [CLS], ids from 10 on, [SEP], padding."""
  ids = np.full((len(lengths), width), pad, np.int32)
  maskable = np.zeros(ids.shape, bool)
  for i, n in enumerate(lengths):
    begin = width - n if left else 0
    ids[i, begin : begin + n] = [CLS, *range(10, 8 + n), SEP]
    maskable[i, begin + 1 : begin + n - 1] = True
  return ids, maskable, np.array(lengths)


def mask(ids, maskable, lengths, seed=0, first=0, **options):
  positions = np.arange(first, first + len(ids), dtype=np.uint64)
  options = {"mask_id": MASK, "vocab_size": VOCAB} | options
  return masking.mask_tokens(ids, maskable, lengths, positions, seed, **options)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_special_tokens_are_never_masked(pad, left):
  ids, maskable, lengths = rows([5, 12], 12, pad, left)
  out = mask(ids, maskable, lengths, mask_rate=1.0, max_predictions=12)
  np.testing.assert_array_equal(out["input_ids"][~maskable], ids[~maskable])
  assert out["mlm_weights"].sum(1).tolist() == [3, 10]
  for i in range(2):
    used = out["mlm_weights"][i] > 0
    assert out["mlm_positions"][i][used].tolist() == (
      np.flatnonzero(maskable[i]).tolist()
    )
    assert out["mlm_ids"][i][used].tolist() == ids[i][maskable[i]].tolist()
    assert not out["mlm_positions"][i][~used].any()
    assert not out["mlm_ids"][i][~used].any()


def test_flags_made_before_padding_are_refused():
  ids, maskable, lengths = rows([5, 12], 12)
  with pytest.raises(ValueError, match=r"\(2, 11\).*\(2, 12\)"):
    mask(ids, maskable[:, :11], lengths)


def test_positions_are_distinct():
  ids, maskable, lengths = rows([102] * 200, 102)
  out = mask(ids, maskable, lengths)
  assert (out["mlm_weights"].sum(1) == 15).all()
  positions = out["mlm_positions"][:, :15]
  assert all(len(set(row)) == 15 for row in positions.tolist())
  assert (np.diff(positions) > 0).all()
  labels = np.take_along_axis(ids, positions, 1)
  np.testing.assert_array_equal(out["mlm_ids"][:, :15], labels)


def test_number_of_masks():
  lengths = [2, 3, 4, 9, 10, 11, 16, 17, 23, 30, 128, 137]
  ids, maskable, lengths = rows(lengths, 140)
  out = mask(ids, maskable, lengths)
  # round(0.15 n), at least 1, at most 20 and the tokens there are. Python
  # rounds 1.5 (n = 10) to 2, and 2.5 down to 2.
  expected = [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 19, 20]
  assert out["mlm_weights"].sum(1).tolist() == expected
  assert expected[1:] == [
    min(20, max(1, round(n * 0.15))) for n in lengths[1:].tolist()
  ]


def test_nothing_to_mask():
  ids, maskable, lengths = rows([2, 3], 8)
  out = mask(ids, maskable, lengths)
  assert out["mlm_weights"].sum(1).tolist() == [0, 1]
  assert not out["mlm_positions"][0].any() and not out["mlm_ids"][0].any()
  np.testing.assert_array_equal(out["input_ids"][0], ids[0])
  assert out["mlm_positions"].shape == (2, 20)


def test_shares_of_replacements():
  ids, maskable, lengths = rows([128] * 4000, 128)
  out = mask(ids, maskable, lengths)
  used = out["mlm_weights"] > 0
  new = np.take_along_axis(out["input_ids"], out["mlm_positions"], 1)[used]
  old = out["mlm_ids"][used]
  assert abs((new == MASK).mean() - 0.8) < 0.005
  assert abs((new == old).mean() - 0.1) < 0.005
  drawn = new[(new != MASK) & (new != old)]
  assert abs(len(drawn) / len(new) - 0.1) < 0.005
  # The whole vocabulary, special tokens included, uniformly.
  counts = np.bincount(drawn, minlength=VOCAB)
  assert len(counts) == VOCAB
  assert counts[[0, 1, CLS, SEP]].min() > 0
  others = counts[200:]
  statistic = ((others - others.mean()) ** 2 / others.mean()).sum()
  assert abs(statistic - len(others)) < 5 * np.sqrt(2 * len(others))
  untouched = np.ones(ids.shape, bool)
  np.put_along_axis(untouched, out["mlm_positions"], False, 1)
  np.testing.assert_array_equal(out["input_ids"][untouched], ids[untouched])


def test_every_position_is_equally_likely():
  ids, maskable, lengths = rows([128] * 8000, 128)
  out = mask(ids, maskable, lengths)
  counts = np.bincount(
    out["mlm_positions"][out["mlm_weights"] > 0], minlength=128
  )
  assert counts[0] == counts[127] == 0
  expected = 8000 * 19 / 126
  assert (abs(counts[1:127] - expected) < 5 * np.sqrt(expected)).all()


def test_draws_depend_on_seed_and_number_only():
  ids, maskable, lengths = rows([128] * 8, 128)
  whole = mask(ids, maskable, lengths, first=40)
  half = mask(ids[4:], maskable[4:], lengths[4:], first=44)
  for key, value in half.items():
    np.testing.assert_array_equal(value, whole[key][4:])
  # The same text: every example has its own masks, and so has every seed.
  other = mask(ids, maskable, lengths, first=40, seed=1)
  rows_seen = np.concatenate([whole["mlm_positions"], other["mlm_positions"]])
  assert len(np.unique(rows_seen, axis=0)) == 16
