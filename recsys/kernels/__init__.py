"""GPU kernels in Triton, which torch's CUDA builds bring, for functions that are in torch too.

Each module imports triton and, but for `tiles`, says which function it equals: that function is the
reference, runs wherever the kernel does not, and is what the tests compare the kernel with. Import
these modules only where triton is installed. No figure of any of them has been measured on a GPU
yet, so a training takes a kernel only after comparing and timing both
(`training/kernel_choice.py`).
"""
