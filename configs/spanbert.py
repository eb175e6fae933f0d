r"""SpanBERT: masked spans and their boundaries.

Paper: Joshi et al. 2020, "SpanBERT: Improving Pre-training by Representing and
  Predicting Spans", sections 3 and 4.2. "README" means the
  README of facebookresearch/SpanBERT.
Settings: a batch has 256 sequences of 512 tokens. A run has 2,400,000 steps.
  The optimizer is Adam with a peak rate of 1e-4, a warm-up over 10,000 steps,
  linear decay, epsilon 1e-8, weight decay 0.01 on every parameter and a
  clipping norm of 1.0. Dropout is 0.1.
  15% of the tokens are masked, in spans of whole words. The length of a span is
  geometric with p 0.2 and at most 10. All tokens of a span are replaced in the
  same way. The loss is the sum of the masked LM's loss and the loss of the
  boundary objective. The boundary head has a vector of 200 numbers for each of
  15 positions in a span. A row has sentences of one document, and there is no
  next sentence prediction (section 3; facebookresearch/SpanBERT
  pretraining/README.md, the command).
  base has the settings of large, because no settings of base are published.
Data: books and Wikipedia, cased; BERT's vocabulary (section 4.2).

  name   layers x width, heads  parameters (README)
  base       12 x 768,  12         110M
  large      24 x 1024, 16         340M

  F1 in % (README). For SQuAD, "dev" is the development set and "test" the test
  set:
         SQuAD 1.1    SQuAD 2.0   OntoNotes coreference  TACRED
  base   92.4 dev     83.6 dev           77.4             68.2
  large  94.6 test    88.7 test          79.6             70.8
  Original hardware: large had 32 V100 for 15 days (section 4.2). The hardware
  of base is not published.

Command:
  bert_jax train --config configs/spanbert.py:base \
    --workdir runs/spanbert_base --config.data.path=PREPARED_FOLDER
For TPU slices and several hosts, see docs/hosts.md and docs/tpu.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import (
  MASKED,
  PRETRAIN,
  check_name,
  merge,
  steps_and_peak,
  unset,
)
from bert_jax.configs.roberta import FAIRSEQ
from ml_collections import ConfigDict

FAMILY_SETTINGS = dict(
  model=dict(family="bert"),
  objective=dict(pairs=False, span_boundary=True),
  data=dict(
    builder="doc_sentences",
    masking="span",
    replacement="unigram",
    count="ceil",
  ),
  schedule=dict(name="linear"),
)
PUBLISHED_SETTINGS = dict(
  data=dict(length=512, max_predictions=77, cased=True),
  optimizer=dict(epsilon=1e-8),
)


def get_config(name: str = "base") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  is_large = check_name(name, ("base", "large")) == "large"
  variant = dict(
    model=dict(variant=name, remat=unset(bool) if is_large else False)
  )
  steps_and_rate = steps_and_peak(2_400_000, 10_000, peak=1e-4)
  return merge(
    PRETRAIN,
    MASKED,
    FAMILY_SETTINGS,
    FAIRSEQ,
    PUBLISHED_SETTINGS,
    steps_and_rate,
    variant,
  )
