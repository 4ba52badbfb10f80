"""Training plans: pipelines, the layouts of their stages, and the builder that writes a plan."""
