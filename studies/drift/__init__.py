"""When the five-minute tune pays: walks over traces whose state changes in the middle."""
