"""The live page of the loop: what it shows (`view.py`), and its server (`server.py`)."""
