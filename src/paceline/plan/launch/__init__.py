"""Launch commands and configurations of training frameworks for a plan."""
