"""Alerts: rules say when, channels say whom, a queue in the store sees that it is told."""
