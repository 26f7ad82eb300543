"""Program of a stranger: an agent, traced by one of the usual libraries.

python program.py EXPORTER AGENT FOLDER

The libraries' own exporters send to the receivers of `receiver`, or write files themselves.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.traces_in.agents import ask


def _provider(endpoint: str | None, folder: Path) -> Any:
    """Tracer provider of the SDK, with its OTLP exporter (None: its console exporter)."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider()
    if endpoint is None:
        out = (folder / "console.json").open("w")
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
    else:
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def _within_span(provider: Any, name: str) -> None:
    """Run an agent in a span of its author's."""

    async def traced() -> None:
        with provider.get_tracer("theirs").start_as_current_span("answer"):
            await ask(name)

    asyncio.run(traced())
    provider.shutdown()


def openinference_langchain(name: str, folder: Path) -> None:
    """OpenInference for LangChain, as Phoenix uses it."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    provider = _provider(os.environ["RECEIVER"], folder)
    LangChainInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(ask(name))
    provider.shutdown()


def openinference_console(name: str, folder: Path) -> None:
    """OpenInference for LangChain, written by the SDK's console exporter."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    provider = _provider(None, folder)
    LangChainInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(ask(name))
    provider.shutdown()


def openinference_openai(name: str, folder: Path) -> None:
    """OpenInference for OpenAI's client: no spans of tools and graphs."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    provider = _provider(os.environ["RECEIVER"], folder)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    _within_span(provider, name)


def traceloop_langchain(name: str, folder: Path) -> None:
    """OpenLLMetry for LangChain."""
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    provider = _provider(os.environ["RECEIVER"], folder)
    LangchainInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(ask(name))
    provider.shutdown()


def traceloop_openai(name: str, folder: Path) -> None:
    """OpenLLMetry for OpenAI's client."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    provider = _provider(os.environ["RECEIVER"], folder)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    _within_span(provider, name)


def otel_openai(name: str, folder: Path) -> None:
    """OpenTelemetry's own instrumentation of OpenAI's client: messages are log records."""
    os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

    provider = _provider(os.environ["RECEIVER"], folder)
    logs = LoggerProvider()
    exporter = OTLPLogExporter(endpoint=f"{os.environ['RECEIVER']}/v1/logs")
    logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs)
    _within_span(provider, name)
    logs.shutdown()


def otel_openai_newest(name: str, folder: Path) -> None:
    """OpenTelemetry's own instrumentation by its newest conventions: messages are attributes."""
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    otel_openai(name, folder)


def langsmith(name: str, folder: Path) -> None:
    """LangSmith's tracer, which LangChain calls by itself."""
    from langsmith import Client, tracing_context

    client = Client(api_url=os.environ["RECEIVER"], api_key="none")
    os.environ["LANGSMITH_TRACING"] = "true"
    with tracing_context(enabled=True, client=client):
        asyncio.run(ask(name))
    client.flush()


def langfuse(name: str, folder: Path) -> None:
    """Langfuse's callback handler."""
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler

    client = Langfuse(public_key="pk-lf-1", secret_key="sk-lf-1", host=os.environ["RECEIVER"])
    asyncio.run(ask(name, callbacks=[CallbackHandler()]))
    client.flush()
    client.shutdown()


EXPORTERS: dict[str, Callable[[str, Path], None]] = {
    one.__name__: one
    for one in (
        openinference_langchain,
        openinference_console,
        openinference_openai,
        traceloop_langchain,
        traceloop_openai,
        otel_openai,
        otel_openai_newest,
        langsmith,
        langfuse,
    )
}
"""Exporter by name."""

if __name__ == "__main__":
    EXPORTERS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
