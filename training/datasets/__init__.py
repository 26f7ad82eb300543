"""Data sets: named, versioned sets of examples that were made from runs."""

from hrm_agent.training.datasets.examples import DatasetExample, ExampleSource, make_example
from hrm_agent.training.datasets.folder import (
    FOLDER,
    Added,
    Dataset,
    Version,
    add_examples,
    branches,
    dataset_names,
    file_of_version,
    find_version,
    list_versions,
    read_version,
    split_reference,
)

__all__ = [
    "FOLDER",
    "Added",
    "Dataset",
    "DatasetExample",
    "ExampleSource",
    "Version",
    "add_examples",
    "branches",
    "dataset_names",
    "file_of_version",
    "find_version",
    "list_versions",
    "make_example",
    "read_version",
    "split_reference",
]
