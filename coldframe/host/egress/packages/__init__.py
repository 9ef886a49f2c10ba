"""The caching, read-only view of package registries that boxes have in profile `packages`."""
