"""The tokenizer in a GGUF file's metadata, as the files that `tokenizers` and `transformers` read.

Only byte-level BPE (`tokenizer.ggml.model = "gpt2"`), and only pre-tokenizers whose rules are known here: a wrong rule
would tokenise almost everything right, and nobody would notice. The rules are those of llama.cpp
(`src/llama-vocab.cpp`). transformers' own conversion of a GGUF leaves them out (SmolLM2 splits digits off first).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posttrain.inference.import_errors import ModelSourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SUPPORTED_PRE = ("smollm", "gpt-2", "default", "llama-bpe")
_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")  # control tokens that end a text


def build_tokenizer(metadata: dict[str, Any], name: str) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    """(tokenizer, tokenizer_config.json, token ids `bos_token_id`, `eos_token_id` (list), `pad_token_id`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        raise ModelSourceError(
            f"{name}: tokenizer {model!r:.40} is not supported (only byte-level BPE, 'gpt2'); "
            "import a Hugging Face folder"
        )
    if pre not in SUPPORTED_PRE:
        raise ModelSourceError(
            f"{name}: pre-tokenizer {pre!r:.40} is not supported (only {', '.join(SUPPORTED_PRE)}); "
            "import a Hugging Face folder"
        )
    tokens, merges = _string_list(metadata, "tokens", name), _string_list(metadata, "merges", name)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelSourceError(
            f"{name}: {len(tokens) - len(vocabulary)} tokens of the vocabulary stand twice; use another file"
        )
    pairs = [_merge(line, vocabulary, name) for line in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = [1] * len(tokens) if kinds is None else list(map(int, kinds))
    if len(kinds) != len(tokens):
        raise ModelSourceError(f"{name}: {len(tokens)} tokens with {len(kinds)} token types; use another file")
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == _USER_DEFINED]
    )
    ids = _special_ids(metadata, tokens, kinds, name)
    bos = ids["bos_token_id"]
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")) and bos is not None
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A:0",
            pair=f"{tokens[bos]} $A:0 {tokens[bos]} $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata.get("llama.context_length", 0)) or None,
    }
    for role in ("bos", "unk", "pad"):
        if ids[f"{role}_token_id"] is not None:
            config[f"{role}_token"] = tokens[ids[f"{role}_token_id"]]
    if ids["eos_token_id"]:
        config["eos_token"] = tokens[ids["eos_token_id"][0]]
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return tokenizer, config, ids


def _string_list(metadata: dict[str, Any], part: str, name: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{part}")
    if not isinstance(value, list) or not value:
        raise ModelSourceError(f"{name}: holds no tokenizer ({part} are missing); import a Hugging Face folder")
    return value


def _merge(line: str, vocabulary: dict[str, int], name: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise ModelSourceError(f"{name}: the merge {line!r:.60} is not of this vocabulary; use another file")
    return left, right


def _special_ids(metadata: dict[str, Any], tokens: list[str], kinds: list[int], name: str) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("eot", "eot"), ("pad", "padding"), ("unk", "unknown")):
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is not None and not (isinstance(value, int) and 0 <= value < len(tokens)):
            raise ModelSourceError(
                f"{name}: {key}_token_id {value!r:.40} is not of the {len(tokens)} tokens; use another file"
            )
        ids[f"{role}_token_id"] = value
    named = [
        i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == _CONTROL and token in _ENDS
    ]
    first = [i for i in (ids.pop("eos_token_id"), ids.pop("eot_token_id")) if i is not None]
    ids["eos_token_id"] = list(dict.fromkeys(first + named))
    return ids


def _pre_tokenizer(pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    rules = [_LLAMA3] if pre == "llama-bpe" else [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in rules]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
