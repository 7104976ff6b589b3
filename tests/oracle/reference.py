"""The reference itself: builds tiny models with mlx-lm's classes and runs mlx-lm's forward on them.

Nothing here imitates mlx-lm: models, caches, masks and quantization are the package's own objects.
"""

import copy
import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import _merge_caches, _right_pad_prompts, maybe_quantize_kv_cache
from mlx_lm.models import cache as kv
from mlx_lm.utils import _get_classes, load_model, quantize_model, save_config, save_model

from families import Family, Variant
from plans import Plan

SEED = 20260731
KV_GROUP_SIZE = 32


def accept_absent_global_scale() -> None:
    """mlx-lm 0.32.2 passes `global_scale=None` to `gather_qmm`, which mlx 0.32.2 doesn't know yet; without a scale it means nothing."""
    original = mx.gather_qmm

    def gather_qmm(*args, global_scale=None, **kwargs):
        if global_scale is not None:
            raise ValueError("this mlx has no global scales")
        return original(*args, **kwargs)

    mx.gather_qmm = gather_qmm


accept_absent_global_scale()


def provenance() -> dict[str, str]:
    """What made a file: package versions and the hash of this oracle's sources."""
    digest = hashlib.sha256()
    for name in sorted(("families.py", "plans.py", "reference.py")):
        digest.update(Path(__file__).with_name(name).read_bytes())
    packages = {name: version(name) for name in ("mlx", "mlx-lm", "numpy")}
    return {**packages, "script": f"tests/oracle/{Path(sys.argv[0]).name}", "script_sha256": digest.hexdigest(),
            "device": str(mx.default_device()), "machine": platform.machine(), "seed": str(SEED)}


def random_for(*names: str) -> np.random.Generator:
    """A generator that depends on the names alone, not on the order of calls."""
    key = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng([SEED, *key])


def config_of(family: Family, variant: Variant) -> dict:
    config = {**family.config, **variant.changes}
    return {k: v for k, v in config.items() if v is not None}


def weight(path: str, like: mx.array, gemma: bool) -> mx.array:
    """Random weights whose activations stay near one and whose logits spread over a few units."""
    noise = random_for("weight", path).standard_normal(like.shape, dtype=np.float32)
    if "norm" in path:
        return mx.array(0.3 * noise) + (0.0 if gemma else 1.0)
    if path.endswith("bias"):
        return mx.array(0.2 * noise)
    gain = 3.0 if "embed_tokens" in path or "lm_head" in path else 1.2
    return mx.array(noise * np.float32(gain / like.shape[-1] ** 0.5))


def build(family: Family, variant: Variant, folder: Path) -> None:
    """Writes the variant's model folder: config.json and model.safetensors."""
    config = config_of(family, variant)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    if config.get("tie_word_embeddings", True) and "lm_head" in model:
        model.pop("lm_head")
        model.tie_word_embeddings = True
    gemma = config["model_type"].startswith("gemma")
    random = {path: weight(path, p, gemma) for path, p in tree_flatten(model.parameters())}
    for part, factor in variant.factors.items():
        random.update({path: factor * w for path, w in random.items() if part in path})
    model.update(tree_unflatten(list(random.items())))
    model.set_dtype(getattr(mx, variant.dtype))
    config["torch_dtype"] = variant.dtype

    if variant.quant is not None:
        quant = variant.quant

        own = getattr(model, "quant_predicate", None) or (lambda path, module: True)

        def predicate(path, module):
            for part, choice in quant.overrides.items():
                if part in path:
                    if choice is None:
                        return False
                    bits, group_size = choice
                    return {"bits": bits, "group_size": group_size}
            return own(path, module)

        model, config = quantize_model(model, config, quant.group_size, quant.bits, quant_predicate=predicate)

    save_model(folder, model)
    (folder / "model.safetensors.index.json").unlink()
    save_config(copy.deepcopy(config), folder / "config.json")


def random_tokens(plan: Plan, vocabulary: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and the tokens fed after them. Greedy choices of a random model soon repeat one token, so steps are random too."""

    def draw(what: str, lengths) -> list[list[int]]:
        return [random_for(what, str(row)).integers(0, vocabulary, n).tolist() for row, n in enumerate(lengths)]

    return draw("prompt", plan.rows), draw("steps", [plan.steps] * len(plan.rows))


def run(model, prompts: list[list[int]], chunks: tuple[int, ...], steps: int | list[list[int]], batch: str = "none",
        kv_bits: int | None = None) -> dict[str, mx.array]:
    """Drives the model and returns what a results file holds (see README.md).

    `steps` is the tokens to feed after each prompt, or how many greedy steps to take.
    """
    if batch == "none":
        [tokens] = prompts
        caches = kv.make_prompt_cache(model)
        rows = [read(model, tokens, chunks, caches, kv_bits)]
    elif batch == "merge":
        singles = [kv.make_prompt_cache(model) for _ in prompts]
        rows = [read(model, t, (len(t),), c) for t, c in zip(prompts, singles)]
        caches = _merge_caches(singles)
    elif batch == "padded":
        caches = _merge_caches([kv.make_prompt_cache(model) for _ in prompts])
        rows = read_padded(model, prompts, chunks, caches)
    else:
        raise ValueError(f"unknown batch mode {batch}")

    greedy = isinstance(steps, int)
    fed = [[] for _ in prompts]
    for step in range(steps if greedy else len(steps[0])):
        if greedy:
            token = mx.concatenate([mx.argmax(r[-1][-1:], axis=-1) for r in rows])
        else:
            token = mx.array([s[step] for s in steps])
        logits = model(token[:, None], cache=caches)
        mx.eval(logits, [c.state for c in caches])
        for row, t in enumerate(token.tolist()):
            fed[row].append(t)
            rows[row].append(logits[row])

    arrays = {"chunks": mx.array(list(chunks), mx.int32)}
    for row, tokens in enumerate(prompts):
        arrays[f"row.{row}.tokens"] = mx.array(tokens, mx.int32)
        arrays[f"row.{row}.decode_tokens"] = mx.array(fed[row], mx.int32)
        arrays[f"row.{row}.logits"] = mx.concatenate(rows[row])
        for layer, cache in enumerate(caches):
            single = cache.extract(row) if batch != "none" else cache
            for name, array in live(single).items():
                arrays[f"row.{row}.cache.{layer}.{name}"] = mx.contiguous(array)
    return arrays


def read(model, tokens, chunks, caches, kv_bits=None) -> list[mx.array]:
    """Logits of each chunk of one row, each [chunk, vocabulary]."""
    assert sum(chunks) == len(tokens), "chunks must cover the prompt"
    parts, start = [], 0
    for chunk in chunks:
        logits = model(mx.array(tokens[start : start + chunk])[None], cache=caches)
        maybe_quantize_kv_cache(caches, 0, KV_GROUP_SIZE, kv_bits)
        mx.eval(logits, [c.state for c in caches])
        parts.append(logits[0])
        start += chunk
    return parts


def read_padded(model, prompts, chunks, caches) -> list[list[mx.array]]:
    """Reads rows together as mlx-lm's `PromptProcessingBatch.prompt` does; logits of real positions, a row each."""
    lengths = [len(p) for p in prompts]
    longest = max(lengths)
    assert sum(chunks) == longest, "chunks must cover the longest prompt"
    padding = [longest - n for n in lengths]
    padded = _right_pad_prompts(prompts, max_length=longest)
    for c in caches:
        c.prepare(lengths=lengths, right_padding=padding)
    parts, start = [], 0
    for chunk in chunks:
        logits = model(padded[:, start : start + chunk], cache=caches)
        mx.eval(logits, [c.state for c in caches])
        parts.append(logits)
        start += chunk
    for c in caches:
        c.finalize()
    mx.eval([c.state for c in caches])
    logits = mx.concatenate(parts, axis=1)
    return [[logits[row, :n]] for row, n in enumerate(lengths)]


def live(cache) -> dict[str, mx.array]:
    """The live keys and values of one row, oldest first, without the leading batch axis."""
    if isinstance(cache, kv.RotatingKVCache):
        keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
        start = max(0, keys.shape[2] - cache.max_size)
        return {"keys": keys[0, :, start:], "values": values[0, :, start:]}
    keys, values = cache.keys_and_values()
    if isinstance(cache, kv.QuantizedKVCache):
        parts = ("", ".scales", ".biases")
        return {f"{name}{part}": a[0] for name, t in (("keys", keys), ("values", values)) for part, a in zip(parts, t)}
    return {"keys": keys[0], "values": values[0]}


def load(folder: Path, dtype: str | None = None):
    """The folder's model as mlx-lm loads it, optionally with every float parameter cast."""
    model, config = load_model(folder)
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
    return model, config


def save(path: Path, arrays: dict[str, mx.array], **facts: str) -> None:
    mx.save_safetensors(str(path), arrays, metadata={**facts, **provenance()})


def run_variant(family: Family, variant: Variant, plans: list[Plan], folder: Path) -> None:
    """Writes the model folder and one results file a plan."""
    model_folder = folder / "model"
    build(family, variant, model_folder)
    model, config = load(model_folder)
    for plan in plans:
        prompts, steps = random_tokens(plan, config["vocab_size"])
        arrays = run(model, prompts, plan.chunks, steps, plan.batch, plan.kv_bits)
        save(folder / f"{plan.name}.safetensors", arrays, family=family.name, variant=variant.name, plan=plan.name, batch=plan.batch, kv_bits=str(plan.kv_bits or 0))
