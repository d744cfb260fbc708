#!/usr/bin/env python3
"""Trains small tokenizers with Hugging Face's tokenizers and sentencepiece, and writes what they
make of a text.

    tests/golden/make_tokenizers.py CORPUS OUT
        CORPUS: a text in English of some 100 kB or more

OUT (tests/golden/tokenizers) gets texts.bin, some thirty texts that all share, and a folder for
each tokenizer: its file, and expected.json with the ids of each text and what they are decoded to.
Needs: pip install tokenizers sentencepiece
"""

import json
import sys
from pathlib import Path

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CODE = (
    """def f(x_1, *args):\n\treturn {"a": [x_1**2 + 0x1F, None], 'b': f"{x_1!r:>8}"}  # don't\n"""
    "\n\n    if (a[i] != b->c && !d) { ++i; }\r\n"
)
SCRIPTS = (
    "Grüße aus Köln, l’été à Paris; naïve café. Привет, как дела? 你好，世界！こんにちは、カタカナ。안녕하세요 세계. مرحبا "
    "بالعالم "
    "שלום עולם नमस्ते दुनिया สวัสดีชาวโลก Ελληνικά ΣΊΣΥΦΟΣ İstanbul ǅ ﬁ ① Ⅷ ½ ² １２３ ﾊﾝｶｸ e\u0301 "
    "\u1100\u1161\u11a8 \u212b"
)
EMOJI = "😀👍🏽👨‍👩‍👧‍👦🇩🇪❤️ ok🙂\u200d\u2764 𝔘𝔫𝔦 𐍈"
SPACES = (
    "a  b   c\t\td \n \n\n  e\u00a0f\u2003g\u3000h \r\n\r\n   \u180e i\u200bj\x85k\u2028l"
    + " " * 40
    + "m\n"
    + "\n" * 9
)
CASES = [
    "I'M you'LL it'S 'twas don't O'Reilly ſ'ſ",
    "3.14159 1,000,000 2026-11-23 0xdeadbeef 1234567",
    "HTTPServer XMLHttpRequest iPhone McDonald",
    "https://example.org/a/b?c=d&e=%20#f //// ///\n/",
    "...!!! ??? --- ___ === <<>> @#$%^&*()",
    "<|endoftext|>text<|endoftext|> [mark]  x[mark]y",
    "<s>hello</s> </s>",
    "x",
    " ",
    "  ",
    "\n",
    "",
    "a" * 98,
    "▁low▁line ▁",
    "\u0000\u0001\u007f\ufeff",
    "Ġ Ċ Ā",
]
MALFORMED = [
    b"ok \xff\xfe bad", b"\xe2\x82", b"\xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf", b"caf\xc3",
    b"\xf4\x90\x80\x80 a\x80",
]

SPECIALS = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("[mark]", lstrip=True, rstrip=True, normalized=False),
    AddedToken("Server", single_word=True, normalized=True),
]


def texts(corpus):
    lines = [CODE, SCRIPTS, EMOJI, SPACES, *CASES, corpus[5000:7000]]
    return [line.encode() for line in lines] + MALFORMED


def byte_level(pattern, normalizer=None, ignore_merges=False, prefix_space=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=pattern is None)
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    else:
        tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    return tokenizer, trainer


def llama3():
    tokenizer, trainer = byte_level(LLAMA3, ignore_merges=True)
    return tokenizer, trainer


def llama2():
    """Prepend and Replace, no pre-tokenizer, byte fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"),
        normalizers.Replace(" ", "▁"),
    ])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for training only
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    return tokenizer, trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, show_progress=False
    )


def metaspace(scheme):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(),
        normalizers.Replace(Regex(" {2,}"), " "),
        normalizers.Strip(True, False),
    ])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=700,
        unk_token="<unk>",
        special_tokens=["<unk>", "<s>", "</s>"],
        show_progress=False,
    )


def mixed():
    """Pre-tokenizers that no family above has."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
    ])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Digits(individual_digits=True),
    ])
    return tokenizer, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], show_progress=False
    )


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )


def words():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer, trainers.WordLevelTrainer(
        vocab_size=700, special_tokens=["[UNK]"], show_progress=False
    )


KINDS = {
    "gpt2": lambda: byte_level(None),
    "gpt2-prefix": lambda: byte_level(None, prefix_space=True),
    "llama3": llama3,
    "qwen2": lambda: byte_level(QWEN2, normalizers.NFC()),
    "tekken": lambda: byte_level(TEKKEN, ignore_merges=True),
    "llama2": llama2,
    "metaspace-always": lambda: metaspace("always"),
    "metaspace-first": lambda: metaspace("first"),
    "unigram": unigram,
    "mixed": mixed,
    "wordpiece": wordpiece,
    "wordlevel": words,
}
OLD_MERGES = {"gpt2", "llama2"}  # written as "a b", as tokenizers before 0.20 did


def write_expected(folder, encode, decode, lines):
    entries = []
    for line in lines:
        ids = encode(line.decode("utf-8", "replace"))
        entries.append({"ids": ids, "text": decode(ids)})
    (folder / "expected.json").write_text(
        json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + "\n"
    )


def make_hugging_face(name, corpus, lines, out):
    tokenizer, trainer = KINDS[name]()
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True) + [SCRIPTS, CODE] * 3, trainer)
    if name == "llama2":
        tokenizer.pre_tokenizer = None
        state = json.loads(tokenizer.to_str())
        state["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens(SPECIALS[1:])
    tokenizer.add_special_tokens(SPECIALS[:1])
    if name == "llama3":
        end = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)])
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    state = json.loads(tokenizer.to_str())
    if name in OLD_MERGES:
        state["model"]["merges"] = [" ".join(merge) for merge in state["model"]["merges"]]
    (folder / "tokenizer.json").write_text(
        json.dumps(state, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    write_expected(
        folder,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        tokenizer.decode,
        lines,
    )


def make_trained(lines, out):
    """A small vocabulary trained on three of the texts."""
    tokenizer, _ = byte_level(LLAMA3)
    trainer = trainers.BpeTrainer(
        vocab_size=450,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["".join(lines[i].decode() for i in (0, 1, 20)) + "\n"], trainer)
    folder = out / "trained"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    write_expected(folder, lambda text: tokenizer.encode(text).ids, tokenizer.decode, lines)


def make_sentencepiece(name, kind, corpus, lines, out, **options):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.splitlines()),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=900,
        model_type=kind,
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
        **options,
    )
    (folder / "tokenizer.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    write_expected(folder, processor.encode, processor.decode, lines)


def main():
    corpus = Path(sys.argv[1]).read_text()[:200_000]
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    lines = texts(corpus)
    # Each text as its length and its bytes: they hold every kind of line end.
    (out / "texts.bin").write_bytes(
        b"".join(len(line).to_bytes(4, "little") + line for line in lines)
    )
    for name in KINDS:
        make_hugging_face(name, corpus, lines, out)
    make_trained(lines, out)
    for kind in ("bpe", "unigram"):
        make_sentencepiece(f"sentencepiece-{kind}", kind, corpus, lines, out)
    # As Llama 2's: spaces stay as they are.
    make_sentencepiece(
        "sentencepiece-user",
        "bpe",
        corpus,
        lines,
        out,
        user_defined_symbols=["[mark]", "▁▁▁▁", "HTTP"],
        remove_extra_whitespaces=False,
    )


if __name__ == "__main__":
    main()
