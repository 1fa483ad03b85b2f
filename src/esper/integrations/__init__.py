"""Growth inside other people's trainers. Each needs its extra: esper-grow[lightning], esper-grow[transformers]."""
