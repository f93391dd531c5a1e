"""params.yaml as a whole: its sections with their page, and the document that programs edit.

A stage reads its own section by `swiftqueue.common.section`.
"""
