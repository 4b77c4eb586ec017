"""The HTTP applications: the public one on port 8000, the admin one on loopback."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from octavo_engine import contract, release
from octavo_engine.server import adapter_routes, jobs, metrics
from octavo_engine.server.errors import INVALID_REQUEST, SERVER, UNAVAILABLE, ApiError, not_found
from octavo_engine.server.generation import INTERNAL, JobEndpoint
from octavo_engine.server.keys import KeyFile
from octavo_engine.server.middleware import RequireKey, Trust
from octavo_engine.server.protocol.answers import model_card, model_list
from octavo_engine.server.protocol.openapi import document
from octavo_engine.server.state import ServerState

log = logging.getLogger(__name__)

_JOB_ROUTES: dict[str, jobs.Route] = {
    contract.PATH_COMPLETIONS: "completions",
    contract.PATH_CHAT_COMPLETIONS: "chat",
    contract.PATH_RESPONSES: "responses",
    contract.PATH_EMBEDDINGS: "embeddings",
    contract.PATH_TOKENIZE: "tokenize",
    contract.PATH_DETOKENIZE: "detokenize",
}


def json_response(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(body, status, headers, "application/json")


def error_response(error: ApiError) -> Response:
    """Return an error in OpenAI's shape."""
    return json_response(error.status, error.body(), error.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Give the framework's own refusals (no such route, wrong method) OpenAI's shape."""
    if not isinstance(error, HTTPException):
        raise TypeError("registered for HTTPException only") from error
    where = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        return error_response(not_found(f"There is no {where} here.", code="unknown_url"))
    if error.status_code == 405:
        return error_response(
            ApiError(405, f"{where} is not allowed.", code="method_not_allowed", headers=dict(error.headers or {}))
        )
    return error_response(ApiError(error.status_code, str(error.detail), INVALID_REQUEST))


async def _on_failure(request: Request, error: Exception) -> Response:
    """Hide what failed from the client; the server's log has it (Starlette raises it again)."""
    return error_response(ApiError(500, INTERNAL, SERVER, code="internal_error"))


def _application(middleware: list[Middleware]) -> FastAPI:
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, middleware=middleware)
    application.add_exception_handler(HTTPException, _on_http_error)
    application.add_exception_handler(Exception, _on_failure)
    application.router.redirect_slashes = False
    return application


def public_application(state: ServerState) -> ASGIApp:
    """Return the application of port 8000. Raises KeyFileError if a key file cannot be read."""
    settings = state.settings
    credential = None if settings.gateway_credential_file is None else KeyFile(settings.gateway_credential_file)
    keys = None if settings.api_keys_file is None else KeyFile(settings.api_keys_file)
    application = _application([Middleware(Trust, credential=credential), Middleware(RequireKey, keys=keys)])
    for path, route in _JOB_ROUTES.items():
        application.router.routes.append(Route(path, JobEndpoint(route, state), methods=["POST"]))
    _add_models(application, state)
    _add_probes(application, state)
    _add_document(application, state)
    return application


def _add_document(application: FastAPI, state: ServerState) -> None:
    """Describe the routes to whoever may use them: where there are keys, the document asks for one as they do."""

    @application.get(contract.PATH_OPENAPI)
    async def openapi() -> Response:
        settings, loaded = state.settings, state.client.loaded
        vocab_size = None if loaded is None else loaded.vocab_size
        names = (*settings.served_names, *state.client.adapters.names)
        described = document(names, release.version(), settings.api_keys_file is not None, vocab_size)
        return json_response(200, msgspec.json.encode(described))


def _add_models(application: FastAPI, state: ServerState) -> None:
    def card(name: str) -> dict[str, object]:
        loaded = state.client.loaded
        parent = state.settings.served_names[0] if name in state.client.adapters.names else None
        return model_card(name, state.created, None if loaded is None else loaded.max_model_len, parent)

    def names() -> tuple[str, ...]:
        return (*state.settings.served_names, *state.client.adapters.names)

    @application.get(contract.PATH_MODELS)
    async def models() -> Response:
        return json_response(200, model_list([card(name) for name in names()]))

    @application.get(contract.PATH_MODELS + "/{name:path}")
    async def model(name: str) -> Response:
        if name not in names():
            return error_response(
                not_found(f"The model '{name[:80]}' does not exist here.", param="model", code="model_not_found")
            )
        return json_response(200, model_list(card(name)))


def _add_probes(application: FastAPI, state: ServerState) -> None:
    collector = metrics.EngineMetrics(state.client, state.counters, state.settings.served_names[0])

    @application.get(contract.PATH_HEALTH)
    async def health() -> Response:
        if state.client.alive:
            return json_response(200, b'{"status":"ok"}')
        client = state.client
        if client.failure is not None or client.recovering:
            return error_response(ApiError(503, client.stopped_sentence, SERVER, code="engine_dead"))
        silence = f"The engine has not answered for {client.silent_seconds:.0f} s."
        return error_response(ApiError(503, silence, SERVER, code="engine_silent"))

    @application.get(contract.PATH_READY)
    async def ready() -> Response:
        if state.ready:
            return json_response(200, b'{"status":"ready"}')
        if state.lifecycle.draining:
            return error_response(ApiError(503, "Draining.", UNAVAILABLE, code="draining"))
        try:
            state.client.check_ready()
        except ApiError as error:
            return error_response(error)
        if state.jobs is not None:
            sentence = "The tokenizer does not answer; it is started again."
            return error_response(ApiError(503, sentence, UNAVAILABLE, code="tokenizer_silent"))
        return error_response(ApiError(503, "The tokenizer is still loading.", UNAVAILABLE, code="loading"))

    @application.get(contract.PATH_METRICS)
    async def exposition(request: Request) -> Response:
        names = parse_qs(request.url.query).get("name[]", [])
        return Response(metrics.render(collector, names), media_type=metrics.CONTENT_TYPE)


async def admin_answer(answer: Coroutine[None, None, bytes]) -> Response:
    """Return what an admin route answers, its refusals in OpenAI's shape."""
    try:
        return json_response(200, await answer)
    except ApiError as error:
        return error_response(error)


def admin_application(state: ServerState) -> ASGIApp:
    """Return the application of the admin port: whatever changes something."""
    application = _application([])

    @application.post(contract.PATH_DRAIN)
    async def drain() -> Response:
        log.info("A drain is asked for on the admin port.")
        state.lifecycle.drain(state.clock())
        return json_response(202, b'{"status":"draining"}')

    @application.post(contract.PATH_LOAD_ADAPTER)
    async def load_adapter(request: Request) -> Response:
        return await admin_answer(adapter_routes.load(state, await request.body()))

    @application.post(contract.PATH_UNLOAD_ADAPTER)
    async def unload_adapter(request: Request) -> Response:
        return await admin_answer(adapter_routes.unload(state, await request.body()))

    @application.get(contract.PATH_HEALTH)
    async def health() -> Response:
        phase = state.lifecycle.phase(state.clock())
        return json_response(200, f'{{"status":"{phase.value}"}}'.encode())

    return application
