"""Uses of a trained model, as functions for notebooks and for the commands.

Imports `devices`, `text`, `models`, `weights`, `tasks`, `training` and the
package's root; of packages jax, flax, optax and numpy (h5py in functions).

Start with `fill_mask.py`, the smallest use; `weights.load.open_model` opens the
model that these functions take.

* `fill_mask.py`: fills the masks of texts.
* `predict.py`: predictions of a fine-tuned model, and their form as JSON.
* `serve.py`: predicts for lines as they arrive.
* `evaluate.py`: scores a model on a split of a task.
* `export.py`: a fine-tuned model as one file, with its compiled program.
* `features.py`: vectors of texts from a frozen encoder.
* `feature_files.py`: these vectors in a file: JSONL, npz, HDF5.
* `text_batches.py`: texts as tokens, and tokens in batches of like length.
* `likelihood.py`: how likely a model finds a text; blanks filled.
* `likelihood_tests.py`, `blimp.py`: tests of a model by likelihoods.
* `augmentation.py`, `augment_task.py`: more examples for a task, as TinyBERT's.
* `word_vectors.py`: vectors in GloVe's format, and the nearest words.
* `bilstm_tagger.py`: a tagger on frozen features, BERT's experiment.
"""
