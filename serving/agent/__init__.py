"""The sender agent in C++, and what Python has of it: frames, the process, replays, a reference client."""
