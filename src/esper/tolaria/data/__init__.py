"""Data as tensors: splits, phases, the sealed test set, and what reads or generates them."""

from esper.tolaria.data.splits import DatasetCorrupt, DatasetMissing, Phase, SealedTest, Split, TaskData

__all__ = ["DatasetCorrupt", "DatasetMissing", "Phase", "SealedTest", "Split", "TaskData"]
