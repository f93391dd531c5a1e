"""params.yaml as a whole: its sections and their page, and the document that programs read, change and write.

A stage reads its own section by `common.section`.
"""
