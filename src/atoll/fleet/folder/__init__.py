"""A fleet's folder: certificates, keys, and the configuration that server and nodes read."""
