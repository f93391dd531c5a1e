"""A registered version becomes the served one, and back: push, checks, aliases, the deploy log."""
