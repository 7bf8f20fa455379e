"""What every operation needs to compile and launch: GPUs, assembler, launchers."""
