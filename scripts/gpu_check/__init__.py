"""The cuda backend on a machine with a GPU, proved and measured item by
item. See ../gpu_check.sh."""
