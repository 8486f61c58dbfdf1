"""Results of validations on each host, over months, and the hosts to take out of service."""

from paceline.hosts.periodic import PeriodicValidation
from paceline.hosts.store import HostStore

__all__ = ["HostStore", "PeriodicValidation"]
