"""The documents as a site: pages from the whole checkout, a generated reference, the notebook with its outputs."""
