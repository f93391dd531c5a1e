"""The pages of `docs/results/` and the README's table: drawn from the published data, never typed."""
