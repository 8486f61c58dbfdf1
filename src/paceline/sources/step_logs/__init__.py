"""Step times in the logs of training frameworks, recognised by their content."""
