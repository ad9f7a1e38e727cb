"""The service `tubes serve`: tubes over HTTP, for programs in any language. Extra `http`; docs/serve.md is its manual.

The service is a layer over `tubes.aio` and stores no tasks itself. Modules here may import all of `tubes` except
`tubes.cli`, `tests.contract` and `tubes.spark`; `tubes.cli.serve` is the command.

- `app.py` builds the application; `service.py` has the state that all requests share; `server.py` runs the application
  with uvicorn.
- `namespaces.py` opens the queue and the tubes of each namespace; `polls.py` runs requests that wait for a task.
- `sessions.py` keeps the sessions of clients; `events.py` sends changes of tasks to subscribed clients.
- `tokens.py` defines tokens and their grants, and signs leases; `rates.py` their rate limits.
- `history.py` samples the counts of tubes, for charts.
- `recent.py` is a cache of expensive reads.
- `audit.py` records who changed what, in a hidden tube of each namespace: `record`.
- `problems.py` converts errors to replies; `bodies.py` reads bodies; `access.py` is the outermost layer, with request
  ids and the access log, one line of JSON per request.
- `metrics.py` counts the requests, and shows them and the tubes at `/metrics`.
- `pushes.py` posts the tasks of tubes to URLs, and runs workers in the background.
- `later/` is the API of btfak/later, mounted if callbacks are allowed.
- `native/` is the API under `/v1`, with a file for each kind of resource. `operations.py` defines an operation.
- `lmstfy/` is the API of lmstfy, under `/api`.
- `ui/` has the files of the dashboard, served under `/ui/`. `mounted.py` is the dashboard as an application to mount.

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
