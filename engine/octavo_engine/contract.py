"""The names both sides of Octavo use: ports, paths, headers, metrics, environment, time-outs.

Engine, operator, gateway and chart read them from here, so that no two of them can disagree. Imports nothing heavy:
the operator imports this module and no other of the engine.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

# --- Ports ------------------------------------------------------------------------------------------------------
PORT_HTTP: Final = 8000
"""OpenAI API, health, readiness, metrics."""
PORT_ADMIN: Final = 8001
"""Loopback only: whatever changes something (`POST /drain`)."""
PORT_BLOCKS: Final = 8002
"""Read by the service's own gateway, with the gateway credential (`GET /debug/blocks`)."""
PORT_OPERATOR_METRICS: Final = 8080
PORT_OPERATOR_HEALTH: Final = 8081

# --- Paths ------------------------------------------------------------------------------------------------------
PATH_COMPLETIONS: Final = "/v1/completions"
PATH_CHAT_COMPLETIONS: Final = "/v1/chat/completions"
PATH_RESPONSES: Final = "/v1/responses"
PATH_MODELS: Final = "/v1/models"
PATH_EMBEDDINGS: Final = "/v1/embeddings"
PATH_TOKENIZE: Final = "/tokenize"
PATH_DETOKENIZE: Final = "/detokenize"
PATH_HEALTH: Final = "/health"
PATH_READY: Final = "/ready"
PATH_METRICS: Final = "/metrics"
PATH_OPENAPI: Final = "/openapi.json"
PATH_DRAIN: Final = "/drain"
PATH_LOAD_ADAPTER: Final = "/v1/load_lora_adapter"
PATH_UNLOAD_ADAPTER: Final = "/v1/unload_lora_adapter"
PATH_DEBUG_BLOCKS: Final = "/debug/blocks"
PATHS_WITHOUT_KEY: Final = frozenset({PATH_HEALTH, PATH_READY, PATH_METRICS})
"""Reachable without an API key when keys are set; everything else is refused without one."""

# --- Headers ----------------------------------------------------------------------------------------------------
HEADER_SALT: Final = "x-octavo-salt"
HEADER_MODEL: Final = "x-octavo-model"
HEADER_REQUEST_ID: Final = "x-octavo-request-id"
HEADER_GATEWAY_CREDENTIAL: Final = "x-octavo-gateway-credential"
HEADER_NOT_STARTED: Final = "x-octavo-not-started"
"""`1` on a refusal that began nothing: safe to send to another replica."""
TRUSTED_HEADERS: Final = (HEADER_SALT, HEADER_MODEL, HEADER_REQUEST_ID)
"""Count only beside a valid gateway credential."""
SALT_DIRECT: Final = "direct"
"""The cache salt of a caller without the gateway credential."""

# --- Environment ------------------------------------------------------------------------------------------------
ENV_GATEWAY_CREDENTIAL_FILE: Final = "OCTAVO_GATEWAY_CREDENTIAL_FILE"
ENV_API_KEYS_FILE: Final = "OCTAVO_API_KEYS_FILE"
ENV_CACHE: Final = "OCTAVO_CACHE"
"""Root of every cache of Octavo's on a machine; default `${XDG_CACHE_HOME:-~/.cache}/octavo`."""
ENV_MODELS: Final = "OCTAVO_MODELS"
"""A read-only folder of models that travels in the engine's image; looked in before the cache."""

# --- Time-outs, seconds -----------------------------------------------------------------------------------------
HTTP_KEEP_ALIVE_SECONDS: Final = 120
UPSTREAM_IDLE_SECONDS: Final = 60
"""The gateway's idle time-out towards an engine: below the engine's keep-alive, so that the gateway closes first."""
DRAIN_PROPAGATION_SECONDS: Final = 5
"""After readiness turns red, new requests are still accepted this long: endpoints take a moment to spread."""
DEFAULT_DRAIN_TIMEOUT_SECONDS: Final = 300
TERMINATION_MARGIN_SECONDS: Final = 15
ENGINE_RESTARTS: Final = 3
"""How often a server starts its engine process again within ENGINE_RESTART_WINDOW_SECONDS before it gives up."""
ENGINE_RESTART_WINDOW_SECONDS: Final = 600
HANG_SECONDS: Final = 30
"""Within which `/health` tells of an engine that hangs."""
HEALTH_TIMEOUT_SECONDS: Final = HANG_SECONDS - 10.0
"""Silence of the engine, beyond its longest step, after which it counts as hung: ten seconds are left for the step."""
LOOP_TIMEOUT_SECONDS: Final = 60.0
"""How long the API process's event loop may stand still before the process ends."""
SCRAPE_TIMEOUT_SECONDS: Final = 1.0
RETRY_AFTER_SECONDS: Final = 1


def termination_grace_seconds(drain_timeout: int) -> int:
    """Return the pod's `terminationGracePeriodSeconds` for a drain time-out: always longer than propagation + drain."""
    return DRAIN_PROPAGATION_SECONDS + drain_timeout + TERMINATION_MARGIN_SECONDS


# --- Limits -----------------------------------------------------------------------------------------------------
BLOCK_SIZE: Final = 16
MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_ADAPTERS: Final = 16
"""Adapters that may be loaded at once, unless a flag says otherwise."""
MAX_CHOICES: Final = 128
"""Largest `n` of one request."""
MAX_PROMPTS: Final = 256
"""Largest number of prompts in one completions request."""
MAX_EMBEDDING_INPUTS: Final = 2048
"""Largest number of inputs in one embeddings request."""
MAX_LOGPROBS: Final = 20
"""Alternatives told beside a token's log-probability."""
MAX_STOP_STRINGS: Final = 4

# --- Kubernetes names -------------------------------------------------------------------------------------------
API_GROUP: Final = "serving.octavo.dev"
API_VERSION: Final = "v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
LABEL_SERVICE: Final = f"{API_GROUP}/service"
"""On every child: the slug of the InferenceService it belongs to."""
ANNOTATION_CORDONED: Final = f"{API_GROUP}/cordoned"
ANNOTATION_RENDERED_HASH: Final = f"{API_GROUP}/rendered-hash"
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
CORDONED_DELETION_COST: Final = -1000
FIELD_MANAGER: Final = "octavo-operator"


# --- Metrics ----------------------------------------------------------------------------------------------------
class Metric(NamedTuple):
    """One exported series: `kind` is the Prometheus type, `alias` the `vllm:` name of the same meaning."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    alias: str | None = None
    buckets: tuple[float, ...] = ()


_LATENCY: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_INTER_TOKEN: Final = (
    0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 320, 2560,
)  # fmt: skip
_REQUEST: Final = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip

KV_BLOCKS: Final = Metric(
    "octavo_kv_blocks",
    "gauge",
    "KV cache blocks by state: held by a sequence, cached and evictable, free",
    labels=("state",),
)
KV_BLOCK_UTILIZATION: Final = Metric(
    "octavo_kv_block_utilization",
    "gauge",
    "Share of KV cache blocks held by sequences, 0 to 1; cached blocks do not count",
    alias="vllm:kv_cache_usage_perc",
)
QUEUE_DEPTH: Final = Metric(
    "octavo_queue_depth",
    "gauge",
    "Sequences accepted and waiting for a first or a resumed step",
    alias="vllm:num_requests_waiting",
)
QUEUE_TOKENS: Final = Metric("octavo_queue_tokens", "gauge", "Prompt tokens of the waiting sequences")
QUEUE_OLDEST_SECONDS: Final = Metric("octavo_queue_oldest_seconds", "gauge", "Age of the oldest waiting sequence")
REQUESTS_RUNNING: Final = Metric(
    "octavo_requests_running", "gauge", "Sequences in the running batch", alias="vllm:num_requests_running"
)
KV_HOST_BLOCKS: Final = Metric(
    "octavo_kv_host_blocks",
    "gauge",
    "Blocks of the host tier, which keeps what the KV cache evicts, by state",
    labels=("state",),
)
KV_HOST_SAVED: Final = Metric(
    "octavo_kv_host_saved_blocks_total", "counter", "Blocks the KV cache evicted and the host tier took in"
)
KV_HOST_LOADED: Final = Metric(
    "octavo_kv_host_loaded_blocks_total", "counter", "Blocks a prefix found in the host tier and loaded again"
)
PREFIX_TOKENS: Final = Metric(
    "octavo_prefix_tokens_total",
    "counter",
    "Prompt tokens found in the prefix cache, or not, counted once at admission",
    labels=("result",),
)
PREEMPTIONS: Final = Metric(
    "octavo_preemptions_total", "counter", "Sequences preempted", alias="vllm:num_preemptions_total"
)
RECOMPUTED_TOKENS: Final = Metric(
    "octavo_recomputed_tokens_total", "counter", "Tokens computed again after a preemption"
)
PROMPT_TOKENS: Final = Metric(
    "octavo_prompt_tokens_total", "counter", "Prompt tokens of admitted requests", alias="vllm:prompt_tokens_total"
)
GENERATED_TOKENS: Final = Metric(
    "octavo_generated_tokens_total", "counter", "Tokens generated", alias="vllm:generation_tokens_total"
)
REQUESTS: Final = Metric(
    "octavo_requests_total",
    "counter",
    "Sequences ended, by outcome: stop, length, abort, error; under rejected, requests refused before they began: the "
    "queue full, the engine not ready or draining, the prompt longer than the context",
    labels=("outcome",),
)
TIME_TO_FIRST_TOKEN: Final = Metric(
    "octavo_time_to_first_token_seconds",
    "histogram",
    "From the request's arrival to its first token",
    alias="vllm:time_to_first_token_seconds",
    buckets=_LATENCY,
)
INTER_TOKEN: Final = Metric(
    "octavo_inter_token_seconds",
    "histogram",
    "Between two tokens of one sequence",
    alias="vllm:inter_token_latency_seconds",
    buckets=_INTER_TOKEN,
)
REQUEST_SECONDS: Final = Metric(
    "octavo_request_seconds",
    "histogram",
    "From the request's arrival to its end",
    alias="vllm:e2e_request_latency_seconds",
    buckets=_REQUEST,
)
DRAFT_TOKENS: Final = Metric(
    "octavo_draft_tokens_total",
    "counter",
    "Tokens drafted by speculation and computed",
    alias="vllm:spec_decode_num_draft_tokens_total",
)
ACCEPTED_TOKENS: Final = Metric(
    "octavo_accepted_draft_tokens_total",
    "counter",
    "Drafted tokens that were what the sampler drew",
    alias="vllm:spec_decode_num_accepted_tokens_total",
)
STATIC_BATCHES: Final = Metric(
    "octavo_static_batches_total", "counter", "Batches formed by --scheduler static; 0 when batching continuously"
)
RESERVED_SLOTS: Final = Metric(
    "octavo_reserved_slots_total",
    "counter",
    "Token slots reserved by --kv-allocation contiguous, used or not; 0 when paged",
)
ADMITTED: Final = Metric(
    "octavo_requests_admitted_total",
    "counter",
    "Sequences the engine has taken: those that ended, whatever the outcome but rejected, and those in flight",
)
STEP_SECONDS: Final = Metric("octavo_step_seconds", "histogram", "One step of the engine loop", buckets=_INTER_TOKEN)
BUSY_SECONDS: Final = Metric(
    "octavo_busy_seconds_total", "counter", "Seconds in which the engine loop had something to do"
)
KERNEL_SECONDS: Final = Metric(
    "octavo_kernel_seconds_total", "counter", "Seconds of them spent inside native kernels; the rest is Python's share"
)
LAST_STEP_TIMESTAMP: Final = Metric(
    "octavo_last_step_timestamp_seconds", "gauge", "Unix time of the engine loop's last tick, idle ticks included"
)

METRICS: Final[tuple[Metric, ...]] = (
    KV_BLOCKS,
    KV_BLOCK_UTILIZATION,
    QUEUE_DEPTH,
    QUEUE_TOKENS,
    QUEUE_OLDEST_SECONDS,
    REQUESTS_RUNNING,
    KV_HOST_BLOCKS,
    KV_HOST_SAVED,
    KV_HOST_LOADED,
    PREFIX_TOKENS,
    PREEMPTIONS,
    RECOMPUTED_TOKENS,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    ADMITTED,
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN,
    REQUEST_SECONDS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    STATIC_BATCHES,
    RESERVED_SLOTS,
    STEP_SECONDS,
    BUSY_SECONDS,
    KERNEL_SECONDS,
    LAST_STEP_TIMESTAMP,
)
"""Every series of Octavo's own. The `vllm:` aliases and the constants of `VLLM_ONLY` are exported beside them."""

VLLM_PREFIX_QUERIES: Final = "vllm:prefix_cache_queries_total"
VLLM_PREFIX_HITS: Final = "vllm:prefix_cache_hits_total"
VLLM_REQUEST_SUCCESS: Final = "vllm:request_success_total"
VLLM_CACHE_CONFIG_INFO: Final = "vllm:cache_config_info"
VLLM_ONLY: Final = (VLLM_PREFIX_QUERIES, VLLM_PREFIX_HITS, VLLM_REQUEST_SUCCESS, VLLM_CACHE_CONFIG_INFO)

SCRAPED_BY_AUTOSCALER: Final = (
    KV_BLOCKS.name,
    KV_BLOCK_UTILIZATION.name,
    QUEUE_DEPTH.name,
    QUEUE_TOKENS.name,
    QUEUE_OLDEST_SECONDS.name,
    REQUESTS_RUNNING.name,
    LAST_STEP_TIMESTAMP.name,
)
"""What the operator asks for with `name[]` (a scrape of about 1 KB)."""

Outcome = Literal["stop", "length", "abort", "error", "rejected"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("stop", "length", "abort", "error", "rejected")
