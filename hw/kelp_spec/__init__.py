# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the hardware is: parameters, message and metadata formats, address map, register map. Plain
Python, no RTL.

`spec §N`, here and in every other file, is section N of docs/specification.md."""
