"""Step times in the logs of training frameworks, told by their content."""
