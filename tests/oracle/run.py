"""The oracle run live: tiny models in every variant, or a real model folder.

    run.py cases --out DIR [--family F …] [--variant V …] [--plan P …]
        builds the models and writes their results, in the layout of the committed fixtures
    run.py model --model DIR --out FILE (--prompt TEXT | --tokens 1,2,3 | --tokens-file FILE) [--chat] --steps N [--chunks 7,1,5] [--dtype D]
        reads a prompt, takes N greedy steps, writes tokens and full logits
    run.py score --model DIR --out FILE (--text FILE | --tokens-file FILE) [--chunk 256] [--dtype D]
        writes the negative log likelihood of every token of a text after its first, and prints its perplexity

Progress goes to standard error, one line a case; results to files.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import mlx.core as mx

import reference
from families import FAMILIES
from plans import PLANS
from reference import kv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    cases = commands.add_parser("cases")
    cases.add_argument("--out", type=Path, required=True)
    cases.add_argument("--family", action="append", choices=list(FAMILIES))
    cases.add_argument("--variant", action="append")
    cases.add_argument("--plan", action="append", choices=list(PLANS))
    cases.set_defaults(command=run_cases)

    model = commands.add_parser("model")
    model.add_argument("--steps", type=int, required=True)
    model.add_argument("--prompt")
    model.add_argument("--chat", action="store_true", help="render the prompt with the model's chat template")
    model.add_argument("--chunks", type=integers)
    model.set_defaults(command=run_model)

    score = commands.add_parser("score")
    score.add_argument("--text", type=Path)
    score.add_argument("--chunk", type=int, default=256)
    score.set_defaults(command=run_score)

    for command in (model, score):
        command.add_argument("--model", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--dtype", choices=["float32", "float16", "bfloat16"])
        command.add_argument("--tokens", type=integers)
        command.add_argument("--tokens-file", type=Path, help="a JSON list of token ids")

    arguments = parser.parse_args()
    arguments.command(arguments)


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run_cases(arguments) -> None:
    for name in arguments.family or FAMILIES:
        family = FAMILIES[name]
        for variant in family.variants():
            if arguments.variant and variant.name not in arguments.variant:
                continue
            plans = [PLANS[p] for p in variant.plans if not arguments.plan or p in arguments.plan]
            if not plans:
                continue
            start = time.perf_counter()
            folder = arguments.out / name / variant.name
            folder.mkdir(parents=True, exist_ok=True)
            reference.run_variant(family, variant, plans, folder)
            print(f"{name}/{variant.name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)


def run_model(arguments) -> None:
    tokens = given_tokens(arguments)
    if tokens is None:
        tokenizer = load_tokenizer(arguments.model)
        if arguments.chat:
            message = [{"role": "user", "content": arguments.prompt}]
            tokens = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        else:
            tokens = tokenizer.encode(arguments.prompt)
    model, _ = reference.load(arguments.model, arguments.dtype)
    chunks = tuple(arguments.chunks or [len(tokens)])
    start = time.perf_counter()
    arrays = reference.run(model, [tokens], chunks, arguments.steps)
    seconds = time.perf_counter() - start
    write(arguments, arrays, plan="greedy", batch="none", kv_bits="0", seconds=f"{seconds:.3f}")


def run_score(arguments) -> None:
    tokens = given_tokens(arguments)
    if tokens is None:
        tokens = load_tokenizer(arguments.model).encode(arguments.text.read_text(encoding="utf-8"))
    model, _ = reference.load(arguments.model, arguments.dtype)
    caches = kv.make_prompt_cache(model)
    parts = []
    for start in range(0, len(tokens) - 1, arguments.chunk):
        inputs = tokens[start : min(start + arguments.chunk, len(tokens) - 1)]
        targets = mx.array(tokens[start + 1 : start + 1 + len(inputs)])
        logits = model(mx.array(inputs)[None], cache=caches)[0].astype(mx.float32)
        chosen = mx.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        parts.append(mx.logsumexp(logits, axis=-1) - chosen)
        mx.eval(parts[-1], [c.state for c in caches])
    nll = mx.concatenate(parts)
    perplexity = math.exp(sum(nll.tolist()) / nll.size)
    arrays = {"row.0.tokens": mx.array(tokens, mx.int32), "row.0.nll": nll, "chunk": mx.array([arguments.chunk], mx.int32)}
    write(arguments, arrays, plan="score", perplexity=f"{perplexity:.6f}")
    print(f"perplexity {perplexity:.4f} over {nll.size} tokens", file=sys.stderr)


def given_tokens(arguments) -> list[int] | None:
    if arguments.tokens_file is not None:
        return json.loads(arguments.tokens_file.read_text())
    return arguments.tokens


def load_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def write(arguments, arrays, **facts: str) -> None:
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    reference.save(arguments.out, arrays, model=arguments.model.name, dtype=arguments.dtype or "as stored", **facts)


if __name__ == "__main__":
    main()
