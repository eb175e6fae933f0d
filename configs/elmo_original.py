"""ELMo, the original size: two bidirectional LSTM layers over characters.

Paper: Peters et al. 2018, sections 3.4 and 4; allenai/bilm-tf README.md,
  bin/train_elmo.py, bilm/training.py, bilm/data.py.
Sizes: characters of 16, 2,048 filters of widths 1 to 7, 2 highways, words of
  512; each direction 2 layers of 4,096 cells, projected to 512; a softmax of
  793,471 words.
Text: the 1B Word Benchmark, 768,648,884 words, split before it comes.
Batch: 384 streams of text (128 on each of 3 GPUs), 20 words of each a step,
  states go on; 10 epochs.
Optimizer: Adagrad, rate 0.2 for good, accumulators begin at 1; the gradient is
  that of the loss times 20, clipped by its global norm, 10.
Original hardware: 3 GTX 1080, two weeks.
Published: perplexity 39.7, forward and backward averaged.
Differences: documents are read in the order of the prepared folder, which the
  released program shuffles; both directions of a stream read the same text, of
  different files there. Held-out perplexity is of windows without state.
Command:
  python -m bert_jax.cli.train_vocab --kind words --rules spaces --size 793471 \\
    --format bert --input 'training-*/news*' --output words.txt
  python -m bert_jax.cli.prepare --rules spaces --vocab words.txt \\
    --format bert --input 'training-*/news*' --output data/1b
  python -m bert_jax.cli.train --config configs/elmo_original.py \\
    --workdir runs/elmo_original --config.data.path=data/1b
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe."""
  return ConfigDict(
    dict(
      seed=0,
      # 10 epochs of 768,648,884 // (384 * 20) steps.
      total_steps=1_000_840,
      batch_size=384,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="elmo",
        variant="original",
        hidden=512,
        cell=4096,
        num_layers=2,
        highways=2,
        clip=3.0,
        vocab_size=placeholder(int),  # that of the data
        dropout=0.1,
        dtype="bfloat16",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="elmo", negatives=8192, stateful=True),
      data=dict(
        path="",
        builder="elmo",
        length=20,
        streams=384,
        cased=True,
      ),
      optimizer=dict(
        name="adagrad",
        initial_accumulator=1.0,
        gradient_scale=20.0,
        clip_norm=10.0,
      ),
      schedule=dict(name="constant", peak=0.2, warmup=0.0),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=4096),
      checkpoint=dict(every=10_000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
