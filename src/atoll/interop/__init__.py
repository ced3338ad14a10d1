"""Data and models that come from elsewhere or go elsewhere: folders of clients, PyTorch data sets, exported models."""
