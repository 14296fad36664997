"""`python -m hyco_npu` is the `hyco-npu` command."""

from hyco_npu.cli import main

main()
