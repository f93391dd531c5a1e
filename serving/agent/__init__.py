"""The sender agent in C++, and its Python side: frames, the process, replays, a reference client."""
