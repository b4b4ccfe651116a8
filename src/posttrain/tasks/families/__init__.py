"""The domains that come with posttrain, one small file for each family. `posttrain.tasks.catalogue` lists them."""
