"""The documentation's site: pages made from registries and types, pictures of threat models, and pages whose commands are run."""
