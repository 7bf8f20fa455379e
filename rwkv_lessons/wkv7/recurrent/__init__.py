"""One token after the other, as Triton kernels: forward and its gradients."""
