"""The published figures of the study and the pages drawn from them."""
