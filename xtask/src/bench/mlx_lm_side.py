"""mlx-lm's side of `cargo xtask bench`: its own token loop over its own model. It takes no number of threads."""

import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from side import arguments, measure


def main() -> None:
    args = arguments()
    config = json.loads(Path(args.model, "config.json").read_text())
    dtype = config["torch_dtype"] if args.dtype == "stored" else args.dtype
    model, _ = load_model(Path(args.model))
    # The vectors of a GGUF file are float32, and one of them would make every activation float32.
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())

    def generate(ids: list[int], count: int):
        for token, _ in generate_step(mx.array(ids), model, max_tokens=count):
            yield token

    measure(args, config["vocab_size"], generate, dtype=dtype, version=version("mlx-lm"))


main()
