"""The shapes of the parameters of well-known models, in the order of their modules, from how they are built."""

from __future__ import annotations

Shapes = list[tuple[int, ...]]


def resnet50(classes: int = 1000) -> Shapes:
    """ResNet-50: 161 tensors, 25,557,032 elements."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        outputs = 4 * width
        for block in range(blocks):
            for kernel in ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)):
                shapes += [kernel, kernel[:1], kernel[:1]]  # a convolution and its normalisation
            if block == 0:
                shapes += [(outputs, inputs, 1, 1), (outputs,), (outputs,)]
            inputs = outputs
    return [*shapes, (classes, inputs), (classes,)]


def vit_b16(width: int = 768, layers: int = 12, classes: int = 1000) -> Shapes:
    """ViT-B/16 for images of 224 x 224: 152 tensors, 86,567,656 elements."""
    norm: Shapes = [(width,), (width,)]
    layer = [*norm, (3 * width, width), (3 * width,), (width, width), (width,),
             *norm, (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    patches = (224 // 16) ** 2
    return [(1, 1, width), (width, 3, 16, 16), (width,), (1, patches + 1, width), *layer * layers, *norm,
            (classes, width), (classes,)]


def gpt2_small(width: int = 768, layers: int = 12, words: int = 50257, places: int = 1024) -> Shapes:
    """GPT-2 small, whose head is its embedding: 148 tensors, 124,439,808 elements."""
    norm: Shapes = [(width,), (width,)]
    layer = [*norm, (width, 3 * width), (3 * width,), (width, width), (width,),
             *norm, (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(words, width), (places, width), *layer * layers, *norm]


def llama_blocks(blocks: int, width: int = 2048, hidden: int = 8192, keys: int = 512) -> Shapes:
    """Blocks of a Llama of 1B parameters (grouped keys and values): 9 tensors, 60,821,504 elements each."""
    block: Shapes = [(width, width), (keys, width), (keys, width), (width, width), (hidden, width), (hidden, width),
                     (width, hidden), (width,), (width,)]
    return block * blocks
