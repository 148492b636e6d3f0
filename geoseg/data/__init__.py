"""From scenes to batches: the list of scenes, the sample store, the torch dataset."""
