"""The HTTP service: score, explain, compare, prefer and guard over HTTP. Needs the extra `serve`.

`metrist serve` starts it; `metrist.client` talks to it. A request goes through these modules:

- `server` has the worker processes, their sockets and signals;
- `app` checks a request (token, limits) and answers it, errors included;
- `endpoints` turns a body into work for metrics and scores into an answer;
- `guards` decides whether an output passes limits in time, and measures at the start how long a text may be;
- `batching` joins records of concurrent requests into batches, and runs them outside of the event loop;
- `catalog` has the metrics that the operator offers; a request cannot bring any other;
- `models` describes bodies and answers, and publishes them as an OpenAPI document;
- `telemetry` counts, logs and traces.
"""
