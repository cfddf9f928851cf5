"""The llama.cpp worker: embeds, reranks and generates over token ids, through llama-cpp-python's low-level API.

main → engine → {decoder → sequence → sampling, text, constraint} | encoder → context → batch, model → library
"""
