"""The backends every contract test of the runner runs over, each a function that makes a fresh executable."""

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from octavo_engine.worker.backends.scripted import build_scripted
from octavo_engine.worker.executable import ALL
from tests.model.building import build

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 384, 64, 2, 4, 2, 96


def write_random_llama(
    folder: Path,
    *,
    max_position: int = 256,
    heads: tuple[int, int] = (HEADS, KV_HEADS),
    head_dim: int = HIDDEN // HEADS,
    vocab: int = VOCAB,
    layers: int = LAYERS,
) -> None:
    """Write a small Llama with random weights, as a Hugging Face folder. heads: query heads, key/value heads."""
    num_heads, num_kv_heads = heads
    q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    shapes = {"model.embed_tokens": (vocab, HIDDEN), "lm_head": (vocab, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm": (HIDDEN,),
            f"{at}.post_attention_layernorm": (HIDDEN,),
            f"{at}.self_attn.q_proj": (q_size, HIDDEN),
            f"{at}.self_attn.k_proj": (kv_size, HIDDEN),
            f"{at}.self_attn.v_proj": (kv_size, HIDDEN),
            f"{at}.self_attn.o_proj": (HIDDEN, q_size),
            f"{at}.mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.up_proj": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
    random = np.random.default_rng(20)
    # Wide enough that attention decides something and the best two logits are apart.
    tensors = {
        f"{name}.weight": (random.standard_normal(shape) * (0.15 if len(shape) > 1 else 0.1)).astype(np.float32)
        + np.float32(len(shape) == 1)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@cache
def random_llama_folder() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="octavo-test-")
    write_random_llama(Path(folder.name))
    return folder


def _build_cpu(**precision):
    return build(Path(random_llama_folder().name), **precision)


BACKENDS = {
    "scripted": lambda: build_scripted("scripted://?eos=0"),
    "scripted, two KV groups": lambda: build_scripted("scripted://?eos=0&window=24"),
    "cpu, float32": lambda: _build_cpu(dtype="float32"),
    "cpu, int8": lambda: _build_cpu(dtype="auto", quantization="int8"),
}


class Faulty:
    """A backend with a fault that a test switches on: not-finite logits for some rows, or a raise."""

    def __init__(self, executable):
        self._executable = executable
        self.poison, self.error = [], None

    def __getattr__(self, name):
        return getattr(self._executable, name)

    def forward(self, plan, x):
        if self.error:
            raise self.error
        return self._executable.forward(plan, x)

    def logits(self, plan, x, wanted=ALL):
        logits = np.array(self._executable.logits(plan, x, wanted))
        logits[self.poison] = np.nan
        return logits
