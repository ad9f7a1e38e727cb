"""The service `tubes serve`: tubes over HTTP, for programs in any language. Extra `http`; docs/serve.md is its manual.

The service is a layer over `tubes.aio` and stores no tasks itself. Modules here may import all of `tubes` except
`tubes.cli`, `tests.contract` and `tubes.spark`; `tubes.cli.serve` is the command.

`server.py` runs the application with uvicorn, and `app.py` builds it; `access.py` is its outermost layer. `service.py`
has the state that all requests share. `native/` is the API under `/v1`, `lmstfy/` that of lmstfy, and `later/` that of
btfak/later. `ui/` has the files of the dashboard. The first line of each file says what it is for.

To mount another API, add a folder here whose `__init__.py` has a function

    def routes(service: Service) -> list[BaseRoute]:

It returns Starlette routes with complete paths. Add a line for it to `App` in `app.py`, and another one if it
has routes for the listener of `--admin`. Background work (a worker, for example) is an async context manager; append it
to `Service.background`. Every route can rely on this:

- Paths are matched before `%` escapes are decoded, so a `/` in a name is written `%2F`. `{tube:name}` in the path of a
  route is one segment, decoded.
- `await service.namespaces.get(name)` returns a namespace. `await space.tube(name)` returns a tube and caches it: its
  data is arbitrary bytes here, independent of the codec of the queue. `await space.apply(name, act)` calls `act(tube)`,
  and calls it again if the tube was dropped and created again. All processes of a service share one session for takes:
  end a take by its lease, never by its id, and give each take a ttr.
- `service.tokens.find(text)` returns the token of a text, or None; `token.may("put", namespace, tube)` checks a right.
  Write the token's id to the access log: `notes_of(scope)["token"] = token.id`. Only what a grant names is allowed.
- `await service.count(token, "put")` counts against the token's rate limits, over all processes, and raises
  `HTTPException(429)` with `Retry-After`. `service.rates` has the limits themselves: `wait`, and `give_back` for a call
  that had no effect.
- `await read_body(scope, receive, limit)` raises `HTTPException(413)` while it reads.
- `await service.polls.take(receive, space, names, limit, wait, ttr)` takes tasks while the client is connected. If the
  client disconnects, no task is taken and no attempt is counted; when the service stops, the list is empty.
- An error that leaves the route becomes an RFC 9457 reply (`problems.py`). A route can set `scope[REPLY_TO_ERROR]` to
  its own function for that; `status_of(error)` returns the status.
- The reply gets an `X-Request-ID`, and the request a line in the access log.
"""

from tubes.errors import needs

with needs("tubes.serve", "http"):
    from tubes.serve.app import create_app
    from tubes.serve.mounted import dashboard
    from tubes.serve.rates import Rate
    from tubes.serve.service import Limits
    from tubes.serve.tokens import Grant, Token, Tokens

__all__ = ["Grant", "Limits", "Rate", "Token", "Tokens", "create_app", "dashboard"]
