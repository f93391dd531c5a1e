"""Run the loop on one machine (`local`) or a cluster (`k8s`), and watch it (`monitoring`)."""
