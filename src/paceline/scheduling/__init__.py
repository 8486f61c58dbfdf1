"""Many jobs share a cluster: replay its queue under a policy."""
