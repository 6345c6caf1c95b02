"""What every program needs to run: configuration, logs, metrics, HTTP, TLS, versions."""
