"""The HTTP side's machinery; import from its modules (docs/http.md).

`serve` and `config` listen and serve, `guard` decides who may ask, `body` and `stream` are what a route uses,
`exchange` holds ASGI's types and the two errors that end an answer.
"""
