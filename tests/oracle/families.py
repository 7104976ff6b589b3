"""Tiny configurations of every model family, and the variants of each that parity compares.

A variant is a complete model: a configuration, a weight dtype and a quantization. Sizes are small and
pairwise distinct where the architecture allows it, so that a swapped axis can't go unnoticed. In-dimensions are
multiples of 32; where a group of 64 or 128 does not divide one, mlx-lm leaves that layer plain, which is a case too.
"""

from dataclasses import dataclass, field
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
WIDE_SQUARE = {**WIDE, "hidden_size": 384}
del WIDE_SQUARE["head_dim"]


@dataclass(frozen=True)
class Quant:
    """An affine quantization as mlx-lm's `quantize_model` makes it.

    `overrides` maps a part of a layer's path to its own bits and group, or to None to leave it plain.
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


@dataclass(frozen=True)
class Family:
    name: str
    config: dict[str, Any]
    wide: dict[str, Any]
    # mlx-lm gives this family batches with right results.
    batches: bool = True
    extra: tuple[Variant, ...] = ()

    def variants(self) -> list[Variant]:
        return [*standard_variants(self), *self.extra]


MIXED = Quant(4, 32, {"lm_head": (8, 32), "embed_tokens": (8, 32), "layers.0": (8, 32), "layers.1.self_attn.k_proj": (5, 32), "layers.1.mlp.down_proj": None})
PROMPTS = ("whole", "chunks")
SINGLE = (*PROMPTS, "decode")
EVERY = (*SINGLE, "grow", "batch-merge", "batch-padded")


def standard_variants(family: Family) -> list[Variant]:
    """Dtypes and quantizations that every family is compared in."""
    every = EVERY if family.batches else tuple(p for p in EVERY if not p.startswith("batch"))
    wide = family.wide
    return [
        Variant("f32", plans=every, committed=tuple(p for p in every if p != "grow")),
        Variant("bf16", dtype="bfloat16", plans=every, committed=PROMPTS),
        Variant("f16", dtype="float16", plans=every),
        Variant("q4g32", quant=Quant(4, 32), plans=every, committed=PROMPTS),
        Variant("mixed", quant=MIXED, committed=PROMPTS),
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
    return {"num_hidden_layers": 1, "rope_scaling": scaling}


FAMILIES = {
    f.name: f
    for f in [
        Family(
            "llama",
            LLAMA,
            WIDE,
            extra=(
                Variant("untied", {"tie_word_embeddings": False}, plans=SINGLE),
                Variant("untied-q4g32", {"tie_word_embeddings": False}, quant=Quant(4, 32)),
                Variant("mha", {"num_key_value_heads": 6}),
                Variant("one-kv-head", {"num_key_value_heads": 1}),
                Variant("biases", {"attention_bias": True, "mlp_bias": True}, plans=SINGLE, committed=PROMPTS),
                Variant("biases-bf16", {"attention_bias": True, "mlp_bias": True}, dtype="bfloat16"),
                Variant("biases-q4g32", {"attention_bias": True, "mlp_bias": True}, quant=Quant(4, 32)),
                Variant("derived-head-dim", {"head_dim": None, "hidden_size": 96}),
                Variant("traditional-rope", {"rope_traditional": True}),
                Variant("rope-linear", rope(type="linear", factor=4.0), plans=SINGLE, committed=PROMPTS),
                Variant(
                    "rope-llama3",
                    rope(
                        rope_type="llama3",
                        factor=8.0,
                        low_freq_factor=1.0,
                        high_freq_factor=4.0,
                        original_max_position_embeddings=64,
                    ),
                    plans=SINGLE,
                    committed=PROMPTS,
                ),
                # Positions run past max_position_embeddings, where the base starts to grow.
                Variant(
                    "rope-dynamic",
                    {**rope(type="dynamic", factor=2.0), "max_position_embeddings": 24},
                    plans=SINGLE,
                    committed=PROMPTS,
                ),
                Variant(
                    "rope-yarn",
                    rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
                    plans=SINGLE,
                    committed=PROMPTS,
                ),
                Variant(
                    "rope-yarn-mscale",
                    rope(
                        rope_type="yarn",
                        factor=4.0,
                        original_max_position_embeddings=128,
                        beta_fast=16,
                        beta_slow=2,
                        mscale=0.707,
                        mscale_all_dim=0.5,
                    ),
                    dtype="bfloat16",
                ),
                Variant("rope-llama3-f16", rope(rope_type="llama3", factor=8.0, original_max_position_embeddings=64), dtype="float16"),
                Variant(
                    "sliding",
                    {
                        "num_hidden_layers": 3,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                        "sliding_window": 8,
                    },
                    plans=EVERY,
                ),
            ),
        ),
    ]
}
