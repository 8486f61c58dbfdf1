"""The monitor over HTTP: API, pages, health and metrics."""
