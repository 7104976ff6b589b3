"""What every peer does in `cargo xtask bench`: one run that is not counted, one that is, and one JSON object on stdout.

The ids and the meaning of each figure are those of `strata bench` (crates/cli/src/commands/bench.rs).
"""

import argparse
import json
import time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--gen", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=["stored", "float32"], default="stored")
    return parser.parse_args()


def measure(args: argparse.Namespace, vocab_size: int, generate, **description) -> None:
    """`generate(ids, n)` yields n ids, each when it is known, into empty state."""
    ids = [(i * 7919 + 13) % vocab_size for i in range(args.prompt)]
    for _ in range(2):
        start = time.perf_counter()
        times = [time.perf_counter() - start for _ in generate(ids, args.gen)]
    if len(times) != args.gen:
        raise SystemExit(f"asked for {args.gen} tokens but got {len(times)}")
    print(json.dumps({
        "prompt_tokens_per_s": args.prompt / times[0],
        "decode_tokens_per_s": (args.gen - 1) / (times[-1] - times[0]),
        "first_token_ms": 1e3 * times[0],
        "vocab_size": vocab_size,
        **description,
    }))
