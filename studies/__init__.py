"""Papers reproduced and questions settled: a folder each. The product works without any of them."""
