"""Many query tokens: the fused kernel of a prompt, and its gradients."""
