"""Runtime of graphs: episodes, selection among several runs, time travel, replay, serving."""
