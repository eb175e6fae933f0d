r"""ELMo: two bidirectional LSTM layers that read characters.

Paper: Peters et al. 2018, sections 3.4 and 4; allenai/bilm-tf README.md,
  bin/train_elmo.py, bilm/training.py, bilm/data.py.
original: a character has a vector of 16 numbers. There are 2,048 filters of
  widths 1 to 7 and 2 highway layers, and a word's vector has 512 numbers. Each
  direction has 2 layers of 4,096 cells, whose output is projected to 512
  numbers. The softmax is over 793,471 words.
Text: the 1B Word Benchmark, 768,648,884 words, published as separate words.
Batch: 384 streams of text (128 on each of 3 GPUs). Each step reads 20 words of
  each stream, and begins with the last states of the step before. A run has 10
  epochs.
Optimizer: Adagrad with a constant rate of 0.2; the accumulators begin at 1. The
  gradient is the gradient of 20 times the loss, clipped at a global norm of 10.
Original hardware: 3 GTX 1080 for two weeks.
Published score: perplexity 39.7, the average of forward and backward.
Differences: the released program shuffles documents, and the two directions
  read different files. Here documents are read in the order of the prepared
  folder, and both directions of a stream read the same text. The held-out
  perplexity is measured on windows; each window begins with zero states.
Command:
  bert_jax vocab --tokenizer words --rules spaces --size 793471 \
    --format bert --input 'training-*/news*' --output words.txt
  bert_jax prepare --rules spaces --vocab words.txt \
    --format bert --input 'training-*/news*' --output data/1b
  bert_jax train --config configs/elmo.py:original \
    --workdir runs/elmo_original --config.data.path=data/1b
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import PRETRAIN, check_name, merge, unset
from ml_collections import ConfigDict

# An LSTM has neither attention nor positions, so it has no settings for them.
FAMILY_SETTINGS = PRETRAIN | dict(
  model=dict(
    family="elmo",
    vocab_size=unset(int),  # from the vocabulary of the data
    num_layers=2,
    dropout=0.1,
    clip=3.0,
    dtype="bfloat16",
    unroll=4,
    remat=False,
  ),
  objective=dict(name="elmo"),
  data=dict(path="", builder="elmo", cased=True),
)
NUM_STREAMS = 384
WORDS_PER_ROW = 20
ORIGINAL = dict(
  total_steps=10 * (768_648_884 // (NUM_STREAMS * WORDS_PER_ROW)),  # 10 epochs
  batch_size=NUM_STREAMS,
  model=dict(variant="original", hidden=512, cell=4096, highways=2),
  objective=dict(negatives=8192, stateful=True),
  data=dict(length=WORDS_PER_ROW, streams=NUM_STREAMS),
  schedule=dict(name="constant", peak=0.2, warmup=0.0),
  evaluate=dict(examples=4096),
  checkpoint=dict(every=10_000),
)
ADAGRAD = dict(
  optimizer=dict(
    name="adagrad",
    initial_accumulator=1.0,
    gradient_scale=20.0,
    clip_norm=10.0,
  )
)


def get_config(name: str = "original") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  check_name(name, ("original",))
  return merge(FAMILY_SETTINGS | ADAGRAD, ORIGINAL)
