"""What validations measured on each host, over months, and which hosts to take out of service."""

from paceline.hosts.periodic import PeriodicValidation
from paceline.hosts.store import HostStore

__all__ = ["HostStore", "PeriodicValidation"]
