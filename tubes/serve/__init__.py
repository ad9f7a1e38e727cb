"""The service `tubes serve`: tubes over HTTP, for programs in any language. Extra `http`; docs/serve.md is its manual.

It is a face over `tubes.aio`: it keeps no tasks of its own. Modules here may import all of `tubes` but `tubes.cli`,
`tubes.conformance` and `tubes.spark`; `tubes.cli.serve` is the command.

- `app.py` puts the application together; `service.py` is what all requests share; `server.py` runs it with uvicorn.
- `calls.py` has what each request has.
- `namespaces.py` has the queue and the tubes of each namespace; `polls.py` waits as long as the client does.
- `sessions.py` keeps the sessions of clients; `events.py` tells who listens of changes.
- `tokens.py` says who may do what, `rates.py` how often; `leases.py` signs leases.
- `problems.py` makes replies of errors; `bodies.py` reads bodies; `access.py` is outermost: request ids, and a line of
  JSON for each request. `health.py` has what whoever looks after the service asks.
- `pushes.py` posts the tasks of tubes to URLs, and runs workers beside the requests.
- `later/` is the API of btfak/later, where callbacks are allowed.
- `native/` is the API under `/v1`, a file for each kind of resource. `operations.py` says what an operation is.
- `lmstfy/` is the API of lmstfy, under `/api`.

How another API is mounted: it has a folder of its own here, whose `__init__.py` has a function of the service,

    def routes(service: Service) -> list[BaseRoute]:

which returns routes of Starlette with their whole paths, and `_apis` in `app.py` has a line for it, and another one for
its routes at the listener of `--admin`. What runs beside requests (a worker, say) is an async context manager, which is
added to `Service.beside`. Every route can rely on this:

- Paths are matched before their `%` escapes are read, so a `/` in a name is `%2F`. `{tube:name}` in the path of a route
  is one segment, unescaped.
- `await service.namespaces.get(name)` is a namespace. `await space.tube(name)` is a tube, which is kept: its data is
  bytes here, of any kind, whatever the codec of the queue is. `await space.on(name, act)` calls `act(tube)`, again if
  the tube was dropped and made anew. All takes are of one session, which the processes of a service share: end a take
  by its lease, never by its id, and give each take a ttr.
- `service.tokens.find(text)` is the token of a text, or None; `token.may("put", namespace, tube)` says what it may.
  Write its id into the access log: `noted(scope)["token"] = token.id`. Nothing is allowed that no grant names.
- `await service.count(token, "put")` counts against the token's rate limits, over all processes, and raises
  `HTTPException(429)` with `Retry-After`; `service.rates` has the limits themselves: `wait`, and `give_back` for a call
  that came to nothing.
- `await read_body(scope, receive, limit)` raises `HTTPException(413)` while it reads.
- `await service.polls.take(receive, space, names, limit, wait, ttr)` takes tasks as long as the client is there: if it
  leaves, nothing is taken and no attempt is counted, and at the end of the service the list is empty.
- An error that leaves the route becomes a reply of RFC 9457 (`problems.py`), or what `scope[REPLY_TO_ERROR]` makes of
  it, where the route has set that; `status_of(error)` is its status.
- The reply has an `X-Request-ID`, and the request a line in the access log.
"""

from tubes.errors import needs

with needs("tubes.serve", "http"):
    from tubes.serve.app import create_app
    from tubes.serve.rates import Rate
    from tubes.serve.service import Limits
    from tubes.serve.tokens import Grant, Token, Tokens

__all__ = ["Grant", "Limits", "Rate", "Token", "Tokens", "create_app"]
