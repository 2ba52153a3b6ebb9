"""A small streaming reverse proxy for OpenAI-style servers, to show the strategies at work.

It shows what a host of the strategies has to do: dispatch before the send, say when the first token came,
release at the end of the body on every path. It needs starlette, uvicorn and httpx, the extra ``proxy``;
importing this package alone does not.
"""
