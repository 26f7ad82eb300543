"""Import of traces that other libraries wrote: OpenTelemetry, Phoenix, LangSmith, Langfuse."""
