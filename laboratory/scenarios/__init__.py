"""What may be asked for: scenario files, checked before anything is built or run.

The program trusts what is resolved from them.
"""
