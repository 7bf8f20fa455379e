"""The same for Hopper, in Gluon: TMA copies and wgmma products in flight."""
