"""Name maps: a checkpoint's tensor names to Octavo's own, so that a backend sees one vocabulary.

Octavo's names: `embedding`, `layers.N.{attention_norm, q, k, v, o, mlp_norm, gate, up, down}`, `final_norm`, `head`,
each with `.weight` or `.bias`. Some architectures have `q_norm`, `k_norm`, `post_attention_norm` and `post_mlp_norm`.
A mixture has `layers.N.router` and `layers.N.experts.E.{gate, up, down}` instead of one `gate`, `up` and `down`.
"""

from __future__ import annotations

from typing import Final

_GGUF_LAYER: Final = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
}
_GGUF_EXPERTS: Final = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
_GGUF_TOP: Final = {"embedding": "token_embd", "final_norm": "output_norm", "head": "output"}

_HF_LAYER: Final = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
_HF_MIXTURES: Final = {
    "qwen3_moe": ("mlp.gate", "mlp.experts", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts", {"gate": "w1", "up": "w3", "down": "w2"}),
}
_HF_GEMMA3_LAYER: Final = {
    **_HF_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_HF_TOP: Final = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}


def gguf_name(name: str) -> str:
    """Return the GGUF name of one of ours, e.g. `layers.3.q.weight` -> `blk.3.attn_q.weight`.

    A layer's experts are one tensor [experts, …] there: every expert's name gives that tensor's.
    """
    parts = name.split(".")
    if parts[0] == "layers" and parts[2] == "experts":
        return f"blk.{parts[1]}.{_GGUF_EXPERTS[parts[4]]}.{parts[5]}"
    return _translate(name, _GGUF_TOP, _GGUF_LAYER, "blk")


def huggingface_name(name: str, architecture: str = "llama") -> str:
    """Return Hugging Face's name of one of ours, e.g. `layers.3.q.bias` -> `model.layers.3.self_attn.q_proj.bias`."""
    parts = name.split(".")
    if architecture in _HF_MIXTURES and parts[0] == "layers":
        router, experts, projections = _HF_MIXTURES[architecture]
        if parts[2] == "router":
            return f"model.layers.{parts[1]}.{router}.{parts[3]}"
        if parts[2] == "experts":
            return f"model.layers.{parts[1]}.{experts}.{parts[3]}.{projections[parts[4]]}.{parts[5]}"
    return _translate(name, _HF_TOP, _HF_GEMMA3_LAYER if architecture == "gemma3" else _HF_LAYER, "model.layers")


def _translate(name: str, top: dict[str, str], layer: dict[str, str], prefix: str) -> str:
    parts = name.split(".")
    if parts[0] == "layers":
        _, index, part, suffix = parts
        return f"{prefix}.{index}.{layer[part]}.{suffix}"
    part, suffix = parts
    return f"{top[part]}.{suffix}"
