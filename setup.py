"""Package metadata: `pip install .` trains, `.[data]` adds seqio."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
  r'__version__ = "(.+)"', (ROOT / "bert_jax" / "__init__.py").read_text()
).group(1)

EXTRAS = {
  "data": [
    "seqio>=0.0.20",
    "tensorflow>=2.20",
    "tensorflow-text>=2.20",
    "tensorflow-datasets>=4.9.9",
    "importlib_resources",  # tensorflow-datasets needs it to build a data set
    "pyarrow",
    "zstandard",
    "datasketch>=2.0",  # prepare --near-duplicates
    "sentencepiece>=0.2.3",  # vocab --tokenizer unigram
  ],
  "convert": ["h5py"],  # ELMo's weights
  "export": ["flatbuffers"],  # what jax.export writes
  "finetune": ["scikit-learn", "scipy", "seqeval>=1.2"],  # official metrics
  "tpu": ["jax[tpu]"],
  "cuda": ["jax[cuda12]"],
  # The reference implementations that the parity tests compare with.
  "test": [
    "mypy",
    "pytest",
    "pytest-xdist",
    "ruff",
    "torch==2.13.0",
    "transformers>=5.0",
    "sentencepiece>=0.2.3",
  ],
}
PARTS = ("data", "convert", "finetune", "export")
EXTRAS["all"] = [*sum((EXTRAS[part] for part in PARTS), []), "tensorboard"]

setup(
  name="bert_jax",
  version=VERSION,
  description="Pre-train, fine-tune and study BERT-family encoders in JAX.",
  long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11,<3.14",
  packages=[
    *find_packages(include=["bert_jax", "bert_jax.*"]),
    "bert_jax.configs",
  ],
  package_dir={"bert_jax.configs": "configs"},
  package_data={"bert_jax": ["py.typed"]},
  install_requires=[
    # Kernels for GPUs are in Pallas' Triton form, which jax means to remove.
    "jax>=0.10,<0.13",
    "flax>=0.12",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12",
    "ml-collections>=1.1",
    "absl-py",
    "filelock>=3.20",
    "numpy>=2.0",
    "jaxtyping",
    "tensorboardX",
    "tokenizers>=0.22",
    "safetensors>=0.8",  # bfloat16 in numpy
    "sentencex>=1.0",
    "matplotlib",
  ],
  extras_require=EXTRAS,
  entry_points={"console_scripts": ["bert_jax = bert_jax.cli.main:main"]},
)
