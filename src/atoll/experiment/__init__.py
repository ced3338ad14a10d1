"""From settings to objects: data, population, clustering, model and method of one run."""
