"""Proof that the shipped small policies can be rebuilt: builds, figures and inputs of them."""
