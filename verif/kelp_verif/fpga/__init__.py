# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What surrounds a board in simulation: the SDRAM chip, tops for benches, the compiled board."""
