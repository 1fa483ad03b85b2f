"""Growth inside other people's trainers. Each module needs its own package: esper[lightning], esper[transformers]."""
