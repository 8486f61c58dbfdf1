"""Networks of any layers (convolutional ones first): their work, traffic and memory.

``layer`` is the vocabulary: a ``LayerNetwork`` is a graph of ``Layer``s with their shapes.
"""
