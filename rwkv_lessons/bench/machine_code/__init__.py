"""Is the machine code of a kernel what its source says? Read in nvdisasm's text, without a GPU."""
