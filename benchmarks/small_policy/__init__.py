"""Proof that the shipped small policies can be rebuilt: builds, with their figures and inputs."""
