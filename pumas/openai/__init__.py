"""The OpenAI-compatible routes, translated to the same operations as the typed contract (decisions C9, D13).

`fields.py` says which fields a route knows; `errors.py` gives errors OpenAI's shape; one module for each route
translates a request into an operation and its result into an answer; `tools.py` finds tool calls in a model's text.
"""
