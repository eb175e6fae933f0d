"""Compares the outputs and gradients of models with those of transformers."""

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

# Both libraries add some ten thousand float32 numbers, in different orders. The
# compared numbers are about 1 to 10. A wrong epsilon or gelu would change
# them by 1e-4 or more.
TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4


def assert_small_differences(differences):
  assert differences.pop("gradients") < GRADIENT_TOLERANCE
  assert all(difference < TOLERANCE for difference in differences.values()), (
    differences
  )


@pytest.mark.parametrize("name", MODELS)
def test_tiny_models_agree_with_transformers(name):
  """One batch has padding. In the other batch, each row is one token."""
  batch_names = ("padded", "one token")
  assert_small_differences(
    reference.largest_differences(
      reference.MODELS[name], batch_names=batch_names
    )
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_tiny_models_agree_with_transformers_at_other_lengths(name):
  """Two batches have a single row: of 9 tokens, or of the full length."""
  batch_names = ("padded", "one row", "longest")
  assert_small_differences(
    reference.largest_differences(
      reference.MODELS[name], batch_names=batch_names
    )
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_published_size_agree_with_transformers(name):
  batch_names = ("padded",)
  assert_small_differences(
    reference.largest_differences(
      reference.MODELS[name], published=True, batch_names=batch_names
    )
  )
