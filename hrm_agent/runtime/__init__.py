"""What runs any graph: episodes, selection among several runs, time travel, replay, serving."""
