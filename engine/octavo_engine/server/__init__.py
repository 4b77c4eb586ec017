"""The API process: FastAPI application, OpenAI protocol, tokenizer, streaming, metrics."""
