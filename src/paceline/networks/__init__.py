"""Networks of any layers (convolutional ones first): what they compute, move and keep.

``layer`` is the vocabulary: a ``LayerNetwork`` is a graph of ``Layer``s with their shapes.
"""
