"""`why` against behaviours that were planted in a training."""
