"""Alerts: rules decide when, channels define receivers, a queue in the store ensures delivery."""
