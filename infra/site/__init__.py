"""The documents as a site: pages of the whole checkout, a generated reference, the notebook's outputs."""
