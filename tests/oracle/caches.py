"""Rewrites tests/fixtures/caches: mlx-lm's caches alone, driven through random keys, values and queries.

    python tests/oracle/caches.py

One file a case. The metadata entry `script` is a JSON list of the steps; every step that appends has arrays named after its
index: `N.keys`, `N.values` [B, Hkv, L, D], `N.queries` [B, Hq, L, D] and what attention gave, `N.out`. Steps act on one running
cache:

    ["new", settings]                 an empty cache of one row
    ["append", L]                     L new positions, then attention by L queries
    ["trim", n]                       the newest n positions are given up
    ["merge", [[…lengths], …]]        one cache a row, each fed by appends of these lengths, then joined (see below)
    ["join", [[…lengths], …]]         rows made in the same way join the running batch
    ["filter", [rows]]                only these rows stay, in this order
    ["extract", row]                  the row alone becomes the running cache
    ["prepare", [lengths]]            empty rows that are read together, padded on the right to the longest
    ["finalize"]                      padding is moved to the left
    ["quantize", bits, group]         a plain cache becomes a quantized one

The appends of rows that are merged or joined are attended alone and stand under `N.R.I.keys`, … for row R's append I.
"""

import hashlib
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as kv
from mlx_lm.models.base import scaled_dot_product_attention

from reference import provenance

ROOT = Path(__file__).resolve().parent.parent / "fixtures" / "caches"
KV_HEADS, HEADS, DIM = 2, 6, 8
SCALE = 0.3

ring = {"cache": "rotating", "window": 8}
plain = {"cache": "plain"}
ones = lambda n: [["append", 1]] * n

CASES = {
    "plain-chunks": [["new", plain], ["append", 5], *ones(3), ["append", 4], ["trim", 6], ["append", 2], *ones(2)],
    "plain-grow": [["new", plain], ["append", 250], *ones(2), ["append", 7], ["trim", 4], ["append", 1], ["append", 300]],
    "ring-single": [["new", ring], *ones(20)],
    "ring-short": [["new", ring], ["append", 3], *ones(12), ["append", 4], *ones(6)],
    "ring-chunks": [["new", ring], ["append", 13], ["append", 1], ["append", 5], ["append", 2], *ones(9), ["append", 9], *ones(3)],
    "ring-exact": [["new", ring], ["append", 8], *ones(9), ["append", 7], ["append", 2], *ones(8)],
    "ring-trim": [["new", ring], ["append", 6], ["trim", 2], ["append", 1], ["append", 2], *ones(4)],
    "ring-keep": [["new", {**ring, "keep": 3}], ["append", 4], *ones(11), ["append", 6], *ones(7)],
    "ring-one": [["new", {**ring, "window": 1}], ["append", 3], *ones(3), ["append", 2]],
    "plain-merge": [["merge", [[5], [17], [11, 1, 1]]], *ones(4), ["append", 3], ["filter", [2, 0]], *ones(3),
                    ["join", [[4], [19, 1]]], *ones(3), ["filter", [3]], *ones(2), ["extract", 0], *ones(2), ["append", 3]],
    "plain-padded": [["prepare", [5, 17, 11]], ["append", 7], ["append", 10], ["finalize"], *ones(5), ["extract", 1], *ones(2)],
    "ring-merge": [["merge", [[3], [1] * 13, [17], [5, 1]]], *ones(11), ["filter", [0, 2, 3]], *ones(4), ["extract", 1], *ones(3)],
    "ring-merge-short": [["merge", [[3], [5]]], *ones(12), ["append", 3], *ones(3)],
    # A span on a wrapped ring with padding left is not here: mlx-lm hides one position too many of it (docs/parity.md).
    "ring-merge-span": [["merge", [[3], [1] * 6]], *ones(1), ["append", 4], *ones(9), ["append", 2]],
    "ring-join": [["merge", [[3], [6]]], *ones(4), ["join", [[1] * 12, [2]]], *ones(10), ["filter", [2, 1]], *ones(2), ["extract", 1], *ones(9)],
    "ring-padded": [["prepare", [5, 17, 11]], ["append", 7], ["append", 10], ["finalize"], *ones(9), ["extract", 2], *ones(3)],
    "ring-padded-chunks": [["prepare", [3, 14]], ["append", 4], ["append", 4], ["append", 6], ["finalize"], *ones(9)],
    "plain-f16": [["new", {**plain, "dtype": "float16"}], ["append", 5], *ones(3)],
}
QUANTIZED = {
    f"quantized-{bits}": [["new", {"cache": "plain", "dim": 64, "dtype": dtype}], ["append", 7], ["quantize", bits, 32], ["append", 1], ["append", 29], *ones(3),
                          ["trim", 3], *ones(2)]
    for bits, dtype in ((4, "float32"), (8, "float16"))
}


class Driver:
    """Runs a script and keeps what went in and came out."""

    def __init__(self, name: str):
        self.name, self.arrays = name, {}
        self.dim, self.dtype = DIM, mx.float32

    def random(self, key: str, shape) -> mx.array:
        seed = hashlib.sha256(f"{self.name}/{key}".encode()).digest()
        return mx.array(np.random.default_rng([*seed]).standard_normal(shape, dtype=np.float32)).astype(self.dtype)

    def append(self, cache, key: str, rows: int, length: int) -> None:
        new = {n: self.random(f"{key}.{n}", (rows, KV_HEADS, length, self.dim)) for n in ("keys", "values")}
        queries = self.random(f"{key}.queries", (rows, HEADS, length, self.dim))
        mask = cache.make_mask(length, return_array=False, window_size=getattr(cache, "max_size", None))
        # Copies, since caches write into the first arrays they are given, and quantized attention scales its queries in place.
        k, v = cache.update_and_fetch(mx.array(new["keys"]), mx.array(new["values"]))
        out = scaled_dot_product_attention(mx.array(queries), k, v, cache, SCALE, mask)
        for name, array in {**new, "queries": queries, "out": out}.items():
            self.arrays[f"{key}.{name}"] = array
        mx.eval(self.arrays, cache.state)

    def empty(self, settings):
        self.dim = settings.get("dim", DIM)
        self.dtype = getattr(mx, settings.get("dtype", "float32"))
        if settings["cache"] == "plain":
            return kv.KVCache()
        return kv.RotatingKVCache(settings["window"], settings.get("keep", 0))

    def rows(self, settings, key: str, lengths):
        singles = [self.empty(settings) for _ in lengths]
        for row, (single, appends) in enumerate(zip(singles, lengths)):
            for i, length in enumerate(appends):
                self.append(single, f"{key}.{row}.{i}", 1, length)
        return type(singles[0]).merge(singles)

    def run(self, script) -> None:
        settings = ring if self.name.startswith("ring") else plain
        cache, rows = None, 1
        for step, (what, *args) in enumerate(script):
            if what == "new":
                cache = self.empty(args[0])
            elif what == "append":
                self.append(cache, str(step), rows, args[0])
            elif what == "trim":
                assert cache.is_trimmable() and cache.trim(args[0]) == args[0]
            elif what == "merge":
                cache, rows = self.rows(settings, str(step), args[0]), len(args[0])
            elif what == "join":
                cache.extend(self.rows(settings, str(step), args[0]))
                rows += len(args[0])
            elif what == "filter":
                cache.filter(mx.array(args[0]))
                rows = len(args[0])
            elif what == "extract":
                cache, rows = cache.extract(args[0]), 1
            elif what == "prepare":
                rows = len(args[0])
                cache = self.rows(settings, str(step), [[]] * rows)
                longest = max(args[0])
                cache.prepare(lengths=args[0], right_padding=[longest - n for n in args[0]])
            elif what == "finalize":
                cache.finalize()
            elif what == "quantize":
                bits, group = args
                cache = cache.to_quantized(group_size=group, bits=bits)
            else:
                raise ValueError(what)


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    for name, script in {**CASES, **QUANTIZED}.items():
        driver = Driver(name)
        driver.run(script)
        settings = ring if name.startswith("ring") else plain
        facts = {**provenance(), "script": json.dumps(script), "settings": json.dumps(settings), "scale": str(SCALE)}
        mx.save_safetensors(str(ROOT / f"{name}.safetensors"), driver.arrays, metadata=facts)
    print(f"{sum(f.stat().st_size for f in ROOT.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
