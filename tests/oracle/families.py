"""Tiny configurations of every model family, and the variants of each that parity compares.

A variant is a complete model: a configuration, a weight dtype and a quantization. Sizes are small and
pairwise distinct where the architecture allows it, so that a swapped axis can't go unnoticed. In-dimensions are
multiples of 32; where a group of 64 or 128 does not divide one, mlx-lm leaves that layer plain, which is a case too.
"""

from dataclasses import dataclass, field, replace
from typing import Any

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 101,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}

# What makes every in-dimension a multiple of 128 and the head a size that GPU kernels support.
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 131,
}
# The same for families whose head size is hidden_size / heads.
WIDE_SQUARE = {k: v for k, v in WIDE.items() if k != "head_dim"} | {"hidden_size": 384}


@dataclass(frozen=True)
class Quant:
    """An affine quantization as mlx-lm's `quantize_model` makes it.

    `overrides` maps a part of a layer's path to its own bits and group, or to None to leave it plain;
    the first key that matches decides.
    """

    bits: int
    group_size: int
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One model of a family: changes to its base configuration, weight dtype, quantization."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    quant: Quant | None = None
    plans: tuple[str, ...] = ("whole", "chunks")
    # Plans whose results are committed as a fixture.
    committed: tuple[str, ...] = ()
    # Factors on weights whose path contains the key, to reach values that ordinary weights don't.
    factors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    name: str
    config: dict[str, Any]
    wide: dict[str, Any]
    # mlx-lm gives this family batches with right results.
    batches: bool = True
    # Standard variants that mlx-lm can't run on this device.
    missing: tuple[str, ...] = ()
    # Names of the variants below whose results are committed.
    committed: tuple[str, ...] = ("f32", "bf16", "q4g32", "mixed")
    # Plans of the plain float32 variant that are committed; of the other committed ones it is `whole`.
    committed_plans: tuple[str, ...] = ("chunks",)
    extra: tuple[Variant, ...] = ()

    def variants(self) -> list[Variant]:
        standard = [
            v if v.name in self.committed else replace(v, committed=())
            for v in standard_variants(self)
            if v.name not in self.missing
        ]
        return [*standard, *self.extra]


MIXED = Quant(
    4,
    32,
    {
        "lm_head": (8, 32),
        "embed_tokens": (8, 32),
        "layers.0": (8, 32),
        "layers.1.self_attn.o_proj": (5, 32),
        "layers.1.mlp.down_proj": None,
        "layers.1.mlp": (6, 32),
    },
)
PROMPTS = ("whole", "chunks")
SINGLE = (*PROMPTS, "decode", "short")
BATCHES = ("batch-merge", "batch-padded")


def standard_variants(family: Family) -> list[Variant]:
    """Dtypes and quantizations that every family is compared in."""
    every = (*SINGLE, "grow", *(BATCHES if family.batches else ()))
    wide = family.wide
    return [
        Variant("f32", plans=every, committed=family.committed_plans),
        Variant("bf16", dtype="bfloat16", plans=every, committed=("whole",)),
        Variant("f16", dtype="float16", plans=every),
        Variant("q4g32", quant=Quant(4, 32), plans=every, committed=("whole",)),
        Variant("mixed", quant=MIXED, committed=("whole",)),
        Variant("q4g32-bf16", dtype="bfloat16", quant=Quant(4, 32), plans=every),
        Variant("q4g32-f16", dtype="float16", quant=Quant(4, 32)),
        Variant("mixed-f16", dtype="float16", quant=MIXED),
        Variant("q8g32", quant=Quant(8, 32)),
        Variant("q4g64", wide, quant=Quant(4, 64)),
        Variant("q8g64", wide, quant=Quant(8, 64)),
        Variant("q4g128", wide, quant=Quant(4, 128)),
        Variant("q8g128", wide, quant=Quant(8, 128)),
        Variant("q4g64-bf16", wide, dtype="bfloat16", quant=Quant(4, 64)),
        Variant("q8g64-f16", wide, dtype="float16", quant=Quant(8, 64)),
        # In-dimensions that the group does not divide stay plain.
        Variant("q4g64-partial", quant=Quant(4, 64)),
    ]


def rope(**scaling: Any) -> dict[str, Any]:
    return {"num_hidden_layers": 1, "intermediate_size": 32, "rope_scaling": scaling}


LLAMA3_ROPE = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
YARN_ROPE = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
YARN_MSCALE_ROPE = rope(
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=128,
    beta_fast=16,
    beta_slow=2,
    mscale=0.707,
    mscale_all_dim=0.5,
)
BIASES = {"attention_bias": True, "mlp_bias": True}
UNTIED = {"tie_word_embeddings": False}
SLIDING = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 8,
}
# Heads of 32, which a quantized cache can split in groups of 32.
KV = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
# The same for families whose head size is hidden_size / heads.
KV_SQUARE = {k: v for k, v in KV.items() if k != "head_dim"} | {"hidden_size": 128}
QUANTIZED_CACHES = ("kv8", "kv4")


def quantized_caches(changes: dict[str, Any]) -> tuple[Variant, ...]:
    """Caches that are quantized while decoding. mlx-lm has none for rings, nor for gemma 2's own attention."""
    return (
        Variant("kv", changes, plans=QUANTIZED_CACHES),
        Variant("kv-bf16", changes, dtype="bfloat16", plans=QUANTIZED_CACHES),
        Variant("kv-q4g32", changes, quant=Quant(4, 32), plans=QUANTIZED_CACHES),
    )

LLAMA_VARIANTS = (
    Variant("untied", UNTIED, plans=SINGLE),
    Variant("untied-q4g32", UNTIED, quant=Quant(4, 32)),
    Variant("mha", {"num_key_value_heads": 6}),
    Variant("one-kv-head", {"num_key_value_heads": 1}),
    Variant("biases", BIASES, plans=SINGLE),
    Variant("biases-bf16", BIASES, dtype="bfloat16", committed=("whole",)),
    Variant("biases-q4g32", BIASES, quant=Quant(4, 32)),
    Variant("derived-head-dim", {"head_dim": None, "hidden_size": 96}),
    Variant("traditional-rope", {"rope_traditional": True}),
    # The shape of SmolLM2: three query heads a key head, larger theta.
    Variant("smollm2", {"hidden_size": 144, "head_dim": None, "num_attention_heads": 9, "rope_theta": 100000.0}),
    Variant("rope-linear", rope(type="linear", factor=4.0), plans=SINGLE, committed=("whole",)),
    Variant("rope-llama3", LLAMA3_ROPE, plans=SINGLE, committed=("whole",)),
    Variant("rope-llama3-f16", LLAMA3_ROPE, dtype="float16"),
    # Positions run past max_position_embeddings, where the base starts to grow.
    Variant(
        "rope-dynamic",
        {**rope(type="dynamic", factor=2.0), "max_position_embeddings": 24},
        plans=SINGLE,
        committed=PROMPTS,
    ),
    Variant("rope-yarn", YARN_ROPE, plans=SINGLE, committed=("whole",)),
    Variant("rope-yarn-mscale", YARN_MSCALE_ROPE, dtype="bfloat16", committed=("whole",)),
    Variant("sliding", SLIDING, plans=(*SINGLE, "grow", *BATCHES)),
    *(replace(v, committed=v.plans if v.name == "kv" else ()) for v in quantized_caches(KV)),
)

MOE = {
    "moe_intermediate_size": 32,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}

GEMMA = {
    **LLAMA,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-6,
}
GEMMA_WIDE = {**WIDE, "num_key_value_heads": 1}

FAMILIES = {
    f.name: f
    for f in [
        Family("llama", LLAMA, WIDE, committed_plans=(*PROMPTS, "decode", *BATCHES), extra=LLAMA_VARIANTS),
        Family(
            "mistral",
            {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], **UNTIED, **SLIDING},
            WIDE,
            committed=("f32",),
            committed_plans=("chunks", "short"),
            # Without layer_types mlx-lm attends to everything, whatever sliding_window says.
            extra=(
                Variant("window-alone", {"layer_types": None}, plans=SINGLE),
                *quantized_caches({**KV, "layer_types": None}),
            ),
        ),
        Family(
            "qwen2",
            {
                **LLAMA,
                "model_type": "qwen2",
                "architectures": ["Qwen2ForCausalLM"],
                "hidden_size": 96,
                "intermediate_size": 64,
                "head_dim": None,
                "rope_theta": 1000000.0,
            },
            WIDE_SQUARE,
            extra=(
                Variant("untied", UNTIED),
                Variant("rope-yarn", YARN_ROPE, dtype="bfloat16"),
                Variant("biases-q4g32-bf16", quant=Quant(4, 32), dtype="bfloat16"),
                *quantized_caches(KV_SQUARE),
            ),
        ),
        Family(
            "qwen3",
            {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_theta": 1000000.0},
            WIDE,
            extra=(
                Variant("untied", UNTIED),
                Variant("rope-yarn", YARN_ROPE),
                Variant(
                    "rope-parameters",
                    {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
                ),
                *quantized_caches(KV),
            ),
        ),
        Family(
            "qwen3_moe",
            {**LLAMA, **MOE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **UNTIED},
            {**WIDE, "moe_intermediate_size": 128},
            committed_plans=(*PROMPTS, *BATCHES),
            # MLX's gather_mm is float32 only on a CPU.
            missing=("bf16", "f16"),
            extra=(
                Variant("raw-scores", {"norm_topk_prob": False}, plans=(*PROMPTS, *BATCHES)),
                Variant("sparse-step", {"decoder_sparse_step": 2, "num_hidden_layers": 3}),
                Variant("mlp-only", {"mlp_only_layers": [0]}, quant=Quant(4, 32)),
                # One expert a token: sorting starts at 64 tokens, which only `grow` reaches.
                Variant("one-expert", {"num_experts_per_tok": 1}, plans=("whole", "grow")),
                *(replace(v, quant=Quant(4, 32)) if "bf16" in v.name else v for v in quantized_caches(KV)),
            ),
        ),
        Family(
            "gemma",
            {**GEMMA, "model_type": "gemma", "architectures": ["GemmaForCausalLM"]},
            GEMMA_WIDE,
            committed=("f32", "bf16", "q4g32"),
            extra=(Variant("mha", {"num_key_value_heads": 5}), *quantized_caches({"num_hidden_layers": 1})),
        ),
        Family(
            "gemma2",
            {
                **GEMMA,
                "model_type": "gemma2",
                "architectures": ["Gemma2ForCausalLM"],
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 7.0,
            },
            {**WIDE, "num_key_value_heads": 2},
            batches=False,
            committed=("f32", "bf16", "q4g32"),
            extra=(Variant("mha", {"num_key_value_heads": 6}), Variant("mha-bf16", {"num_key_value_heads": 6}, dtype="bfloat16")),
        ),
        Family(
            "gemma3_text",
            {
                **GEMMA,
                "model_type": "gemma3_text",
                "architectures": ["Gemma3ForCausalLM"],
                "num_hidden_layers": 3,
                "query_pre_attn_scalar": 24,
                "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0,
                "sliding_window": 8,
                "sliding_window_pattern": 2,
            },
            GEMMA_WIDE,
            committed_plans=(*SINGLE, *BATCHES),
            extra=(
                Variant("untied", UNTIED),
                Variant("rope-linear", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, plans=SINGLE),
                # Residuals leave float16's range and are clipped.
                Variant("clipped-f16", dtype="float16", factors={"post_attention_layernorm": 5e4}, committed=("whole",)),
                Variant("all-global", {"sliding_window_pattern": 1}, plans=SINGLE),
                Variant("two-kv-heads", {"num_attention_heads": 6, "num_key_value_heads": 2}, plans=(*SINGLE, *BATCHES)),
            ),
        ),
        Family(
            "phi3",
            {
                **LLAMA,
                "model_type": "phi3",
                "architectures": ["Phi3ForCausalLM"],
                "hidden_size": 96,
                "intermediate_size": 64,
                "head_dim": None,
                "original_max_position_embeddings": 128,
                **UNTIED,
            },
            WIDE_SQUARE,
            committed=("f32", "bf16", "q4g32"),
            extra=(
                Variant("tied", {"tie_word_embeddings": True}),
                Variant(
                    "longrope",
                    {
                        "num_hidden_layers": 1,
                        "rope_scaling": {
                            "type": "longrope",
                            "short_factor": [1.0] * 8,
                            "long_factor": [1.0, 1.1, 1.3, 1.7, 2.2, 3.0, 4.5, 6.0],
                        },
                    },
                    plans=SINGLE,
                    committed=("whole",),
                ),
                Variant(
                    "longrope-partial-bf16",
                    {
                        "partial_rotary_factor": 0.75,
                        "rope_scaling": {
                            "type": "su",
                            "short_factor": [1.0] * 6,
                            "long_factor": [1.0, 1.1, 1.3, 1.7, 2.2, 3.0],
                        },
                    },
                    dtype="bfloat16",
                ),
                Variant("rope-linear", {"rope_scaling": {"type": "linear", "factor": 4.0, "long_factor": []}}),
                Variant("partial-rotary", {"partial_rotary_factor": 0.5}, plans=SINGLE),
                *quantized_caches(KV_SQUARE),
            ),
        ),
    ]
}
