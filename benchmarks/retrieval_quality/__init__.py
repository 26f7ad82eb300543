"""Quality of retrieval: how much of the spans that answer a question is retrieved."""
