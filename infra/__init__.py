"""Command line, results, studies, traces; the loop on one machine (`local`) and on a cluster (`k8s`)."""
