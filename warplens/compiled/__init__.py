"""What compilers make of a kernel: registers, spills, SASS and occupancy, without a GPU."""
