"""The operator inside graphs: GE IR and `.air` files (`ge`), ONNX (`onnx`), and the kernels' own data flow."""
