"""Our encoders and heads give transformers' numbers."""

import importlib.util
import os

import pytest

if importlib.util.find_spec("torch") and importlib.util.find_spec(
  "transformers"
):
  import transformers_reference as reference

  MODELS = list(reference.MODELS)
elif "BERT_JAX_TEST_DATA" in os.environ:
  raise ImportError("the parity tests need torch and transformers here.")
else:
  pytest.skip(
    "torch and transformers are not installed", allow_module_level=True
  )

# float32 on both sides and some ten thousand additions in another order; what
# is compared is of size 1 to 10. A wrong epsilon or gelu is 1e-4 and more.
TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4


def check(found):
  assert found.pop("gradients") < GRADIENT_TOLERANCE
  assert all(value < TOLERANCE for value in found.values()), found


@pytest.mark.parametrize("name", MODELS)
def test_small(name):
  """Padding and pairs; the shortest rows there are."""
  only = ("padded", "one token")
  check(reference.differences(reference.MODELS[name], only=only))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_small_other_lengths(name):
  """One row; the longest row."""
  only = ("padded", "one row", "longest")
  check(reference.differences(reference.MODELS[name], only=only))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_published_size(name):
  only = ("padded",)
  check(reference.differences(reference.MODELS[name], True, only))
