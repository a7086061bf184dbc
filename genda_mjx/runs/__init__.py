"""The host: everything about a run that is not on the device. `train.train`, `evaluate.evaluate`, `task.run_task`."""
