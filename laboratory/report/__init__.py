"""From the results to judgement: estimates over seeds, verdicts, targets, and the page that shows them.

It needs the results alone: no scenario file, no model and no program.
"""
