"""Runtime of every program: configuration, logs, metrics, HTTP, TLS, versions."""
