"""GPU kernels in Triton, which torch's CUDA builds bring: faster forms of functions in torch.

Each module imports triton and says which function it equals: that function is the reference, runs
wherever the kernel does not, and is what the tests compare the kernel with. Import these modules
only where triton is installed. No figure of any of them has been measured on a GPU yet, so a
training takes a kernel only after it has compared and timed both (`training/kernel_choice.py`).
"""
