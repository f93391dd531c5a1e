"""Making a registered version the served one, and back: push, checks, aliases, the deploy log."""
