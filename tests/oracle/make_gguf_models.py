"""Rewrites tests/fixtures/gguf/: tiny GGUF models of every architecture that is imported, and llama.cpp's logits for them.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36 safetensors numpy
    python make_gguf_models.py

Weights are random float32, so that llama.cpp multiplies in float32. NAME.safetensors holds `tokens` int32 [T] and `logits`
float32 [T, V] of one forward pass, and says in its metadata where they come from.
"""

import json
import math
import pathlib
import string

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import save_file

SEED = 21
OUT = pathlib.Path(__file__).parent.parent / "fixtures/gguf"
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD, TOKENS = 32, 48, 2, 1, 16, 24
VOCABULARY = ["<|end|>", "Ċ", "in", *string.ascii_letters, *string.digits, *string.punctuation]
MODELS = {
    "llama": {}, "llama-biases": {"biases": "qkvo"}, "llama-linear": {"linear": 4.0}, "llama-llama3": {"llama3": 8.0},
    "qwen2": {"biases": "qkv", "tied": True}, "qwen3": {"head_norms": True}, "gemma": {"tied": True},
    "gemma2": {"tied": True, "post_norms": True, "window": 64},
    "gemma3": {"tied": True, "post_norms": True, "head_norms": True, "window": 8, "layers": 7},
}  # fmt: skip


def write(path, name, biases="", linear=None, llama3=None, tied=False, head_norms=False, post_norms=False, window=None, layers=2):
    rng = np.random.default_rng(SEED)
    architecture = name.split("-")[0]
    file = gguf.GGUFWriter(path, architecture)
    file.add_context_length(128)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(layers)
    file.add_feed_forward_length(INTERMEDIATE)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(20000.0)
    if architecture == "llama":
        file.add_rope_dimension_count(HEAD)
    if linear:
        file.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        file.add_rope_scaling_factor(linear)
    if window:
        file.add_sliding_window(window)
    if architecture == "gemma2":
        file.add_attn_logit_softcapping(50.0)
        file.add_final_logit_softcapping(30.0)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(VOCABULARY)
    file.add_token_types([3] + [1] * (len(VOCABULARY) - 1))
    file.add_token_merges(["i n"])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)

    def matrix(tensor, rows, columns, scale=None):
        values = rng.normal(size=(rows, columns)) * (scale or columns**-0.5)
        file.add_tensor(tensor, values.astype(np.float32))

    def vector(tensor, size, mean):
        file.add_tensor(tensor, (mean + 0.3 * rng.normal(size=size)).astype(np.float32))

    matrix("token_embd.weight", len(VOCABULARY), HIDDEN, 1.0)
    vector("output_norm.weight", HIDDEN, 1)
    if not tied:
        matrix("output.weight", len(VOCABULARY), HIDDEN)
    if llama3:
        wavelengths = [2 * math.pi * 20000 ** (2 * pair / HEAD) for pair in range(HEAD // 2)]
        smooth = [min(max((8192 / length - 1) / 3, 0), 1) for length in wavelengths]
        file.add_tensor("rope_freqs.weight", np.array([1 / ((1 - s) / llama3 + s) for s in smooth], np.float32))
    for layer in range(layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", HIDDEN, 1)
        vector(block + "ffn_norm.weight", HIDDEN, 1)
        sizes = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD, "o": HIDDEN}
        for part, rows in sizes.items():
            tensor = block + ("attn_output" if part == "o" else f"attn_{part}")
            matrix(tensor + ".weight", rows, HEADS * HEAD if part == "o" else HIDDEN)
            if part in biases:
                vector(tensor + ".bias", rows, 0)
        matrix(block + "ffn_gate.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_up.weight", INTERMEDIATE, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, INTERMEDIATE)
        if head_norms:
            vector(block + "attn_q_norm.weight", HEAD, 1)
            vector(block + "attn_k_norm.weight", HEAD, 1)
        if post_norms:
            vector(block + "post_attention_norm.weight", HIDDEN, 1)
            vector(block + "post_ffw_norm.weight", HIDDEN, 1)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def main():
    OUT.mkdir(exist_ok=True)
    tokens = np.random.default_rng(SEED).integers(2, len(VOCABULARY), TOKENS)
    for name, options in MODELS.items():
        path = str(OUT / f"{name}.gguf")
        write(path, name, **options)
        model = llama_cpp.Llama(
            path, n_ctx=64, logits_all=True, verbose=False, n_threads=1, flash_attn=False,
            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
        )  # fmt: skip
        model.eval(tokens.tolist())
        arrays = {"tokens": tokens.astype(np.int32), "logits": np.array(model.scores[:TOKENS], np.float32)}
        made_by = {"script": "make_gguf_models.py", "seed": str(SEED), "llama-cpp-python": llama_cpp.__version__}
        save_file(arrays, OUT / f"{name}.safetensors", made_by | {"options": json.dumps(options)})


if __name__ == "__main__":
    main()
