"""Environments of OpenEnv and verifiers: rewards against those projects' own evaluation."""
