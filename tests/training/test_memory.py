"""Tests how an unset `model.remat` follows from activations and memory."""

import jax
import pytest

from bert_jax.cli import configs
from bert_jax.devices import sharding
from bert_jax.kernels import fused
from bert_jax.training import config, memory, phases

GIB = 2**30


def make_model_and_plan(**model):
  """Returns BERT-large's section `model` and its phases: 128 and 512 tokens."""
  settings = configs.load_defaults("bert:large")
  settings["model"] |= model
  # One device has the rows that a chip of v5e:4x4 has.
  settings["batch_size"] //= 16
  parsed = config.parse(settings)
  return parsed.model, phases.plan(parsed)


@pytest.fixture
def mesh():
  return sharding.make_mesh(devices=jax.devices()[:1])


@pytest.fixture
def with_kernel(monkeypatch):
  """Lets "auto" choose the TPUs' kernel for attention."""
  monkeypatch.setattr(fused, "choose_attention", lambda *_: "tpu")


def test_activations_follow_the_published_formula(mesh):
  """A layer keeps s b h (34 + 5 a s / h) bytes.

  There are s tokens in a row, b rows, h numbers in a state, and a heads.
  """
  model, plan = make_model_and_plan()
  # Here s = 512, b = 16, h = 1024 and a = 16; there are 24 layers.
  expected_bytes = 512 * 16 * 1024 * (34 + 5 * 16 * 512 / 1024) * 24
  assert memory.activation_bytes(model, plan[1], mesh) == expected_bytes
  model, plan = make_model_and_plan(dtype="float32")
  assert memory.activation_bytes(model, plan[1], mesh) == 2 * expected_bytes


def test_a_kernel_keeps_no_scores(mesh, with_kernel):
  model, plan = make_model_and_plan()
  # The formula without its second term, which counts the scores.
  expected_bytes = 512 * 16 * 1024 * 34 * 24
  assert memory.activation_bytes(model, plan[1], mesh) == expected_bytes


@pytest.mark.parametrize("gib, expected_remat", [(16, True), (32, False)])
def test_the_largest_phase_decides(mesh, monkeypatch, gib, expected_remat):
  """The phase of 512 tokens needs 13.9 GiB, and that of 128 needs 2.1 GiB."""
  monkeypatch.setattr(memory, "device_memory", lambda device: gib * GIB)
  model, plan = make_model_and_plan()
  assert memory.choose_remat(model, plan, mesh) is expected_remat
  assert memory.choose_remat(model, plan[:1], mesh) is False


def test_a_setting_is_kept_and_unknown_memory_means_remat(mesh, monkeypatch):
  monkeypatch.setattr(memory, "device_memory", lambda device: None)
  model, plan = make_model_and_plan()
  assert model.remat is None
  assert memory.choose_remat(model, plan, mesh) is True
  model, plan = make_model_and_plan(remat=False)
  assert memory.choose_remat(model, plan, mesh) is False


def test_memory_of_tpus_is_known_by_their_kind():
  class Device:
    device_kind = "TPU v5 lite"

  assert memory.device_memory(Device()) == 16 * GIB
