"""Many traces at once: analyses of them all become one dataset, and the dataset becomes figures."""
