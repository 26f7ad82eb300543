"""General helpers: files, strict JSON, HTTP, intervals, plots."""
