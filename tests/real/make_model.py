"""Write a tiny random Llama model: ``python make_model.py DIRECTORY``, run by the Python that has vLLM.

Two layers, 1024 words, under 1 MB. What it says is noise; that it has to be computed, batched and kept in a
KV cache is real, and that is all the test is about.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file  # type: ignore[import-not-found]
from tokenizers import Tokenizer  # type: ignore[import-not-found]
from tokenizers.models import WordLevel  # type: ignore[import-not-found]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-not-found]

VOCABULARY = 1024
HIDDEN = 64
HEADS = 2  # vLLM's CPU attention takes no head smaller than 32
LAYERS = 2
FEED_FORWARD = 128
MAX_TOKENS = 32768
_SPECIAL = ("<unk>", "<s>", "</s>")


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    def ones() -> np.ndarray:
        return np.ones(HIDDEN, dtype=np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": ones(),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}.self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN)
        weights[f"{prefix}.mlp.gate_proj.weight"] = matrix(FEED_FORWARD, HIDDEN)
        weights[f"{prefix}.mlp.up_proj.weight"] = matrix(FEED_FORWARD, HIDDEN)
        weights[f"{prefix}.mlp.down_proj.weight"] = matrix(HIDDEN, FEED_FORWARD)
        weights[f"{prefix}.input_layernorm.weight"] = ones()
        weights[f"{prefix}.post_attention_layernorm.weight"] = ones()
    return weights


def _tokenizer() -> Tokenizer:
    # Whole words, so that every token is text of its own: with byte pieces, random tokens are no valid UTF-8
    # and a streaming server holds them back.
    words = [*_SPECIAL, *(f"w{number}" for number in range(len(_SPECIAL), VOCABULARY))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config(), indent=2))
    save_file(_weights(), directory / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": "<unk>",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "model_max_length": MAX_TOKENS,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
