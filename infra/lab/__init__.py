"""The L4S laboratory: scenarios as data, their runs on Ray, the results and the report."""
