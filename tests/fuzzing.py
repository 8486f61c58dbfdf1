"""Health checks of hypothesis that fuzz tests do without."""

from hypothesis import HealthCheck

#: A fixture lasts for all examples of a test, which is meant (one folder); how long it takes to
#: make one up is the machine's affair.
SHARED_FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
