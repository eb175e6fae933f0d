"""Text to ids and back: tokenizers of every kind, opened, written and trained.

This room imports no other room of the package, only `files.py` and
`messages.py` of the package's root. It uses the packages etils, numpy and
tokenizers. It imports sentencepiece only inside functions.

Start with `vocabulary.py`, which has the class of all kinds of tokenizers, and
`open_vocabulary.load`, which opens a tokenizer from any path.

* `vocabulary.py`: `Vocabulary` maps text to ids and offsets, and ids to text.
* `wordpiece.py`: BERT's WordPiece, by Hugging Face's or the original rules.
* `bpe.py`: byte-level BPE (GPT-2, RoBERTa) and GPT-1's BPE.
* `unigram.py`: SentencePiece models (ALBERT), and the format of their files.
* `fairseq_pieces.py`: SentencePiece models with fairseq's ids (XLM-R).
* `words.py`: whole words (ELMo).
* `characters.py`: words as bytes (ELMo's input).
* `tokenizer_json.py`: Hugging Face's `tokenizer.json` of any kind.
* `cleaning.py`: how text is cleaned: capitals, accents, Unicode.
* `added_tokens.py`: tokens added at the end of a vocabulary.
* `token_files.py`: the file of tokens that a user adds by `--add-tokens`.
* `file_contents.py`: decodes and parses files that are already in memory.
* `open_vocabulary.py`: opens and writes the files of a tokenizer.
* `model_tokenizer.py`: the tokenizer that comes with a converted model.
* `train_vocabulary.py`: learns a vocabulary from texts.
"""
