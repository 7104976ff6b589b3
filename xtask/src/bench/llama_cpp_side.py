"""llama.cpp's side of `cargo xtask bench`.

Its C functions are called directly and the likeliest id is picked by numpy: the package's own `Llama.sample` makes a list
of candidates of the whole vocabulary in every step, which would be charged to llama.cpp.
"""

import ctypes

import llama_cpp as llama
import numpy as np

from side import arguments, measure


@llama.llama_log_callback
def quiet(level, text, data):
    pass


def main() -> None:
    args = arguments()
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    features = llama.llama_print_system_info().decode()
    if "AMX_INT8 = 1" in features:
        raise SystemExit("llama.cpp was compiled with AMX, which this program never asks for")

    model = llama.llama_model_load_from_file(args.model.encode(), llama.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {args.model}")
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    params = llama.llama_context_default_params()
    params.n_ctx = args.prompt + args.gen
    params.n_threads = params.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp cannot make a context")
    chunk = llama.llama_n_batch(context)

    def read(ids: list[int]) -> int:
        for start in range(0, len(ids), chunk):
            part = ids[start:start + chunk]
            tokens = (llama.llama_token * len(part))(*part)
            status = llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(part)))
            if status != 0:
                raise SystemExit(f"llama_decode gave {status}")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())

    def generate(ids: list[int], count: int):
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        token = read(ids)
        yield token
        for _ in range(count - 1):
            token = read([token])
            yield token

    measure(args, vocab_size, generate, dtype="float32, int8 in products", version=llama.__version__, features=features)


main()
